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

// Where a stage of the decode step runs: as a kernel of its own here, among others in
// decode_tail.cu. kDepth: slots of a warp's ring over the hidden columns.
template <int kRingDepth>
struct OwnKernel {
  static constexpr int kDepth = kRingDepth;
  __device__ __forceinline__ int block() const { return blockIdx.x; }
  __device__ __forceinline__ int blocks() const { return gridDim.x; }
  __device__ __forceinline__ void wait_for_previous() const { ::wait_for_previous(); }
  __device__ __forceinline__ void let_next_start() const { ::let_next_start(); }
};
