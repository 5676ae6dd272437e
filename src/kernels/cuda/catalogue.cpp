#include "src/kernels/cuda/catalogue.h"

#include <array>

namespace moray::cuda {
namespace {

bool has_wide_heads(const Constants& constants) {
  return constants.head_dim % 128 == 0;
}

bool has_fp8_projections(const Constants& constants) {
  return constants.projection_fp8;
}

bool splits_value_heads(const Constants& constants) {
  return constants.value_dim % 64 == 0;
}

constexpr std::array kPromises = {
    Promise{"embed_step", kEveryArch, "STG.E.128"},
    Promise{"greedy_step"},
    Promise{"norm_project_*", kEveryArch, "LDGSTS.E.BYPASS.128"},
    Promise{"norm_project_*", kEveryArch, "HMMA.16816.F32"},
    Promise{"project_add_*", kEveryArch, "LDGSTS.E.BYPASS.128"},
    Promise{"project_add_*", kEveryArch, "HMMA.16816.F32"},
    Promise{"project_add_*", kEveryArch, "F2FP.F16.E4M3", has_fp8_projections},
    Promise{"norm_route_*", kEveryArch, "HMMA.16816.F32"},
    Promise{"experts_gate_up_*", kEveryArch, "LDGSTS.E.BYPASS.128"},
    Promise{"experts_gate_up_*", kEveryArch, "HMMA.16816.F32"},
    Promise{"experts_down_*", kEveryArch, "LDGSTS.E.BYPASS.128"},
    Promise{"experts_down_*", kEveryArch, "HMMA.16816.F32"},
    Promise{"norm_head_*", kEveryArch, "HMMA.16816.F32"},
    Promise{"attention_step_*", kEveryArch, "HMMA.16816.F32.BF16"},
    Promise{"attention_step_*", kEveryArch, "LDG.E.128"},
    Promise{"attention_rows"},
    Promise{"attention_unpack"},
    Promise{"attention_prefill", kEveryArch, "HMMA.16816.F32.BF16"},
    Promise{"attention_prefill_wgmma", kSm90, "HGMMA", has_wide_heads},
    Promise{"delta_step", kEveryArch, "LDS.128"},
    Promise{"delta_step", kSm90 | kSm120, "STAS", splits_value_heads},
    Promise{"delta_prepare", kEveryArch, "HMMA.16816.F32"},
    Promise{"delta_scan", kEveryArch, "HMMA.16816.F32"},
    Promise{"delta_scan", kEveryArch, "LDGSTS.E.BYPASS.128"},
    Promise{"delta_finish", kEveryArch, "HMMA.16816.F32"},
    Promise{"project_rows_*", kEveryArch, "HMMA.16816.F32.BF16"},
    Promise{"project_rows_*", kEveryArch, "LDGSTS.E.BYPASS.LTC128B.128"},
    Promise{"gate_up_rows_*", kEveryArch, "HMMA.16816.F32.BF16"},
    Promise{"gate_up_rows_*", kEveryArch, "LDGSTS.E.BYPASS.LTC128B.128"},
    Promise{"down_rows_*", kEveryArch, "HMMA.16816.F32.BF16"},
    Promise{"down_rows_*", kEveryArch, "LDGSTS.E.BYPASS.LTC128B.128"},
    Promise{"embed_rows", kEveryArch, "LDG.E.128"},
    Promise{"norm_rows", kEveryArch, "LDG.E.128"},
    Promise{"quantise_rows", kEveryArch, "LDG.E.128"},
    Promise{"gather_rows", kEveryArch, "STG.E.128"},
    Promise{"combine_rows", kEveryArch, "LDG.E.128"},
    Promise{"route_rows", kEveryArch, "ATOMS"},
    Promise{"plan_tiles"},
    Promise{"place_rows", kEveryArch, "ATOMS"},
    Promise{"random_*", kEveryArch, "STG.E"},
    Promise{"read_speed", kEveryArch, "LDG.E.NA.128.CONSTANT"},
    Promise{"w8a8_*", kSm90, "QGMMA.64x128x32.F32.E4M3.E4M3"},
    Promise{"w8a8_*", kSm120, "QMMA.SF"},
    Promise{"w8a8_*", kSm89, "QMMA.16832.F32.E4M3.E4M3"},
};

constexpr std::array kLocalMemory = {
    LocalMemory{
        "delta_step", 48,
        "sm_89, whose block has a whole head: its 512 threads leave 128 registers to each, and "
        "twelve words do not fit"},
    LocalMemory{"delta_prepare", 16, "key_dim 16: a few addresses, once a block"},
    LocalMemory{"project_add_1", 32,
                "64 registers a thread, so that a block of the next kernel fits beside; what waits "
                "in memory is indices of the epilogue"},
    LocalMemory{"experts_down_8", 8, "a pair of words, outside the loop over weights"},
    LocalMemory{"experts_down_16", 8, "likewise"},
    LocalMemory{"attention_step_wide", 192,
                "head_dim 256: a few words a lane and tile of 128 keys; fewer columns a pass would "
                "read the cache more often"},
};

}  // namespace

std::span<const Promise> promises() {
  return kPromises;
}

std::span<const LocalMemory> local_memory() {
  return kLocalMemory;
}

bool names(std::string_view pattern, std::string_view kernel) {
  if (!pattern.ends_with('*')) return pattern == kernel;
  return kernel.starts_with(pattern.substr(0, pattern.size() - 1));
}

}  // namespace moray::cuda
