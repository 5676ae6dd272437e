// Blocks that run together (thread block clusters, sm_90 on) and write each other's shared memory.
//
// Contract: arrive releases what a thread wrote, local or remote, and wait acquires it, for all
// threads of all blocks of the cluster. A block must neither be written to before it has started
// nor after it has left: pair an arrive at the start with a wait before the first remote store, and
// do nothing remote after the last barrier. On sm_89 a cluster is one block and all of this is
// __syncthreads or nothing.
#pragma once

#include "number.cuh"

__device__ __forceinline__ void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#endif
}
__device__ __forceinline__ void cluster_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#else
  __syncthreads();
#endif
}
// Writes `value` where block `rank` of the cluster has what this block has at `place`.
__device__ __forceinline__ void cluster_store(float* place, uint32 rank, float value) {
#if __CUDA_ARCH__ >= 900
  const uint32 local = static_cast<uint32>(__cvta_generic_to_shared(place));
  uint32 remote;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(local), "r"(rank));
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(remote), "f"(value) : "memory");
#else
  *place = value;
#endif
}
