// The CUDA driver (libcuda.so.1), opened at run time; our own declarations of the calls we make.
//
// Invariant: driver() opens the library once a process; its table either holds every call below or
// does not exist. The declarations follow the driver's documented C ABI, which is stable: a symbol
// with a _v2 is the form since CUDA 4 or 11. Nothing outside src/gpu includes this file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "src/base/status.h"

namespace moray::gpu {

// Results of the driver that are told apart here; all others travel as numbers.
enum class Code : int {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNoDevice = 100,
  kInvalidDevice = 101,
  kInvalidContext = 201,
  kInvalidHandle = 400,
  kIllegalState = 401,
  kNotFound = 500,
  kLaunchOutOfResources = 701,
  kNotSupported = 801,
  kSystemDriverMismatch = 803,
  kCaptureFirst = 900,  // 900..908: what a capturing stream may not do
  kCaptureLast = 908,
  kInvalidClusterSize = 912,
};

using DeviceNumber = int;
using Address = unsigned long long;  // of device memory
using Handle = void*;                // context, module, function, stream, event, graph: all opaque

enum class DeviceAttribute : int {
  kMultiprocessors = 16,
  kL2Bytes = 38,
  kMajor = 75,
  kMinor = 76,
  kSharedBytesMax = 97,
};
enum class FunctionAttribute : int {
  kSharedBytes = 1,
  kLocalBytes = 3,
  kRegisters = 4,
  kDynamicSharedBytesMax = 8,
  kSharedCarveoutPercent = 9,  // of the memory that L1 and shared memory divide
};

// Launch attributes: a number and 64 bytes whose meaning it decides.
enum class LaunchAttributeId : int { kClusterDimension = 4, kProgrammaticSerialization = 6 };
struct LaunchAttribute {
  LaunchAttributeId id;
  int padding;
  union {
    char bytes[64];
    struct {
      unsigned x, y, z;
    } cluster;
    int programmatic;
  } value;
};
static_assert(sizeof(LaunchAttribute) == 72);

struct LaunchConfig {
  unsigned grid_x, grid_y, grid_z;
  unsigned block_x, block_y, block_z;
  unsigned shared_bytes;
  Handle stream;
  LaunchAttribute* attributes;
  unsigned attribute_count;
};
static_assert(sizeof(LaunchConfig) == 56);

inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kHostPortable = 1, kHostMapped = 2;
inline constexpr int kCaptureThreadLocal = 1;

struct Driver {
  Code (*init)(unsigned flags);
  Code (*driver_version)(int* version);
  Code (*error_name)(Code code, const char** name);
  Code (*error_text)(Code code, const char** text);

  Code (*device_count)(int* count);
  Code (*device_get)(DeviceNumber* device, int ordinal);
  Code (*device_name)(char* name, int size, DeviceNumber device);
  Code (*device_memory)(size_t* bytes, DeviceNumber device);
  Code (*device_attribute)(int* value, DeviceAttribute attribute, DeviceNumber device);
  Code (*device_pci_id)(char* id, int size, DeviceNumber device);
  Code (*context_retain)(Handle* context, DeviceNumber device);
  Code (*context_release)(DeviceNumber device);
  Code (*context_set)(Handle context);

  Code (*memory_info)(size_t* free, size_t* total);
  Code (*memory_allocate)(Address* address, size_t bytes);
  Code (*memory_free)(Address address);
  Code (*host_allocate)(void** address, size_t bytes, unsigned flags);
  Code (*host_free)(void* address);
  Code (*copy_to_device)(Address to, const void* from, size_t bytes, Handle stream);
  Code (*copy_to_host)(void* to, Address from, size_t bytes, Handle stream);
  Code (*copy_on_device)(Address to, Address from, size_t bytes, Handle stream);
  Code (*fill_bytes)(Address address, unsigned char value, size_t count, Handle stream);

  Code (*stream_create)(Handle* stream, unsigned flags);
  Code (*stream_destroy)(Handle stream);
  Code (*stream_synchronize)(Handle stream);
  Code (*stream_wait_event)(Handle stream, Handle event, unsigned flags);
  Code (*event_create)(Handle* event, unsigned flags);
  Code (*event_destroy)(Handle event);
  Code (*event_record)(Handle event, Handle stream);
  Code (*event_synchronize)(Handle event);
  Code (*event_elapsed)(float* milliseconds, Handle start, Handle end);

  Code (*capture_begin)(Handle stream, int mode);
  Code (*capture_end)(Handle stream, Handle* graph);
  Code (*graph_nodes)(Handle graph, Handle* nodes, size_t* count);
  Code (*graph_instantiate)(Handle* executable, Handle graph, unsigned long long flags);
  Code (*graph_upload)(Handle executable, Handle stream);
  Code (*graph_launch)(Handle executable, Handle stream);
  Code (*graph_destroy)(Handle graph);
  Code (*graph_executable_destroy)(Handle executable);

  Code (*module_load)(Handle* module, const void* image);
  Code (*module_unload)(Handle module);
  Code (*module_function)(Handle* function, Handle module, const char* name);
  Code (*function_attribute)(int* value, FunctionAttribute attribute, Handle function);
  Code (*function_set_attribute)(Handle function, FunctionAttribute attribute, int value);
  Code (*launch)(const LaunchConfig* config, Handle function, void** params, void** extra);

  Code (*tensor_map_encode)(void* map, int element, uint32_t rank, void* base,
                            const uint64_t* sizes, const uint64_t* strides, const uint32_t* box,
                            const uint32_t* steps, int interleave, int swizzle, int promotion,
                            int outside);

  // Since CUDA 12.4; null in older drivers. Modules load lazily, and a first launch may not be
  // captured: this loads a function at once.
  Code (*function_load)(Handle function);

  int version;  // 13000 for 13.0

  // "CUDA_ERROR_LAUNCH_FAILED (unspecified launch failure)".
  std::string describe(Code code) const;
};

// The table, initialised. Errors: kUnsupported in one sentence, no driver, a driver older than
// CUDA 12.0, or one that finds no GPU or refuses to start.
Result<const Driver*> driver();

// kOk, or kIo "WHAT: found ERROR, expected success".
Status check(const Driver& driver, Code code, const char* what);

// Whether the driver refused a call because the call was wrong, not because of the device's state.
bool is_caller_fault(Code code);

}  // namespace moray::gpu
