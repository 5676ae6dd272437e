// A few small kernels for the tests of the runtime, with the parameters they take.
#pragma once

#include <array>

#include "src/gpu/program.h"

namespace moray::gpu {

struct AddParams {
  const int* in;
  int* out;
  int count;
  int added;
};

// add: out[i] = in[i] + added, grid-stride, after the kernel before it has finished.
// reverse: through dynamic shared memory of count ints, one block.
// cluster_rank: out[block] = the block's rank in its cluster.
// trap_at: traps when added == count.
inline constexpr std::string_view kSmallText = R"cuda(
#include "small.cuh"
#include "constants.cuh"

extern "C" __global__ void add(const __grid_constant__ AddParams p) {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < p.count; i += gridDim.x * blockDim.x)
    p.out[i] = p.in[i] + p.added * kOne;
}

extern "C" __global__ void reverse(const __grid_constant__ AddParams p) {
  extern __shared__ int held[];
  for (int i = threadIdx.x; i < p.count; i += blockDim.x) held[i] = p.in[i];
  __syncthreads();
  for (int i = threadIdx.x; i < p.count; i += blockDim.x) p.out[i] = held[p.count - 1 - i];
}

extern "C" __global__ void cluster_rank(const __grid_constant__ AddParams p) {
#if __CUDA_ARCH__ >= 900
  unsigned rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  if (threadIdx.x == 0) p.out[blockIdx.x] = rank;
#endif
}

extern "C" __global__ void trap_at(const __grid_constant__ AddParams p) {
  if (p.added == p.count) __trap();
}
)cuda";

inline constexpr std::string_view kSmallHeader = R"cuda(
#pragma once
struct AddParams {
  const int* in;
  int* out;
  int count;
  int added;
};
)cuda";

inline constexpr std::array<Source, 2> kSmallSources = {
    {{"small.cu", kSmallText}, {"small.cuh", kSmallHeader}}};

// `one` is a constant of the compilation: another value is another key of the cache.
inline BuildRequest small_request(int one = 1) {
  return {.sources = kSmallSources,
          .programs = {"small.cu"},
          .constants = "constexpr int kOne = " + std::to_string(one) + ";\n"};
}

}  // namespace moray::gpu
