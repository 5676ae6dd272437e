// Decode step: the stages of experts.cuh as kernels.
//
// experts_gate_up lets its successor start only after its own wait, so that norm_route has finished
// by then: experts_down may read the logits, choose, and start loading weights before it waits.
#include "constants.cuh"
#include "device/experts.cuh"

using namespace moray::cuda;

namespace {

template <int kTokens>
using OwnDownBlock = DownBlock<kTokens, down_warps(kArch, kTokens, kTopK, kExpertDim, kSharedDim),
                               down_ring_depth(kArch, kTokens, kTopK, kExpertDim, kSharedDim)>;

template <int kTokens>
__device__ __forceinline__ void gate_up_kernel(const ExpertsParams& p) {
  __shared__ ChosenExperts<kTokens> chosen;
  experts_gate_up<false>(p, OwnKernel<ring_depth(kArch, kTokens)>(), chosen);
}
template <int kTokens>
__device__ __forceinline__ void down_kernel(const ExpertsParams& p) {
  __shared__ ChosenExperts<kTokens> chosen;
  experts_down<kTokens, OwnDownBlock<kTokens>>(
      p, OwnKernel<0>(), chosen, [&](char* table, int tokens) {
        load_shared_weights(p.routing, tokens, chosen);
        choose_experts<true>(p.routing.logits, tokens, chosen, reinterpret_cast<uint8*>(table));
      });
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kHiddenThreads, 2)
    norm_route_1(const __grid_constant__ NormRouteParams p) {
  norm_route<1>(p, OwnKernel<ring_depth(kArch, 1)>());
}
extern "C" __global__ void __launch_bounds__(kHiddenThreads, 1)
    norm_route_8(const __grid_constant__ NormRouteParams p) {
  norm_route<8>(p, OwnKernel<ring_depth(kArch, 8)>());
}
extern "C" __global__ void __launch_bounds__(kHiddenThreads, 1)
    norm_route_16(const __grid_constant__ NormRouteParams p) {
  norm_route<16>(p, OwnKernel<ring_depth(kArch, 16)>());
}
// 56 registers a thread: a block of experts_down, 576 threads of 64, fits beside.
extern "C" __global__ void __launch_bounds__(kHiddenThreads + 64, 2)
    experts_gate_up_1(const __grid_constant__ ExpertsParams p) {
  gate_up_kernel<1>(p);
}
extern "C" __global__ void __launch_bounds__(kHiddenThreads, 1)
    experts_gate_up_8(const __grid_constant__ ExpertsParams p) {
  gate_up_kernel<8>(p);
}
extern "C" __global__ void __launch_bounds__(kHiddenThreads, 1)
    experts_gate_up_16(const __grid_constant__ ExpertsParams p) {
  gate_up_kernel<16>(p);
}
// At most 36864 registers a block (18 warps of 64 a thread), what experts_gate_up_1 leaves.
constexpr int kDownBeside = OwnDownBlock<1>::kWarps * 32 * 16 / 9;
extern "C" __global__ void __launch_bounds__(kDownBeside <= 1024 ? kDownBeside : 1024)
    experts_down_1(const __grid_constant__ ExpertsParams p) {
  down_kernel<1>(p);
}
extern "C" __global__ void __launch_bounds__(OwnDownBlock<8>::kWarps * 32)
    experts_down_8(const __grid_constant__ ExpertsParams p) {
  down_kernel<8>(p);
}
extern "C" __global__ void __launch_bounds__(OwnDownBlock<16>::kWarps * 32)
    experts_down_16(const __grid_constant__ ExpertsParams p) {
  down_kernel<16>(p);
}
