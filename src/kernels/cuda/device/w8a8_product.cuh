// The W8A8 main loop of this architecture. kArch decides, not the compiler's target, so that the
// loop of sm_89 can be run on newer cards by tests.
#pragma once

#include "constants.cuh"
#include "w8a8_mma.cuh"
#include "w8a8_wgmma.cuh"

inline constexpr int kW8a8Threads = (kArch == 900 ? kWgmmaBlock : kMmaBlock).threads;

template <class Work, class Epilogue>
__device__ __forceinline__ void w8a8_product(Work& work, Epilogue& epilogue) {
  if constexpr (kArch == 900) {
#if __CUDA_ARCH__ == 900
    w8a8_run_wgmma(work, epilogue);
#endif
  } else {
    w8a8_run_mma(work, epilogue);
  }
}

__device__ __forceinline__ int tiles_of(int count) {
  return (count + 127) / 128;
}
