// Words that one kernel writes and another, running at the same time, waits for.
//
// Contract: what a block wrote before a __syncthreads that comes before raise_flag is visible to
// the threads of a block that pass a __syncthreads after await_flag has returned. Waiting is safe
// only for what blocks that have started will do, or for what is done.
#pragma once

__device__ __forceinline__ void raise_flag(int* flag, int value) {
  asm volatile("fence.acq_rel.gpu; st.relaxed.gpu.global.s32 [%0], %1;" ::"l"(flag), "r"(value)
               : "memory");
}
// Until the flag is at least `value`.
__device__ __forceinline__ void await_flag(const int* flag, int value) {
  int found;
  while (true) {
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(found) : "l"(flag) : "memory");
    if (found >= value) return;
    __nanosleep(200);
  }
}
