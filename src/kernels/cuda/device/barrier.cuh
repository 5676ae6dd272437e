// Barriers in shared memory (mbarrier, sm_90) and what goes with blocks of one cluster.
//
// A barrier has a phase parity. It turns when the expected arrivals have come and the expected
// bytes have landed. barrier_wait(parity) returns once the phase of that parity is over; a fresh
// barrier is in phase 0, so waiting for parity 1 on it returns at once. A waiter must not be two
// phases behind, or it mistakes one for the other: every user of a ring here waits on each stage in
// turn, and no stage is filled again before all its users have arrived.
//
// Arrivals and waits order what the copy unit and the tensor cores do with shared memory. Spelled
// out as .release.cluster and .acquire.cluster they would also fence ordinary memory accesses of
// the whole GPU (MEMBAR, CCTL.IVALL: measured as a fourfold slower product), which nothing here
// needs.
#pragma once

#include "number.cuh"

__device__ __forceinline__ uint32 shared_address(const void* pointer) {
  return static_cast<uint32>(__cvta_generic_to_shared(pointer));
}

#if __CUDA_ARCH__ >= 900

__device__ __forceinline__ void barrier_init(uint32 barrier, uint32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// Makes initialised barriers visible to bulk copies and to other blocks of the cluster.
__device__ __forceinline__ void barrier_init_done() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void barrier_expect(uint32 barrier, uint32 bytes) {  // and arrive
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
// Arrives at the barrier at the same offset in block `rank` of the cluster.
__device__ __forceinline__ void barrier_arrive(uint32 barrier, uint32 rank) {
  asm volatile(
      "{\n.reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}" ::"r"(barrier),
      "r"(rank)
      : "memory");
}
__device__ __forceinline__ void barrier_wait(uint32 barrier, uint32 parity) {
  uint32 done = 0;
  while (done == 0) {
    asm volatile(
        "{\n.reg .pred over;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 over, [%1], %2;\n"
        "selp.u32 %0, 1, 0, over;\n}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
  }
}

__device__ __forceinline__ uint32 cluster_rank() {
  uint32 rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ __forceinline__ uint32 cluster_blocks() {
  uint32 blocks;
  asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(blocks));
  return blocks;
}
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
}

#endif  // __CUDA_ARCH__ >= 900
