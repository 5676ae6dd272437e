// Reads `bytes` once, 16 at a time past L1, eight loads in flight a thread. Grid: a few blocks a
// multiprocessor; each warp reads 512 neighbouring bytes a load.
#include "device/number.cuh"
#include "read_speed.h"

namespace moray::cuda {

__device__ __forceinline__ Pack16 load_streaming(const char* from) {
  Pack16 pack;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(pack.word[0]), "=r"(pack.word[1]), "=r"(pack.word[2]), "=r"(pack.word[3])
               : "l"(from));
  return pack;
}

extern "C" __global__ void __launch_bounds__(512) read_speed(const __grid_constant__ ReadSpeed p) {
  constexpr int kLoads = 8;
  const int64 threads = int64(gridDim.x) * blockDim.x;
  const int64 packs = p.bytes / 16;
  const char* data = static_cast<const char*>(p.data);
  uint32 sum = 0;
  int64 at = int64(blockIdx.x) * blockDim.x + threadIdx.x;
  for (; at + (kLoads - 1) * threads < packs; at += kLoads * threads) {
    Pack16 loaded[kLoads];
    for (int i = 0; i < kLoads; ++i) loaded[i] = load_streaming(data + 16 * (at + i * threads));
    for (int i = 0; i < kLoads; ++i) {
      sum ^= loaded[i].word[0] ^ loaded[i].word[1] ^ loaded[i].word[2] ^ loaded[i].word[3];
    }
  }
  for (; at < packs; at += threads) {
    const Pack16 pack = load_streaming(data + 16 * at);
    sum ^= pack.word[0] ^ pack.word[1] ^ pack.word[2] ^ pack.word[3];
  }
  if (sum == 0x5eed5eedu && p.bytes < 0) *p.sink = sum;
}

}  // namespace moray::cuda
