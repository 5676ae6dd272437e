// Timing the kernels of a step one by one, and a plain read: what `moray bench` shows beside
// speeds.
//
// Each stage is a graph of that kernel alone over all layers that have it, replayed several times,
// so that successive launches read different weights. Times are of the whole replay over its
// launches: what a launch costs with others of its kind around it.
#include <algorithm>

#include "src/kernels/cuda/read_speed.h"
#include "src/model/gpu_forward.h"
#include "src/model/gpu_layout.h"

namespace moray {
namespace {

constexpr int kReplays = 20;
constexpr int kReadPasses = 21;
constexpr int kReadThreads = 512;
constexpr int kReadBlocksAMultiprocessor = 4;

int64_t bytes_of(const cuda::Matrix& m) {
  if (m.data == nullptr) return 0;
  const int64_t scales = (m.rows + 127) / 128 * ((m.cols + 127) / 128);
  return int64_t{m.rows} * m.cols * element_bytes(m.format) +
         (m.format == cuda::Format::kFp8 ? 4 * scales : 0);
}

double products_of(const cuda::Matrix& m) {
  return m.data == nullptr ? 0 : 2.0 * m.rows * m.cols;
}

struct Cost {
  int64_t bytes = 0;
  double operations = 0;

  void add(const cuda::Matrix& m) {
    bytes += bytes_of(m);
    operations += products_of(m);
  }
  void add_expert(int64_t width, int64_t hidden, int matrices, cuda::Format format, int64_t count) {
    bytes += count * matrices * width * hidden * element_bytes(format);
    if (format == cuda::Format::kFp8) {
      bytes += count * matrices * 4 * ((width + 127) / 128) * ((hidden + 127) / 128);
    }
    operations += 2.0 * static_cast<double>(count * matrices * width * hidden);
  }
};

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
  const std::vector<GpuLayer>& layers = model_->weights.layers;
  // A real step first: every stage then finds inputs of the usual size.
  const int32_t token = 0;
  const int64_t position = state_.position();
  std::vector<float> logits(static_cast<size_t>(c.vocab_rows));
  RETURN_IF_ERROR(forward({&token, 1}, 1, logits.data()));
  state_.rewind(position);
  upload_step({&token, 1});

  std::vector<GpuStageTime> stages;
  const auto measure = [&](const char* name, std::optional<LayerKind> kind, const auto& cost_of,
                           const auto& enqueue) -> Status {
    Cost cost;
    int64_t launches = 0;
    for (const GpuLayer& layer : layers) {
      if (kind && layer.kind != *kind) continue;
      if (launches++ == 0) cost = cost_of(layer);
    }
    if (launches == 0) return Status();
    ASSIGN_OR_RETURN(const double seconds, time_graph(launches, [&] {
                       size_t cache = 0;
                       for (const GpuLayer& layer : layers) {
                         if (!kind || layer.kind == *kind) enqueue(layer, cache++);
                       }
                     }));
    stages.push_back({name, launches, seconds, cost.bytes, cost.operations});
    return Status();
  };

  const GpuStepBuffers& b = workspace_.step;
  const auto inputs_cost = [](const GpuLayer& layer) {
    Cost cost;
    for (const cuda::Matrix* m : {&layer.delta.qkv, &layer.delta.z, &layer.delta.b, &layer.delta.a,
                                  &layer.attention.q, &layer.attention.k, &layer.attention.v}) {
      cost.add(*m);
    }
    return cost;
  };
  const auto inputs = [&](const GpuLayer& layer, size_t) { step_->project_inputs(layer, 1); };
  const auto mix = [&](const GpuLayer& layer, size_t cache) { step_->mix(layer, cache, 1); };
  const auto delta_cost = [&](const GpuLayer&) {
    const int64_t s = c.gdn_value_heads * c.gdn_key_dim * c.gdn_value_dim;
    const int64_t pending = position % kDeltaChunk * (c.gdn_key_total() + c.gdn_value_total());
    return Cost{4 * (s + pending + c.gdn_conv_taps * c.gdn_conv_channels()),
                4.0 * static_cast<double>(s)};
  };
  const auto attention_cost = [&](const GpuLayer&) {
    const int64_t keys = position + 1;
    return Cost{4 * keys * c.num_kv_heads * c.head_dim,
                4.0 * static_cast<double>(keys * c.num_heads * c.head_dim)};
  };
  const auto out_cost = [](const GpuLayer& layer) {
    Cost cost;
    cost.add(layer.delta.out);
    cost.add(layer.attention.out);
    return cost;
  };
  const auto out = [&](const GpuLayer& layer, size_t) {
    step_->project_out(layer, b.mixed_out, b.residual, 1);
  };
  const auto route_cost = [&](const GpuLayer& layer) {
    Cost cost;
    cost.add(layer.router);
    cost.add(layer.shared_gate);
    if (layer.shared.base != nullptr) {
      cost.add_expert(layer.shared.width, c.hidden, 2, layer.shared.format, 1);
    }
    return cost;
  };
  const auto gate_up_cost = [&](const GpuLayer& layer) {
    Cost cost;
    cost.add_expert(layer.experts.width, c.hidden, 2, layer.experts.format, c.top_k);
    return cost;
  };
  const auto down_cost = [&](const GpuLayer& layer) {
    Cost cost;
    cost.add_expert(layer.experts.width, c.hidden, 1, layer.experts.format, c.top_k);
    if (layer.shared.base != nullptr) {
      cost.add_expert(layer.shared.width, c.hidden, 1, layer.shared.format, 1);
    }
    return cost;
  };
  constexpr LayerKind kDelta = LayerKind::kGatedDelta;
  constexpr LayerKind kFull = LayerKind::kFullAttention;
  RETURN_IF_ERROR(measure("norm + delta inputs", kDelta, inputs_cost, inputs));
  RETURN_IF_ERROR(measure("delta rule", kDelta, delta_cost, mix));
  RETURN_IF_ERROR(measure("norm + attention inputs", kFull, inputs_cost, inputs));
  RETURN_IF_ERROR(measure("attention", kFull, attention_cost, mix));
  RETURN_IF_ERROR(measure("delta out", kDelta, out_cost, out));
  RETURN_IF_ERROR(measure("attention out", kFull, out_cost, out));
  RETURN_IF_ERROR(
      measure("norm + router + shared gate/up", std::nullopt, route_cost,
              [&](const GpuLayer& layer, size_t) { step_->route(layer, b.residual, 1); }));
  RETURN_IF_ERROR(
      measure("experts gate/up", std::nullopt, gate_up_cost,
              [&](const GpuLayer& layer, size_t) { step_->gate_up(layer, b.residual, 1); }));
  RETURN_IF_ERROR(
      measure("experts down", std::nullopt, down_cost,
              [&](const GpuLayer& layer, size_t) { step_->down(layer, b.residual, 1); }));
  const cuda::Matrix& head = model_->weights.head;
  ASSIGN_OR_RETURN(const double head_seconds,
                   time_graph(1, [&] { step_->head(b.residual, 1, 1, sampleable_); }));
  stages.push_back({"norm + head", 1, head_seconds, bytes_of(head), products_of(head)});
  return stages;
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
