#include "src/kernels/cuda/attention.h"

#include "src/base/check.h"
#include "src/gpu/program.h"

namespace moray::cuda {

namespace {

constexpr uint32_t kStepThreads = 256;
constexpr int kNarrowColumns = 8, kPairColumns = 16, kWideColumns = 32;
constexpr uint32_t kRowWarps = 8;  // of attention_rows: one a head

int group(const AttentionShape& shape) {
  return shape.heads / shape.kv_heads;
}
int splits(const AttentionShape& shape) {
  return attention_splits(shape.multiprocessors, shape.kv_heads);
}

uint32_t divide_up(int64_t count, int64_t by) {
  return static_cast<uint32_t>((count + by - 1) / by);
}

}  // namespace

AttentionKernels AttentionKernels::find(const gpu::KernelSet& kernels,
                                        const AttentionShape& shape) {
  CHECK(shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0, shape.heads, shape.kv_heads);
  CHECK(shape.head_dim == 32 || shape.head_dim == 64 || shape.head_dim == 128 ||
            shape.head_dim == 256,
        shape.head_dim);
  constexpr std::string_view kWgmma = "attention_prefill_wgmma";
  return {.step_narrow = kernels.find("attention_step_narrow"),
          .step_pair = kernels.find("attention_step_pair"),
          .step_wide = kernels.find("attention_step_wide"),
          .rows = kernels.find("attention_rows"),
          .prefill = kernels.find("attention_prefill"),
          .unpack = kernels.find("attention_unpack"),
          .prefill_wgmma = kernels.holds(kWgmma) ? kernels.find(kWgmma) : gpu::Kernel{},
          .shape = shape};
}

std::vector<std::string> attention_programs(const AttentionShape& shape) {
  std::vector<std::string> programs = {"attention_step.cu", "attention_prefill.cu"};
  if (shape.arch == 90 && shape.head_dim % 128 == 0) {
    programs.push_back("attention_prefill_wgmma.cu");
  }
  return programs;
}

int64_t attention_step_workspace_bytes(const AttentionShape& shape, int tokens) {
  const int64_t pairs = int64_t{shape.kv_heads} * splits(shape) * group(shape);
  const int64_t stats = 2 * pairs * kStepTokensMax, sums = pairs * tokens * shape.head_dim;
  return (stats + sums) * int64_t{sizeof(float)};
}

int64_t attention_arrivals_bytes(const AttentionShape& shape) {
  return 2 * int64_t{shape.kv_heads} * int64_t{sizeof(unsigned)};
}

void attention_step(gpu::Stream& stream, const AttentionKernels& kernels, int tokens,
                    const AttentionStepParams& params, bool programmatic) {
  const AttentionShape& shape = kernels.shape;
  CHECK(tokens >= 1 && tokens <= kStepTokensMax, tokens);
  const int wanted = tokens * group(shape);
  const int columns = wanted <= kNarrowColumns ? kNarrowColumns
                      : wanted <= kPairColumns ? kPairColumns
                                               : kWideColumns;
  const gpu::Kernel& kernel = columns == kNarrowColumns ? kernels.step_narrow
                              : columns == kPairColumns ? kernels.step_pair
                                                        : kernels.step_wide;
  gpu::launch(stream, kernel,
              {.grid = {.x = uint32_t(splits(shape)), .y = uint32_t(shape.kv_heads)},
               .block = {.x = kStepThreads},
               .shared_bytes = attention_step_shared_bytes(shape.head_dim, splits(shape), columns),
               .programmatic = programmatic},
              params);
}

void attention_prefill(gpu::Stream& stream, const AttentionKernels& kernels,
                       const AttentionPrefillParams& params) {
  const AttentionShape& shape = kernels.shape;
  CHECK(params.tokens >= 1 && params.position >= 0 &&
            params.position + params.tokens <= params.cache.capacity,
        params.tokens, params.position, params.cache.capacity);
  const int64_t jobs = int64_t{params.tokens} * (shape.heads + 2 * shape.kv_heads);
  gpu::launch(stream, kernels.rows,
              {.grid = {.x = divide_up(jobs, kRowWarps)}, .block = {.x = 32 * kRowWarps}}, params);
  if (shape.kv_fp8) {
    const int64_t end = int64_t{params.position} + params.tokens;
    CHECK(params.unpacked.keys != nullptr && params.unpacked.capacity >= end, end,
          params.unpacked.capacity);
    gpu::launch(stream, kernels.unpack,
                {.grid = {.x = divide_up(end, kRowWarps), .y = uint32_t(shape.kv_heads), .z = 2},
                 .block = {.x = 32 * kRowWarps}},
                params);
  }
  const bool uses_wgmma = bool(kernels.prefill_wgmma);
  const int rows = uses_wgmma ? kWgmmaRows : attention_prefill_rows(shape.arch);
  const uint32_t blocks = divide_up(int64_t{params.tokens} * group(shape), rows);
  gpu::launch(
      stream, uses_wgmma ? kernels.prefill_wgmma : kernels.prefill,
      {.grid = {.x = blocks * uint32_t(shape.kv_heads)},
       .block = {.x = 2 * uint32_t(rows)},  // a warp for 16 rows
       .shared_bytes = uses_wgmma ? attention_wgmma_shared_bytes(shape.head_dim)
                                  : attention_prefill_shared_bytes(shape.arch, shape.head_dim)},
      params);
}

}  // namespace moray::cuda
