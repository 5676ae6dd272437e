// Programmatic dependent launch: a kernel may start while the one before it drains.
//
// Contract: before wait_for_previous() a kernel touches only weights and other data that no kernel
// of the step writes; after it, everything the previous kernels wrote is visible. Writes go after
// the wait as well. On sm_89 both are nothing: launches there are ordered by the graph.
#pragma once

__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
