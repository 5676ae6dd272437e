// Decode step: embedding, and the two stages of project.cuh as kernels.
#include "constants.cuh"
#include "device/project.cuh"

using namespace moray::cuda;

extern "C" __global__ void __launch_bounds__(128)
    embed_step(const __grid_constant__ EmbedParams p) {
  let_next_start();
  wait_for_previous();
  const int token = p.step->tokens[blockIdx.x];
  const int row = token >= 0 && token < p.table.rows ? token : 0;
  const Pack16* const from = reinterpret_cast<const Pack16*>(
      static_cast<const Bfloat16*>(p.table.data) + static_cast<int64>(row) * p.table.stride);
  Pack16* const to = reinterpret_cast<Pack16*>(p.residual + blockIdx.x * kHidden);
  for (int i = threadIdx.x; i < kHidden / 8; i += 128) to[i] = from[i];
}

extern "C" __global__ void __launch_bounds__(kHiddenThreads, 2)
    norm_project_1(const __grid_constant__ NormProjectParams p) {
  norm_project<1>(p, OwnKernel<ring_depth(kArch, 1)>());
}
extern "C" __global__ void __launch_bounds__(kHiddenThreads, 1)
    norm_project_8(const __grid_constant__ NormProjectParams p) {
  norm_project<8>(p, OwnKernel<ring_depth(kArch, 8)>());
}
extern "C" __global__ void __launch_bounds__(kHiddenThreads, 1)
    norm_project_16(const __grid_constant__ NormProjectParams p) {
  norm_project<16>(p, OwnKernel<ring_depth(kArch, 16)>());
}
// 64 registers a thread, so that two blocks of 512 threads, this and the next kernel's, fit.
extern "C" __global__ void __launch_bounds__(kAddThreads, 2)
    project_add_1(const __grid_constant__ ProjectAddParams p) {
  project_add<1>(p, OwnKernel<0>());
}
extern "C" __global__ void __launch_bounds__(kAddThreads)
    project_add_8(const __grid_constant__ ProjectAddParams p) {
  project_add<8>(p, OwnKernel<0>());
}
extern "C" __global__ void __launch_bounds__(kAddThreads)
    project_add_16(const __grid_constant__ ProjectAddParams p) {
  project_add<16>(p, OwnKernel<0>());
}
