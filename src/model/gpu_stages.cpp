// Timing the kernels of a step one by one, and a plain read: what `moray bench` shows beside
// speeds.
//
// Each stage is a graph of that kernel alone over all layers that have it, replayed several times,
// so that successive launches read different weights. Times are of the whole replay over its
// launches: what a launch costs with others of its kind around it.
#include <algorithm>
#include <functional>
#include <optional>

#include "src/kernels/cuda/read_speed.h"
#include "src/model/gpu_forward.h"
#include "src/model/gpu_layout.h"

namespace moray {
namespace {

constexpr int kReplays = 20;
constexpr int kReadPasses = 21;
constexpr int kReadThreads = 512;
constexpr int kReadBlocksAMultiprocessor = 4;

// What one launch must move and compute.
struct Cost {
  int64_t bytes = 0;
  double operations = 0;

  void add(const cuda::Matrix& m) {
    if (m.data == nullptr) return;
    add_products(m.rows, m.cols, m.format, 1);
  }
  void add_products(int64_t rows, int64_t cols, cuda::Format format, int64_t count) {
    const int64_t blocks =
        (rows + kScaleBlock - 1) / kScaleBlock * ((cols + kScaleBlock - 1) / kScaleBlock);
    bytes += count * rows * cols * element_bytes(format);
    if (format == cuda::Format::kFp8) bytes += count * blocks * 4;
    operations += 2.0 * static_cast<double>(count * rows * cols);
  }
  void add_expert_inputs(const cuda::ExpertRecords& records, int64_t hidden, int64_t count) {
    if (records.base != nullptr) add_products(records.width, hidden, records.format, 2 * count);
  }
  void add_expert_outputs(const cuda::ExpertRecords& records, int64_t hidden, int64_t count) {
    if (records.base != nullptr) add_products(hidden, records.width, records.format, count);
  }
};

// A kernel of a step. `enqueue` gets a layer and its index among those of its kind.
struct Stage {
  const char* name;
  std::optional<LayerKind> kind;  // layers that have it; nullopt: all
  std::function<Cost(const GpuLayer&)> cost_of;
  std::function<void(const GpuLayer&, size_t)> enqueue;
};

Cost inputs_cost(const GpuLayer& layer) {
  Cost cost;
  for (const cuda::Matrix* m : {&layer.delta.qkv, &layer.delta.z, &layer.delta.b, &layer.delta.a,
                                &layer.attention.q, &layer.attention.k, &layer.attention.v}) {
    cost.add(*m);
  }
  return cost;
}

Cost out_cost(const GpuLayer& layer) {
  Cost cost;
  cost.add(layer.delta.out);
  cost.add(layer.attention.out);
  return cost;
}

// S, what is pending of the open chunk, and the convolution's inputs.
Cost delta_cost(const ModelConfig& c, int64_t position) {
  const int64_t s = c.gdn_value_heads * c.gdn_key_dim * c.gdn_value_dim;
  const int64_t pending = position % kDeltaChunk * (c.gdn_key_total() + c.gdn_value_total());
  return {4 * (s + pending + c.gdn_conv_taps * c.gdn_conv_channels()),
          4.0 * static_cast<double>(s)};
}

Cost attention_cost(const ModelConfig& c, KvFormat kv, int64_t position) {
  const int64_t keys = position + 1;
  return {2 * keys * c.num_kv_heads * kv_row_bytes(kv, c.head_dim),
          4.0 * static_cast<double>(keys * c.num_heads * c.head_dim)};
}

std::vector<Stage> mixer_stages(const GpuStep& step, const GpuStepBuffers& buffers,
                                const ModelConfig& c, KvFormat kv, int64_t position) {
  constexpr LayerKind kDelta = LayerKind::kGatedDelta;
  constexpr LayerKind kFull = LayerKind::kFullAttention;
  const auto inputs = [&step](const GpuLayer& layer, size_t) { step.project_inputs(layer, 1); };
  const auto mix = [&step](const GpuLayer& layer, size_t cache) { step.mix(layer, cache, 1); };
  const auto out = [&step, &buffers](const GpuLayer& layer, size_t) {
    step.project_out(layer, buffers.mixed_out, buffers.residual, 1);
  };
  return {
      {"norm + delta inputs", kDelta, inputs_cost, inputs},
      {"delta rule", kDelta, [=](const GpuLayer&) { return delta_cost(c, position); }, mix},
      {"delta out", kDelta, out_cost, out},
      {"norm + attention inputs", kFull, inputs_cost, inputs},
      {"attention", kFull, [=](const GpuLayer&) { return attention_cost(c, kv, position); }, mix},
      {"attention out", kFull, out_cost, out}};
}

std::vector<Stage> expert_stages(const GpuStep& step, const GpuStepBuffers& buffers,
                                 const ModelConfig& c) {
  const int64_t hidden = c.hidden;
  const int64_t top_k = c.top_k;
  const auto route_cost = [=](const GpuLayer& layer) {
    Cost cost;
    cost.add(layer.router);
    cost.add(layer.shared_gate);
    cost.add_expert_inputs(layer.shared, hidden, 1);
    return cost;
  };
  const auto gate_up_cost = [=](const GpuLayer& layer) {
    Cost cost;
    cost.add_expert_inputs(layer.experts, hidden, top_k);
    return cost;
  };
  const auto down_cost = [=](const GpuLayer& layer) {
    Cost cost;
    cost.add_expert_outputs(layer.experts, hidden, top_k);
    cost.add_expert_outputs(layer.shared, hidden, 1);
    return cost;
  };
  return {{"norm + router + shared gate/up", std::nullopt, route_cost,
           [&](const GpuLayer& layer, size_t) { step.route(layer, buffers.residual, 1); }},
          {"experts gate/up", std::nullopt, gate_up_cost,
           [&](const GpuLayer& layer, size_t) { step.gate_up(layer, buffers.residual, 1); }},
          {"experts down", std::nullopt, down_cost,
           [&](const GpuLayer& layer, size_t) { step.down(layer, buffers.residual, 1); }}};
}

}  // namespace

Result<double> GpuForward::time_graph(int64_t launches, const std::function<void()>& enqueue) {
  ASSIGN_OR_RETURN(const auto graph, gpu::Graph::capture(*stream_, enqueue));
  graph->launch(*stream_);  // a warm-up
  start_->record(*stream_);
  for (int i = 0; i < kReplays; ++i) graph->launch(*stream_);
  stop_->record(*stream_);
  RETURN_IF_ERROR(stream_->synchronize());
  return stop_->seconds_since(*start_) / static_cast<double>(kReplays * launches);
}

Result<std::vector<GpuStageTime>> GpuForward::measure_stages() {
  const ModelConfig& c = model_->config;
  const GpuStepBuffers& buffers = workspace_.step;
  // A real step first: every stage then finds inputs of the usual size.
  const int32_t token = 0;
  std::vector<float> logits(static_cast<size_t>(c.vocab_rows));
  RETURN_IF_ERROR(forward({&token, 1}, 1, logits.data()));
  const int64_t position = state_.position();
  CHECK(position < state_.capacity(), position);
  upload_step({&token, 1});

  std::vector<Stage> stages = mixer_stages(*step_, buffers, c, model_->kernels.kv(), position);
  for (Stage& stage : expert_stages(*step_, buffers, c)) stages.push_back(std::move(stage));
  std::vector<GpuStageTime> times;
  for (const Stage& stage : stages) {
    std::vector<const GpuLayer*> layers;
    for (const GpuLayer& layer : model_->weights.layers) {
      if (!stage.kind || layer.kind == *stage.kind) layers.push_back(&layer);
    }
    if (layers.empty()) continue;
    const auto launches = static_cast<int64_t>(layers.size());
    ASSIGN_OR_RETURN(const double seconds, time_graph(launches, [&] {
                       for (size_t i = 0; i < layers.size(); ++i) stage.enqueue(*layers[i], i);
                     }));
    const Cost cost = stage.cost_of(*layers.front());
    times.push_back({stage.name, launches, seconds, cost.bytes, cost.operations});
  }
  Cost head;
  head.add(model_->weights.head);
  ASSIGN_OR_RETURN(const double seconds,
                   time_graph(1, [&] { step_->head(buffers.residual, 1, 1, sampleable_); }));
  times.push_back({"norm + head", 1, seconds, head.bytes, head.operations});
  return times;
}

Result<double> GpuForward::measure_read_seconds(int64_t bytes) {
  const gpu::DeviceMemory* largest = &model_->weights.memory.front();
  for (const gpu::DeviceMemory& block : model_->weights.memory) {
    if (block.bytes() > largest->bytes()) largest = &block;
  }
  cuda::ReadSpeed params{};
  params.bytes = std::min(bytes, largest->bytes()) / 16 * 16;
  params.sink = workspace_.step.sink;
  const auto blocks =
      static_cast<uint32_t>(model_->device->info().multiprocessors * kReadBlocksAMultiprocessor);
  // Passes go through the block one after the other, so that what is larger than the cache is read
  // from memory and what is smaller from where it lies.
  const int64_t places = largest->bytes() / params.bytes;
  std::vector<double> seconds;
  for (int pass = 0; pass < kReadPasses; ++pass) {
    params.data = largest->data() + pass % places * params.bytes;
    start_->record(*stream_);
    gpu::launch(*stream_, model_->kernels.read_speed, {.grid = {blocks}, .block = {kReadThreads}},
                params);
    stop_->record(*stream_);
    RETURN_IF_ERROR(stream_->synchronize());
    seconds.push_back(stop_->seconds_since(*start_));
  }
  std::nth_element(seconds.begin(), seconds.begin() + kReadPasses / 2, seconds.end());
  return seconds[kReadPasses / 2] * static_cast<double>(bytes) / static_cast<double>(params.bytes);
}

}  // namespace moray
