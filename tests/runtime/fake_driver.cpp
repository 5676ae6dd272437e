// A libcuda.so.1 that is what the environment says, for the sentences that users of odd drivers
// see.
//
// FAKE_CUDA_VERSION (13000), FAKE_CUDA_INIT (the result of cuInit), FAKE_CUDA_DEVICES (their
// count), FAKE_CUDA_CAPABILITY (89, ...), FAKE_CUDA_CONTEXT (the result of making a context). All
// other calls are there and refuse.
#include <cstddef>
#include <cstdlib>
#include <cstring>

namespace {

constexpr int kNotSupported = 801;

int setting(const char* name, int otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::atoi(value);
}

int copy_text(char* to, int size, const char* text) {
  std::strncpy(to, text, static_cast<std::size_t>(size) - 1);
  to[size - 1] = '\0';
  return 0;
}

}  // namespace

extern "C" {

int cuInit(unsigned) {
  return setting("FAKE_CUDA_INIT", 0);
}
int cuDriverGetVersion(int* version) {
  *version = setting("FAKE_CUDA_VERSION", 13000);
  return 0;
}
int cuGetErrorName(int code, const char** name) {
  *name = code == 803 ? "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH" : "CUDA_ERROR_OTHER";
  return 0;
}
int cuGetErrorString(int, const char** text) {
  *text = "as the test asked for";
  return 0;
}
int cuDeviceGetCount(int* count) {
  *count = setting("FAKE_CUDA_DEVICES", 1);
  return 0;
}
int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return 0;
}
int cuDeviceGetName(char* name, int size, int) {
  return copy_text(name, size, "Fake GPU");
}
int cuDeviceGetPCIBusId(char* id, int size, int) {
  return copy_text(id, size, "0000:01:00.0");
}
int cuDeviceTotalMem_v2(std::size_t* bytes, int) {
  *bytes = std::size_t{8} << 30;
  return 0;
}
int cuDeviceGetAttribute(int* value, int attribute, int) {
  const int capability = setting("FAKE_CUDA_CAPABILITY", 89);
  *value = attribute == 75 ? capability / 10 : attribute == 76 ? capability % 10 : 100;
  return 0;
}
int cuDevicePrimaryCtxRetain(void** context, int) {
  *context = context;
  return setting("FAKE_CUDA_CONTEXT", 0);
}
int cuDevicePrimaryCtxRelease_v2(int) {
  return 0;
}

int cuCtxSetCurrent() {
  return kNotSupported;
}
int cuMemGetInfo_v2() {
  return kNotSupported;
}
int cuMemAlloc_v2() {
  return kNotSupported;
}
int cuMemFree_v2() {
  return kNotSupported;
}
int cuMemHostAlloc() {
  return kNotSupported;
}
int cuMemFreeHost() {
  return kNotSupported;
}
int cuMemcpyHtoDAsync_v2() {
  return kNotSupported;
}
int cuMemcpyDtoHAsync_v2() {
  return kNotSupported;
}
int cuMemcpyDtoDAsync_v2() {
  return kNotSupported;
}
int cuMemsetD8Async() {
  return kNotSupported;
}
int cuStreamCreate() {
  return kNotSupported;
}
int cuStreamDestroy_v2() {
  return kNotSupported;
}
int cuStreamSynchronize() {
  return kNotSupported;
}
int cuStreamWaitEvent() {
  return kNotSupported;
}
int cuEventCreate() {
  return kNotSupported;
}
int cuEventDestroy_v2() {
  return kNotSupported;
}
int cuEventRecord() {
  return kNotSupported;
}
int cuEventSynchronize() {
  return kNotSupported;
}
int cuEventElapsedTime() {
  return kNotSupported;
}
int cuStreamBeginCapture_v2() {
  return kNotSupported;
}
int cuStreamEndCapture() {
  return kNotSupported;
}
int cuGraphGetNodes() {
  return kNotSupported;
}
int cuGraphInstantiateWithFlags() {
  return kNotSupported;
}
int cuGraphUpload() {
  return kNotSupported;
}
int cuGraphLaunch() {
  return kNotSupported;
}
int cuGraphDestroy() {
  return kNotSupported;
}
int cuGraphExecDestroy() {
  return kNotSupported;
}
int cuModuleLoadData() {
  return kNotSupported;
}
int cuModuleUnload() {
  return kNotSupported;
}
int cuModuleGetFunction() {
  return kNotSupported;
}
int cuFuncGetAttribute() {
  return kNotSupported;
}
int cuFuncSetAttribute() {
  return kNotSupported;
}
int cuLaunchKernelEx() {
  return kNotSupported;
}
int cuTensorMapEncodeTiled() {
  return kNotSupported;
}

}  // extern "C"
