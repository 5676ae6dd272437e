#include "src/model/gpu_step.h"

namespace moray {

void GpuStep::embed(int tokens) const {
  cuda::EmbedParams params{};
  params.step = buffers_.step;
  params.table = model_.weights.embedding;
  params.residual = buffers_.residual;
  params.tokens = tokens;
  cuda::embed_step(stream_, model_.kernels.decode, params);
}

void GpuStep::layers(int tokens) const {
  size_t kv_caches = 0;
  size_t delta_states = 0;
  for (const GpuLayer& layer : model_.weights.layers) {
    const bool is_delta = layer.kind == LayerKind::kGatedDelta;
    project_inputs(layer, tokens);
    mix(layer, is_delta ? delta_states++ : kv_caches++, tokens);
    project_out(layer, buffers_.mixed_out, buffers_.residual, tokens);
    add_experts(layer, buffers_.residual, tokens);
  }
}

void GpuStep::project_inputs(const GpuLayer& layer, int tokens) const {
  cuda::NormProjectParams params{};
  params.residual = buffers_.residual;
  params.norm_weight = layer.input_norm;
  params.tokens = tokens;
  const auto add = [&params](const cuda::Matrix& weight, float* y) {
    cuda::ProjectTarget& target = params.targets[params.target_count++];
    target.weight = weight;
    target.y = y;
    target.y_stride = weight.rows;
  };
  if (layer.kind == LayerKind::kGatedDelta) {
    add(layer.delta.qkv, buffers_.mixed_in);
    add(layer.delta.z, buffers_.z);
    add(layer.delta.b, buffers_.b);
    add(layer.delta.a, buffers_.a);
  } else {
    add(layer.attention.q, buffers_.mixed_in);
    add(layer.attention.k, buffers_.z);
    add(layer.attention.v, buffers_.b);
  }
  cuda::norm_project(stream_, model_.kernels.decode, params);
}

void GpuStep::mix(const GpuLayer& layer, size_t cache, int tokens) const {
  if (layer.kind == LayerKind::kGatedDelta) {
    cuda::DeltaStepParams params{};
    params.step = buffers_.step;
    params.qkv = buffers_.mixed_in;
    params.z = buffers_.z;
    params.b = buffers_.b;
    params.a = buffers_.a;
    params.weights = layer.delta.vectors;
    params.state = state_.delta(cache);
    params.arrivals = buffers_.delta_arrivals;
    params.out = buffers_.mixed_out;
    params.tokens = tokens;
    cuda::delta_step(stream_, model_.kernels.delta, params, true);
    return;
  }
  cuda::AttentionStepParams params{};
  params.step = buffers_.step;
  params.q_gate = buffers_.mixed_in;
  params.k = buffers_.z;
  params.v = buffers_.b;
  params.weights = layer.attention.vectors;
  params.cache = state_.kv(cache);
  params.partials = buffers_.partials;
  params.arrivals = buffers_.attention_arrivals;
  params.out = buffers_.mixed_out;
  cuda::attention_step(stream_, model_.kernels.attention, tokens, params, true);
}

void GpuStep::project_out(const GpuLayer& layer, const cuda::Bfloat16* mixed,
                          cuda::Bfloat16* residual, int tokens) const {
  cuda::ProjectAddParams params{};
  params.x = mixed;
  params.weight = layer.kind == LayerKind::kGatedDelta ? layer.delta.out : layer.attention.out;
  params.residual = residual;
  params.tokens = tokens;
  cuda::project_add(stream_, model_.kernels.decode, params);
}

void GpuStep::route(const GpuLayer& layer, const cuda::Bfloat16* residual, int tokens) const {
  cuda::NormRouteParams params{};
  params.residual = residual;
  params.norm_weight = layer.post_norm;
  params.router = layer.router;
  params.shared_gate = layer.shared_gate;
  params.shared = layer.shared;
  params.routing = buffers_.routing;
  params.tokens = tokens;
  cuda::norm_route(stream_, model_.kernels.decode, params);
}

void GpuStep::gate_up(const GpuLayer& layer, cuda::Bfloat16* residual, int tokens) const {
  cuda::experts_gate_up(stream_, model_.kernels.decode,
                        {layer.experts, layer.shared, buffers_.routing, residual, tokens});
}

void GpuStep::down(const GpuLayer& layer, cuda::Bfloat16* residual, int tokens) const {
  cuda::experts_down(stream_, model_.kernels.decode,
                     {layer.experts, layer.shared, buffers_.routing, residual, tokens});
}

void GpuStep::add_experts(const GpuLayer& layer, cuda::Bfloat16* residual, int tokens) const {
  route(layer, residual, tokens);
  gate_up(layer, residual, tokens);
  down(layer, residual, tokens);
}

void GpuStep::head(const cuda::Bfloat16* residual, int tokens, int rows,
                   const cuda::Sampleable& sampleable) const {
  cuda::NormHeadParams params{};
  params.residual = residual;
  params.norm_weight = model_.weights.final_norm;
  params.head = model_.weights.head;
  params.sampleable = sampleable;
  params.logits = buffers_.logits;
  params.candidates = buffers_.candidates;
  params.tokens = tokens;
  params.rows = rows;
  cuda::norm_head(stream_, model_.kernels.decode, params);
}

void GpuStep::pick(const cuda::Sampleable& sampleable, unsigned long long* ring,
                   int ring_entries) const {
  cuda::GreedyParams params{};
  params.candidates = buffers_.candidates;
  params.candidate_count = cuda::head_candidates(model_.kernels.decode);
  params.sampleable = sampleable;
  params.chosen = buffers_.chosen;
  params.step = buffers_.step;
  params.ring = ring;
  params.ring_entries = ring_entries;
  params.rows = 1;
  cuda::greedy_step(stream_, model_.kernels.decode, params);
}

}  // namespace moray
