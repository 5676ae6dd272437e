// Cost of a grid barrier; whether cooperative and programmatic launch go together in a graph.
#include <cstdio>
#include <cuda_runtime.h>
#define OK(x) do { cudaError_t e = (x); if (e != cudaSuccess) { printf("%s: %s\n", #x, cudaGetErrorString(e)); cudaGetLastError(); } } while (0)
__device__ __forceinline__ void barrier(unsigned* c, unsigned blocks) {
  __syncthreads();
  if (threadIdx.x == 0) {
    const unsigned add = blockIdx.x == 0 ? 0x80000000u - (blocks - 1) : 1u;
    unsigned old, now;
    asm volatile("atom.add.release.gpu.global.u32 %0, [%1], %2;" : "=r"(old) : "l"(c), "r"(add) : "memory");
    do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(c) : "memory");
    while (((old ^ now) & 0x80000000u) == 0);
  }
  __syncthreads();
}
__global__ void __launch_bounds__(512, 1) rounds(unsigned* c, uint4* data, int n, int load) {
  asm volatile("griddepcontrol.wait;" ::: "memory");
  uint4 sum{};
  for (int i = 0; i < n; ++i) {
    barrier(c, gridDim.x);
    if (load) {
      uint4 v;
      asm volatile("ld.global.cg.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(data + threadIdx.x) : "memory");
      sum.x ^= v.x;
      if (blockIdx.x == 0 && threadIdx.x < 4) data[threadIdx.x] = make_uint4(sum.x + i, 1, 2, 3);
    }
    if (i == n - 1) asm volatile("griddepcontrol.launch_dependents;");
  }
  if (sum.x == 0x12345) data[1] = sum;
}
int main() {
  cudaStream_t s; OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
  unsigned* c; uint4* data; OK(cudaMalloc(&c, 256)); OK(cudaMemset(c, 0, 256)); OK(cudaMalloc(&data, 65536)); OK(cudaMemset(data, 0, 65536));
  cudaEvent_t a, b; cudaEventCreate(&a); cudaEventCreate(&b);
  for (int coop = 0; coop < 2; ++coop) for (int pdl = 0; pdl < 2; ++pdl) for (int load = 0; load < 2; ++load) for (int n : {1, 5, 101}) {
    cudaLaunchAttribute at[2]; cudaLaunchConfig_t f{}; f.gridDim = 132; f.blockDim = 512; f.dynamicSmemBytes = 0; f.stream = s; f.attrs = at; f.numAttrs = 0;
    if (coop) { at[f.numAttrs].id = cudaLaunchAttributeCooperative; at[f.numAttrs++].val.cooperative = 1; }
    if (pdl) { at[f.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization; at[f.numAttrs++].val.programmaticStreamSerializationAllowed = 1; }
    cudaGraph_t g; cudaGraphExec_t x;
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    for (int k = 0; k < 40; ++k) { cudaError_t e = cudaLaunchKernelEx(&f, rounds, c, data, n, load); if (e) { printf("launch coop %d pdl %d: %s\n", coop, pdl, cudaGetErrorString(e)); break; } }
    OK(cudaStreamEndCapture(s, &g));
    if (cudaGraphInstantiate(&x, g, 0)) { printf("coop %d pdl %d: no graph: %s\n", coop, pdl, cudaGetErrorString(cudaGetLastError())); continue; }
    for (int k = 0; k < 3; ++k) OK(cudaGraphLaunch(x, s));
    cudaEventRecord(a, s); for (int k = 0; k < 10; ++k) OK(cudaGraphLaunch(x, s)); cudaEventRecord(b, s); OK(cudaStreamSynchronize(s));
    float ms; cudaEventElapsedTime(&ms, a, b);
    printf("coop %d pdl %d load %d barriers %3d: %.2f us a launch\n", coop, pdl, load, n, ms * 1000 / 400);
  }
}
