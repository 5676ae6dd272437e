#include "src/model/gpu_block.h"

namespace moray {
namespace {

int to_int(int64_t value) {
  return static_cast<int>(value);
}

int round_up_8(int64_t value) {
  return to_int((value + 7) / 8 * 8);
}

}  // namespace

void GpuBlock::run(int tokens, int rows_kept) const {
  cuda::embed_rows(stream_, model_.kernels.prefill,
                   {static_cast<const cuda::Bf16*>(model_.weights.embedding.data), buffers_.tokens,
                    tokens, model_.weights.embedding.stride, buffers_.residual});
  size_t kv_caches = 0;
  size_t delta_states = 0;
  for (const GpuLayer& layer : model_.weights.layers) {
    const bool is_delta = layer.kind == LayerKind::kGatedDelta;
    norm(layer.input_norm, tokens);
    project_inputs(layer, tokens);
    mix(layer, is_delta ? delta_states++ : kv_caches++, tokens);
    if (&layer == &model_.weights.layers.back() && rows_kept <= cuda::kStepTokensMax) {
      finish_rows(layer, tokens, rows_kept);
      return;
    }
    project_out(layer, tokens);
    add_experts(layer, tokens);
  }
}

cuda::QuantisedRows GpuBlock::rows_of(unsigned char* codes, float* scales, int rows,
                                      int cols) const {
  return {codes, scales, rows, cols, (rows + 3) / 4 * 4};
}

// x (and, for W8A8, its codes) = norm(residual).
void GpuBlock::norm(const float* weight, int tokens) const {
  cuda::NormRowsParams params{};
  params.x = buffers_.residual;
  params.weight = weight;
  params.count = tokens;
  params.out = buffers_.x;
  params.out_stride = to_int(model_.config.hidden);
  if (use_w8a8_) {
    params.quantised =
        rows_of(buffers_.x_codes, buffers_.x_scales, tokens, to_int(model_.config.hidden));
  }
  cuda::norm_rows(stream_, model_.kernels.prefill, params);
}

void GpuBlock::project_inputs(const GpuLayer& layer, int tokens) const {
  const int hidden = to_int(model_.config.hidden);
  cuda::ProjectRowsParams rows{};
  rows.x = buffers_.x;
  rows.x_stride = hidden;
  rows.tokens = tokens;
  cuda::W8a8Dense codes{};
  codes.tokens = tokens;
  const auto add_rows = [&](const cuda::Matrix& weight, void* out, cuda::RowsOutput output) {
    rows.targets[rows.target_count++] = {weight, out, weight.rows, output, 0};
  };
  const auto add = [&](const cuda::Matrix& weight, cuda::Bf16* out) {
    if (!use_w8a8_) return add_rows(weight, out, cuda::RowsOutput::kBf16);
    codes.targets[codes.target_count++] = {weight, out, weight.rows, cuda::W8a8Output::kBf16};
  };
  if (layer.kind == LayerKind::kGatedDelta) {
    add(layer.delta.qkv, buffers_.mixed_in);
    add(layer.delta.z, buffers_.z);
    add_rows(layer.delta.b, buffers_.b, cuda::RowsOutput::kF32);
    add_rows(layer.delta.a, buffers_.a, cuda::RowsOutput::kF32);
  } else {
    add(layer.attention.q, buffers_.mixed_in);
    add(layer.attention.k, buffers_.z);
    add(layer.attention.v, buffers_.v);
  }
  if (codes.target_count > 0) {
    codes.x = rows_of(buffers_.x_codes, buffers_.x_scales, tokens, hidden);
    cuda::w8a8_dense(stream_, model_.kernels.w8a8, codes);
  }
  if (rows.target_count > 0) cuda::project_rows(stream_, model_.kernels.prefill, rows);
}

void GpuBlock::mix(const GpuLayer& layer, size_t cache, int tokens) const {
  if (layer.kind == LayerKind::kGatedDelta) {
    cuda::DeltaPrefillParams params{};
    params.qkv = buffers_.mixed_in;
    params.z = buffers_.z;
    params.b = buffers_.b;
    params.a = buffers_.a;
    params.weights = layer.delta.vectors;
    params.state = state_.delta(cache);
    params.workspace = buffers_.delta_workspace;
    params.out = buffers_.mixed_out;
    params.position = to_int(state_.position());
    params.tokens = tokens;
    cuda::delta_prefill(stream_, model_.kernels.delta, params);
    return;
  }
  cuda::AttentionPrefillParams params{};
  params.q_gate = buffers_.mixed_in;
  params.k = buffers_.z;
  params.v = buffers_.v;
  params.weights = layer.attention.vectors;
  params.cache = state_.kv(cache);
  params.unpacked = state_.unpacked_kv();
  params.position = to_int(state_.position());
  params.tokens = tokens;
  params.out = buffers_.mixed_out;
  cuda::attention_prefill(stream_, model_.kernels.attention, params);
}

void GpuBlock::project_out(const GpuLayer& layer, int tokens) const {
  const cuda::Matrix& weight =
      layer.kind == LayerKind::kGatedDelta ? layer.delta.out : layer.attention.out;
  if (!use_w8a8_) {
    cuda::ProjectRowsParams params{};
    params.x = buffers_.mixed_out;
    params.x_stride = weight.cols;
    params.tokens = tokens;
    params.target_count = 1;
    params.targets[0] = {weight, buffers_.residual, weight.rows, cuda::RowsOutput::kAddBf16, 0};
    cuda::project_rows(stream_, model_.kernels.prefill, params);
    return;
  }
  cuda::W8a8Dense params{};
  params.x = rows_of(buffers_.mixed_codes, buffers_.mixed_scales, tokens, weight.cols);
  cuda::quantise_rows(stream_, model_.kernels.prefill,
                      {buffers_.mixed_out, weight.cols, tokens, params.x});
  params.tokens = tokens;
  params.target_count = 1;
  params.targets[0] = {weight, buffers_.residual, weight.rows, cuda::W8a8Output::kAddBf16};
  cuda::w8a8_dense(stream_, model_.kernels.w8a8, params);
}

cuda::ExpertPlan GpuBlock::route(const GpuLayer& layer, int tokens) const {
  const ModelConfig& c = model_.config;
  cuda::ProjectRowsParams logits{};
  logits.x = buffers_.x;
  logits.x_stride = to_int(c.hidden);
  logits.tokens = tokens;
  logits.targets[logits.target_count++] = {layer.router, buffers_.router_logits, layer.router.rows,
                                           cuda::RowsOutput::kF32, 0};
  const bool has_shared = layer.shared_gate.data != nullptr;
  if (has_shared) {
    logits.targets[logits.target_count++] = {layer.shared_gate, buffers_.shared_logits, 1,
                                             cuda::RowsOutput::kF32, 0};
  }
  cuda::project_rows(stream_, model_.kernels.prefill, logits);
  const cuda::PrefillShape& shape = model_.kernels.prefill.shape;
  const int tile_rows = use_w8a8_ ? cuda::kW8a8TileRows : cuda::expert_tile_rows(shape, tokens);
  cuda::RouteRowsParams params{};
  params.logits = buffers_.router_logits;
  params.shared_logits = has_shared ? buffers_.shared_logits : nullptr;
  params.logits_stride = to_int(c.num_experts);
  params.shared_stride = 1;
  params.tokens = tokens;
  params.plan = cuda::expert_plan_at(shape, tokens, tile_rows, buffers_.plan);
  cuda::route_rows(stream_, model_.kernels.prefill, params);
  return params.plan;
}

void GpuBlock::add_experts(const GpuLayer& layer, int tokens) const {
  norm(layer.post_norm, tokens);
  const cuda::ExpertPlan plan = route(layer, tokens);
  if (use_w8a8_) {
    run_experts_w8a8(layer, plan, tokens);
  } else {
    run_experts(layer, plan, tokens);
  }
  const bool has_shared = layer.shared.base != nullptr;
  cuda::combine_rows(stream_, model_.kernels.prefill,
                     {buffers_.expert_out, has_shared ? buffers_.shared_out : nullptr,
                      plan.expert_weights, plan.shared_weight, tokens, buffers_.residual});
}

void GpuBlock::run_experts(const GpuLayer& layer, const cuda::ExpertPlan& plan, int tokens) const {
  const ModelConfig& c = model_.config;
  cuda::GateUpRowsParams up{};
  up.x = buffers_.x;
  up.x_stride = to_int(c.hidden);
  up.tokens = tokens;
  up.top_k = to_int(c.top_k);
  up.experts = layer.experts;
  up.shared = layer.shared;
  up.plan = plan;
  up.inner = buffers_.inner;
  up.shared_inner = buffers_.shared_inner;
  up.inner_stride = round_up_8(c.expert_dim);
  up.shared_stride = round_up_8(c.shared_expert_dim);
  cuda::gate_up_rows(stream_, model_.kernels.prefill, up);
  cuda::DownRowsParams down{};
  down.inner = buffers_.inner;
  down.shared_inner = buffers_.shared_inner;
  down.inner_stride = up.inner_stride;
  down.shared_stride = up.shared_stride;
  down.tokens = tokens;
  down.top_k = up.top_k;
  down.experts = layer.experts;
  down.shared = layer.shared;
  down.plan = plan;
  down.out = buffers_.expert_out;
  down.shared_out = buffers_.shared_out;
  cuda::down_rows(stream_, model_.kernels.prefill, down);
}

void GpuBlock::run_experts_w8a8(const GpuLayer& layer, const cuda::ExpertPlan& plan,
                                int tokens) const {
  const ModelConfig& c = model_.config;
  const int hidden = to_int(c.hidden);
  const int pairs = tokens * to_int(c.top_k);
  const cuda::QuantisedRows x = rows_of(buffers_.x_codes, buffers_.x_scales, tokens, hidden);
  const cuda::QuantisedRows sorted =
      rows_of(buffers_.sorted_codes, buffers_.sorted_scales, pairs, hidden);
  cuda::gather_rows(stream_, model_.kernels.prefill,
                    {x, plan.sorted, pairs, to_int(c.top_k), sorted});
  cuda::W8a8GateUp up{};
  up.x = sorted;
  up.experts = layer.experts;
  up.expert_count = to_int(c.num_experts);
  up.tiles = plan.tiles;
  up.tile_count = plan.tile_count;
  up.tokens = pairs;
  up.inner = rows_of(buffers_.inner_codes, buffers_.inner_scales, pairs, to_int(c.expert_dim));
  cuda::w8a8_gate_up(stream_, model_.kernels.w8a8, up);
  cuda::W8a8Down down{};
  down.inner = up.inner;
  down.experts = layer.experts;
  down.expert_count = up.expert_count;
  down.tiles = plan.tiles;
  down.tile_count = plan.tile_count;
  down.tokens = pairs;
  down.out_row = plan.sorted;
  down.out = buffers_.expert_out;
  down.columns = hidden;
  down.out_stride = hidden;
  cuda::w8a8_down(stream_, model_.kernels.w8a8, down);
  if (layer.shared.base == nullptr) return;
  up.x = x;
  up.experts = layer.shared;
  up.expert_count = 1;
  up.tiles = nullptr;
  up.tile_count = nullptr;
  up.tokens = tokens;
  up.inner =
      rows_of(buffers_.shared_codes, buffers_.shared_scales, tokens, to_int(c.shared_expert_dim));
  cuda::w8a8_gate_up(stream_, model_.kernels.w8a8, up);
  down.inner = up.inner;
  down.experts = layer.shared;
  down.expert_count = 1;
  down.tiles = nullptr;
  down.tile_count = nullptr;
  down.tokens = tokens;
  down.out_row = nullptr;
  down.out = buffers_.shared_out;
  cuda::w8a8_down(stream_, model_.kernels.w8a8, down);
}

void GpuBlock::finish_rows(const GpuLayer& layer, int tokens, int rows) const {
  if (rows == 0) return;
  const bool is_delta = layer.kind == LayerKind::kGatedDelta;
  const int width = is_delta ? layer.delta.out.cols : layer.attention.out.cols;
  const int64_t first = tokens - rows;
  cuda::Bfloat16* residual = buffers_.residual + first * model_.config.hidden;
  step_.project_out(layer, buffers_.mixed_out + first * width, residual, rows);
  step_.add_experts(layer, residual, rows);
}

}  // namespace moray
