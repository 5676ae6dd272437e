// Launchers of the decode kernels: grids, blocks and shared memory, with what each moves.
#include "src/kernels/cuda/decode.h"

#include <algorithm>

#include "src/base/check.h"
#include "src/gpu/program.h"

namespace moray::cuda {

namespace {

int divide_up(int a, int b) {
  return (a + b - 1) / b;
}
int tiles_of(int rows) {
  return divide_up(rows, kTileRows);
}
int element_bytes(Format format) {
  return format == Format::kFp8 ? 1 : 2;
}
gpu::Dim along_x(int count) {
  return {static_cast<uint32_t>(count), 1, 1};
}

int arch_constant(const DecodeShape& shape) {  // kArch of the kernels
  return shape.arch * 10;
}

void check_matrix(const Matrix& matrix, int cols) {
  CHECK(matrix.format == Format::kFp8 || matrix.format == Format::kBf16, int(matrix.format));
  CHECK(matrix.cols == cols, matrix.cols, cols);
  CHECK(cols > 0 && cols % 8 == 0 && cols <= kDecodeColumnsMax, cols);
  CHECK(matrix.rows > 0 && matrix.stride == stride_of(cols), matrix.rows, matrix.stride);
  CHECK(matrix.data != nullptr && (matrix.scales != nullptr) == (matrix.format == Format::kFp8),
        "weights and, for FP8 only, scales");
}
void check_tokens(int tokens) {
  CHECK(tokens >= 1 && tokens <= kStepTokensMax, tokens);
}

// Shared memory of a kernel over the hidden columns: rings, then scratch, of each warp.
int hidden_shared_bytes(const DecodeShape& shape, int tokens, int depth) {
  return warps_of(shape.hidden, kHiddenSpan) *
         (depth * kRingSlotBytes + scratch_bytes(arch_constant(shape), tokens));
}
int hidden_shared_bytes(const DecodeShape& shape, int tokens) {
  return hidden_shared_bytes(shape, tokens, ring_depth(arch_constant(shape), tokens));
}

template <typename Params>
void start(gpu::Stream& stream, const DecodeShape& shape, const gpu::Kernel& kernel, int blocks,
           int threads, int shared_bytes, const Params& params) {
  gpu::launch(stream, kernel,
              {.grid = along_x(blocks),
               .block = along_x(threads),
               .shared_bytes = shared_bytes,
               .programmatic = shape.arch >= 90},
              params);
}

ByTokens find_by_tokens(const gpu::KernelSet& kernels, const std::string& name) {
  return {kernels.find(name + "_1"), kernels.find(name + "_8"), kernels.find(name + "_16")};
}

// Gives each target its own blocks, so that every block streams about the same bytes and there are
// no more blocks than multiprocessors (or one a unit of work, if there are fewer units). A unit is
// a tile a group; a BF16 tile counts twice.
int share_blocks(const DecodeShape& shape, NormProjectParams& params) {
  const int groups = groups_of(shape.hidden, kHiddenSpan);
  const auto units = [&](const ProjectTarget& target) {
    return divide_up(tiles_of(target.weight.rows), groups) * element_bytes(target.weight.format);
  };
  for (int per_block = 1;; ++per_block) {
    int blocks = 0;
    for (int i = 0; i < params.target_count; ++i) {
      ProjectTarget& target = params.targets[i];
      const int weight = element_bytes(target.weight.format);
      target.first_block = blocks;
      target.blocks = divide_up(units(target) / weight, std::max(1, per_block / weight));
      blocks += target.blocks;
    }
    if (blocks <= std::max(shape.multiprocessors, params.target_count)) return blocks;
  }
}

}  // namespace

DecodeKernels find_decode_kernels(const gpu::KernelSet& kernels, const DecodeShape& shape) {
  CHECK(shape.hidden > 0 && shape.hidden % 8 == 0 && shape.hidden <= kDecodeColumnsMax,
        shape.hidden);
  CHECK(shape.multiprocessors > 0 && shape.arch >= 89, shape.multiprocessors, shape.arch);
  return {.shape = shape,
          .embed_step = kernels.find("embed_step"),
          .greedy_step = kernels.find("greedy_step"),
          .norm_project = find_by_tokens(kernels, "norm_project"),
          .project_add = find_by_tokens(kernels, "project_add"),
          .norm_route = find_by_tokens(kernels, "norm_route"),
          .experts_gate_up = find_by_tokens(kernels, "experts_gate_up"),
          .experts_down = find_by_tokens(kernels, "experts_down"),
          .norm_head = find_by_tokens(kernels, "norm_head")};
}

// 4 hidden bytes a token. A block a token: nothing to gain from more.
void embed_step(gpu::Stream& stream, const DecodeKernels& kernels, const EmbedParams& params) {
  check_tokens(params.tokens);
  CHECK(params.table.format == Format::kBf16 && params.table.cols == kernels.shape.hidden,
        int(params.table.format), params.table.cols);
  start(stream, kernels.shape, kernels.embed_step, params.tokens, 128, 0, params);
}

// The matrices once (35B delta layer: 25.4 MB, 50 MFLOP a token) and in each block 2 hidden bytes a
// token. One block a multiprocessor: it holds 96 KiB in flight (sm_90), and the other half of the
// multiprocessor is the next kernel's.
void norm_project(gpu::Stream& stream, const DecodeKernels& kernels,
                  const NormProjectParams& params) {
  check_tokens(params.tokens);
  CHECK(params.target_count >= 1 && params.target_count <= kProjectTargetsMax, params.target_count);
  for (int i = 0; i < params.target_count; ++i) {
    check_matrix(params.targets[i].weight, kernels.shape.hidden);
  }
  NormProjectParams shared = params;
  const int blocks = share_blocks(kernels.shape, shared);
  start(stream, kernels.shape, kernels.norm_project.of(params.tokens), blocks,
        warps_of(kernels.shape.hidden, kHiddenSpan) * 32,
        hidden_shared_bytes(kernels.shape, params.tokens), shared);
}

// The matrix once (35B: 8.4 MB, 17 MFLOP a token). A tile a group of warps, all of it in flight at
// once: 2048 rows make 128 blocks.
void project_add(gpu::Stream& stream, const DecodeKernels& kernels,
                 const ProjectAddParams& params) {
  check_tokens(params.tokens);
  check_matrix(params.weight, params.weight.cols);
  CHECK(params.weight.rows == kernels.shape.hidden, params.weight.rows, kernels.shape.hidden);
  const int warps = warps_of(params.weight.cols, kAddSpan);
  const int depth =
      add_ring_depth(arch_constant(kernels.shape), params.weight.format == Format::kFp8);
  const int scratch = add_scratch_bytes(params.tokens);
  start(stream, kernels.shape, kernels.project_add.of(params.tokens),
        divide_up(tiles_of(params.weight.rows), groups_of(params.weight.cols, kAddSpan)),
        warps * 32, warps * (depth * kRingSlotBytes + scratch), params);
}

// Router, shared gate and shared gate/up once (35B: 1.05 + 2.1 MB, 6 MFLOP a token). A tile (or a
// pair of tiles) a block: all of it is in flight before the previous kernel ends.
void norm_route(gpu::Stream& stream, const DecodeKernels& kernels, const NormRouteParams& params) {
  const DecodeShape& shape = kernels.shape;
  check_tokens(params.tokens);
  check_matrix(params.router, shape.hidden);
  CHECK(params.router.rows == shape.experts && shape.experts <= kRoutedExpertsMax,
        params.router.rows, shape.experts);
  const int groups = groups_of(shape.hidden, kHiddenSpan);
  int blocks = divide_up(tiles_of(shape.experts), groups);
  if (shape.shared_dim > 0) {
    check_matrix(params.shared_gate, shape.hidden);
    CHECK(params.shared.base != nullptr && params.shared.width == shape.shared_dim,
          params.shared.width, shape.shared_dim);
    blocks += 1 + divide_up(tiles_of(shape.shared_dim), groups);
  }
  start(stream, shape, kernels.norm_route.of(params.tokens), blocks,
        warps_of(shape.hidden, kHiddenSpan) * 32, hidden_shared_bytes(shape, params.tokens),
        params);
}

// Gate and up of each distinct expert once (35B, one token: 16.8 MB, 34 MFLOP). Units of work are
// 16 rows of gate and of up; blocks take them in turn, because how many there are is known on the
// device only. One block a multiprocessor, fewer if that makes shares equal.
void experts_gate_up(gpu::Stream& stream, const DecodeKernels& kernels,
                     const ExpertsParams& params) {
  const DecodeShape& shape = kernels.shape;
  check_tokens(params.tokens);
  CHECK(params.experts.width == shape.expert_dim, params.experts.width, shape.expert_dim);
  const int distinct = std::min(params.tokens * shape.top_k, shape.experts);
  const int units =
      divide_up(distinct * tiles_of(shape.expert_dim), groups_of(shape.hidden, kHiddenSpan));
  const int blocks = divide_up(units, divide_up(units, shape.multiprocessors));
  start(stream, shape, kernels.experts_gate_up.of(params.tokens), blocks,
        warps_of(shape.hidden, kHiddenSpan) * 32, hidden_shared_bytes(shape, params.tokens),
        params);
}

// Down of each distinct expert and of the shared one once (35B, one token: 9.4 MB, 19 MFLOP). A
// block owns 16 rows of the residual and reads them of every expert, so that the weighted sum needs
// no other block.
void experts_down(gpu::Stream& stream, const DecodeKernels& kernels, const ExpertsParams& params) {
  const DecodeShape& shape = kernels.shape;
  check_tokens(params.tokens);
  CHECK(params.shared.base == nullptr || params.shared.width == shape.shared_dim,
        params.shared.width, shape.shared_dim);
  const int warps = down_warps(arch_constant(shape), params.tokens, shape.top_k, shape.expert_dim,
                               shape.shared_dim);
  start(stream, shape, kernels.experts_down.of(params.tokens), tiles_of(shape.hidden), warps * 32,
        down_shared_bytes(arch_constant(shape), params.tokens, shape.top_k, shape.experts,
                          shape.expert_dim, shape.shared_dim),
        params);
}

int head_candidates(const DecodeKernels& kernels) {
  return kernels.shape.multiprocessors;
}

// The head once (35B BF16: 1017 MB, 1.0 GFLOP a row).
void norm_head(gpu::Stream& stream, const DecodeKernels& kernels, const NormHeadParams& params) {
  check_tokens(params.tokens);
  check_matrix(params.head, kernels.shape.hidden);
  CHECK(params.rows >= 1 && params.rows <= params.tokens, params.rows, params.tokens);
  start(stream, kernels.shape, kernels.norm_head.of(params.rows), head_candidates(kernels),
        warps_of(kernels.shape.hidden, kHiddenSpan) * 32,
        hidden_shared_bytes(kernels.shape, params.rows,
                            head_ring_depth(arch_constant(kernels.shape), params.rows)),
        params);
}

// 8 bytes a candidate; one warp a row.
void greedy_step(gpu::Stream& stream, const DecodeKernels& kernels, const GreedyParams& params) {
  check_tokens(params.rows);
  CHECK(params.sampleable.limit > 0, params.sampleable.limit);
  CHECK(params.ring == nullptr || (params.step != nullptr && params.ring_entries > 0),
        params.ring_entries);
  start(stream, kernels.shape, kernels.greedy_step, 1, 512, 0, params);
}

}  // namespace moray::cuda
