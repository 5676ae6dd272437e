// What host launchers and device code agree on: sizes of a step and views of device memory.
//
// Included by both compilers, so only plain types here. Pointers are device addresses on either
// side. Every kernel takes exactly one parameter struct by value, declared beside its launcher.
#pragma once

namespace moray::cuda {

// A weight matrix in device memory, row-major: W[n, k] at data + (n * stride + k) elements, stride
// a multiple of 64 elements, 256-byte aligned, columns [cols, stride) zero. Codes as published;
// kFp8: times scales[n / 128 * scale_cols + k / 128], scale_cols = ceil(cols / 128), FP32.
enum class Format : int { kFp8 = 0, kBf16 = 1, kF32 = 2 };
struct Matrix {
  const void* data;
  const float* scales;  // null unless kFp8
  int rows, cols, stride;
  Format format;
};

inline constexpr int kStepTokensMax = 16;  // of one decode step
inline constexpr int kDeltaChunkTokens = 64;

// A decode step's inputs, in device memory, so that one captured graph serves every step. The
// step's tokens stand at positions position .. position + count - 1 of one sequence. The last
// kernel of a greedy step writes tokens[0] and advances position for the next.
struct Step {
  int position;
  int count;
  int tokens[kStepTokensMax];
};

// Routed experts of one layer as equal records, each: gate [I, H], up [I, H], down [H, I] (rows
// padded as in Matrix), then for kFp8 their scales in the same order; offsets in bytes. The shared
// expert is a record of its own with its own width.
struct ExpertRecords {
  const char* base;
  long long record_bytes;
  int up, down;                             // byte offsets in a record; gate is at 0
  int gate_scales, up_scales, down_scales;  // kFp8 only
  int width;                                // I
  int gate_stride, down_stride;             // elements a row
  Format format;
};

}  // namespace moray::cuda
