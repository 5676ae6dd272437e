// Blocks that run together (thread block clusters, sm_90 on): sums that each tells to all.
//
// An Exchange in shared memory at the same offset in every block receives kValues floats from each
// of kBlocks blocks. exchange_open and exchange_ready come before the first exchange_send of any
// block, some work apart, since a block must have started before it can be written to;
// exchange_wait returns when all values have come, so no block leaves before it was told. Values
// travel with their own completion count (st.async): a barrier of the cluster that also orders
// memory would wait for every store the block has in flight. One use per launch. A single block
// (kBlocks = 1, the only possibility on sm_89) is told by __syncthreads.
#pragma once

#include "barrier.cuh"
#include "number.cuh"

template <int kBlocks, int kValues>
struct Exchange {
  uint64 barrier;
  float values[kBlocks][kValues];
};

// By all threads. `count`: values that each block sends, at most kValues.
template <int kBlocks, int kValues>
__device__ __forceinline__ void exchange_open(Exchange<kBlocks, kValues>& exchange, int count) {
#if __CUDA_ARCH__ >= 900
  if constexpr (kBlocks > 1) {
    if (threadIdx.x == 0) {
      const uint32 barrier = shared_address(&exchange.barrier);
      barrier_init(barrier, 1);
      barrier_init_done();
      barrier_expect(barrier, kBlocks * count * sizeof(float));
    }
    __syncwarp();
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
  }
#endif
}
template <int kBlocks, int kValues>
__device__ __forceinline__ void exchange_ready(Exchange<kBlocks, kValues>&) {
#if __CUDA_ARCH__ >= 900
  if constexpr (kBlocks > 1) asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
#endif
}
// By one thread a value: block `self` tells all blocks its value number `index`.
template <int kBlocks, int kValues>
__device__ __forceinline__ void exchange_send(Exchange<kBlocks, kValues>& exchange, int self,
                                              int index, float value) {
  if constexpr (kBlocks == 1) {
    exchange.values[self][index] = value;
  } else {
#if __CUDA_ARCH__ >= 900
    const uint32 to = shared_address(&exchange.values[self][index]);
    const uint32 barrier = shared_address(&exchange.barrier);
#pragma unroll
    for (int rank = 0; rank < kBlocks; ++rank) {
      asm volatile(
          "{ .reg .b32 place, done;\n"
          "mapa.shared::cluster.u32 place, %0, %2;\n"
          "mapa.shared::cluster.u32 done, %1, %2;\n"
          "st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [place], %3, [done]; }" ::"r"(
              to),
          "r"(barrier), "r"(rank), "f"(value)
          : "memory");
    }
#endif
  }
}
template <int kBlocks, int kValues>
__device__ __forceinline__ void exchange_wait(Exchange<kBlocks, kValues>& exchange) {
  if constexpr (kBlocks == 1) {
    __syncthreads();
  } else {
#if __CUDA_ARCH__ >= 900
    barrier_wait(shared_address(&exchange.barrier), 0);
#endif
  }
}
