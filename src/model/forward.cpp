// The forward pass: a flat list of ops over named buffers.
//
//   embed -> [norm -> mixer -> +residual -> norm -> experts -> +residual] x layers -> norm -> head
//
// Invariant: no allocation and no decision that depends on how a prompt was cut into calls, hence
// bit-equal results for any cut. Shapes of the buffers are in workspace.h, formulas in ops.h.
#include <cstring>

#include "src/model/layer.h"

namespace moray {
namespace {

void norm(const Pass& pass, const float* x, std::span<const float> weight, int64_t rows,
          float* out) {
  const ModelConfig& c = pass.weights.config;
  cpu::rms_norm(pass.context,
                {.x = x,
                 .weight = weight.data(),
                 .rows = rows,
                 .dim = c.hidden,
                 .eps = static_cast<float>(c.rms_norm_eps),
                 .kind = c.zero_centred_norms ? NormKind::kZeroCentred : NormKind::kPlain,
                 .precision = pass.precision,
                 .out = out});
}

// Several projections of x, each stored densely.
void project(const Pass& pass, const float* x, std::span<const LinearTarget> targets) {
  cpu::linear(pass.context, {.x = x,
                             .tokens = pass.tokens,
                             .k = targets.front().weight.cols,
                             .targets = targets,
                             .output = LinearArgs::Output::kStore,
                             .precision = pass.precision,
                             .workspace = pass.workspace.op});
}

void project_into_residual(const Pass& pass, const float* x, const MatrixView& weight) {
  const LinearTarget target{weight, pass.workspace.residual.data(), weight.rows};
  cpu::linear(pass.context, {.x = x,
                             .tokens = pass.tokens,
                             .k = weight.cols,
                             .targets = {&target, 1},
                             .output = LinearArgs::Output::kAddToResidual,
                             .precision = pass.precision,
                             .workspace = pass.workspace.op});
}

void mix_delta(const Pass& pass, const DeltaWeights& w, size_t cache) {
  Workspace::Impl& s = pass.workspace;
  const LinearTarget inputs[] = {{w.qkv, s.mixed_in.data(), w.qkv.rows},
                                 {w.z, s.z.data(), w.z.rows},
                                 {w.b, s.b.data(), w.b.rows},
                                 {w.a, s.a.data(), w.a.rows}};
  project(pass, s.x.data(), inputs);
  GdnArgs args = delta_arguments(pass.weights.config);
  args.qkv = s.mixed_in.data();
  args.z = s.z.data();
  args.b = s.b.data();
  args.a = s.a.data();
  args.tokens = pass.tokens;
  args.position = pass.position;
  args.conv_weight = w.conv.data();
  args.a_log = w.a_log.data();
  args.dt_bias = w.dt_bias.data();
  args.norm_weight = w.norm.data();
  args.precision = pass.precision;
  args.state = pass.state.delta_view(cache);
  args.out = s.mixed_out.data();
  args.workspace = s.op;
  cpu::gdn(pass.context, args);
}

void mix_attention(const Pass& pass, const AttentionWeights& w, size_t cache) {
  Workspace::Impl& s = pass.workspace;
  const LinearTarget inputs[] = {
      {w.q, s.mixed_in.data(), w.q.rows}, {w.k, s.z.data(), w.k.rows}, {w.v, s.b.data(), w.v.rows}};
  project(pass, s.x.data(), inputs);
  AttentionArgs args = attention_arguments(pass.weights.config);
  args.q_gate = s.mixed_in.data();
  args.k = s.z.data();
  args.v = s.b.data();
  args.tokens = pass.tokens;
  args.position = pass.position;
  args.q_norm = w.q_norm.data();
  args.k_norm = w.k_norm.data();
  args.inv_freq = pass.weights.inv_freq.data();
  args.rope_scale = pass.weights.rope_scale;
  args.precision = pass.precision;
  args.cache = pass.state.kv_view(cache);
  args.out = s.mixed_out.data();
  args.workspace = s.op;
  cpu::attention(pass.context, args);
}

void add_experts(const Pass& pass, const MoeWeights& w) {
  const ModelConfig& c = pass.weights.config;
  Workspace::Impl& s = pass.workspace;
  cpu::route(pass.context, {.x = s.x.data(),
                            .tokens = pass.tokens,
                            .gate = w.gate,
                            .shared_gate = w.shared_gate,
                            .top_k = c.top_k,
                            .normalise = c.normalise_top_k,
                            .expert_ids = s.expert_ids.data(),
                            .expert_weights = s.expert_weights.data(),
                            .shared_weight = s.shared_weight.data(),
                            .workspace = s.op});
  cpu::moe(pass.context, {.x = s.x.data(),
                          .tokens = pass.tokens,
                          .hidden = c.hidden,
                          .experts = w.experts,
                          .shared = w.shared,
                          .top_k = c.top_k,
                          .expert_ids = s.expert_ids.data(),
                          .expert_weights = s.expert_weights.data(),
                          .shared_weight = s.shared_weight.data(),
                          .precision = pass.precision,
                          .residual = s.residual.data(),
                          .workspace = s.op});
}

// Moves the last `rows` of `tokens` rows to the front.
void keep_last_rows(std::span<float> buffer, int64_t tokens, int64_t rows, int64_t width) {
  std::memmove(buffer.data(), buffer.data() + (tokens - rows) * width,
               static_cast<size_t>(rows * width) * sizeof(float));
}

}  // namespace

void run_layer(const Pass& pass, const LayerWeights& layer, size_t cache, int64_t rows_kept) {
  Workspace::Impl& s = pass.workspace;
  const bool is_delta = layer.kind == LayerKind::kGatedDelta;
  const MatrixView& out = is_delta ? layer.delta.out : layer.attention.o;
  norm(pass, s.residual.data(), layer.input_norm, pass.tokens, s.x.data());
  if (is_delta) {
    mix_delta(pass, layer.delta, cache);
  } else {
    mix_attention(pass, layer.attention, cache);
  }
  Pass rest = pass;
  if (rows_kept < pass.tokens) {
    keep_last_rows(s.residual, pass.tokens, rows_kept, out.rows);
    keep_last_rows(s.mixed_out, pass.tokens, rows_kept, out.cols);
    rest.tokens = rows_kept;
  }
  project_into_residual(rest, s.mixed_out.data(), out);
  norm(rest, s.residual.data(), layer.post_norm, rest.tokens, s.x.data());
  add_experts(rest, layer.moe);
}

void run_head(const Pass& pass, std::span<const float> weight, const HeadOutputs& outputs) {
  const int64_t width = pass.weights.config.hidden;
  Workspace::Impl& s = pass.workspace;
  float* normed = outputs.hidden != nullptr ? outputs.hidden : s.x.data();
  norm(pass, s.residual.data(), weight, outputs.rows, normed);
  if (outputs.logit_rows == 0) return;
  const LinearTarget target{pass.weights.head, outputs.logits, pass.weights.head.rows};
  cpu::linear(pass.context, {.x = normed + (outputs.rows - outputs.logit_rows) * width,
                             .tokens = outputs.logit_rows,
                             .k = width,
                             .targets = {&target, 1},
                             .output = LinearArgs::Output::kStore,
                             .precision = pass.precision,
                             .workspace = s.op});
}

void forward(const Weights& weights, const cpu::Context& context, Workspace& workspace,
             const ForwardArgs& args) {
  const auto tokens = static_cast<int64_t>(args.tokens.size());
  State::Impl& state = args.state->impl();
  CHECK(tokens > 0 && tokens <= workspace.block_tokens(), tokens, workspace.block_tokens());
  CHECK(state.position + tokens <= state.capacity, state.position, tokens, state.capacity);
  CHECK(state.capacity <= workspace.impl().capacity, state.capacity, workspace.impl().capacity);
  CHECK(args.precision == state.precision);
  CHECK(args.logit_rows >= 0 && args.logit_rows <= tokens, args.logit_rows, tokens);
  CHECK(args.logit_rows == 0 || args.logits != nullptr);
  const Pass pass{weights, context,        workspace.impl(), state,
                  tokens,  state.position, args.precision};
  cpu::embed(
      context,
      {.table = weights.embedding, .tokens = args.tokens, .out = pass.workspace.residual.data()});
  const HeadOutputs outputs{args.hidden != nullptr ? tokens : args.logit_rows, args.logit_rows,
                            args.logits, args.hidden};
  const bool is_watched = args.on_routing != nullptr && *args.on_routing;
  size_t kv_caches = 0;
  size_t delta_states = 0;
  for (const LayerWeights& layer : weights.layers) {
    const bool is_delta = layer.kind == LayerKind::kGatedDelta;
    const bool is_last = &layer == &weights.layers.back();
    run_layer(pass, layer, is_delta ? delta_states++ : kv_caches++,
              is_last && !is_watched ? outputs.rows : tokens);
    if (!is_watched) continue;
    const auto choices = static_cast<size_t>(tokens * weights.config.top_k);
    (*args.on_routing)(&layer - weights.layers.data(),
                       std::span(pass.workspace.expert_ids).first(choices),
                       std::span(pass.workspace.expert_weights).first(choices));
  }
  if (is_watched) {
    keep_last_rows(pass.workspace.residual, tokens, outputs.rows, weights.config.hidden);
  }
  run_head(pass, weights.final_norm, outputs);
  state.position += tokens;
}

}  // namespace moray
