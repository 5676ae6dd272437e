// How the delta step is cut into blocks; host and device agree on it here.
#pragma once

namespace moray::cuda {

// Blocks a value head, each with value_dim / slices columns of its state. They form a cluster,
// which shares the sums of the gated norm; sm_89 has none, so a block there owns a head.
constexpr int delta_step_slices(int arch, int value_dim) {
  if (arch < 900) return 1;
  return value_dim % 128 == 0 ? 4 : value_dim % 64 == 0 ? 2 : 1;
}
// Warps for every 32 columns, each with as many rows of S; fewer where a block is wide, so that its
// threads have the registers to hold their part of the state.
constexpr int delta_step_row_groups(int arch) {
  return arch < 900 ? 4 : 8;
}
constexpr int delta_step_warps(int arch, int value_dim) {
  const int columns = value_dim / delta_step_slices(arch, value_dim);
  return delta_step_row_groups(arch) * ((columns + 31) / 32);
}

}  // namespace moray::cuda
