// Where every byte of a model would lie, and how fast that would be; see moray/tools.h.
//
// Counts are those of the engine: gpu_layout.h for weights, GpuState and GpuWorkspace for the rest,
// step_bytes.cpp for what a token reads. Placed in this order: what every token reads, states and
// buffers go to VRAM; routed experts get what is left, as many slots in each layer; all of them lie
// in host memory too, and those that find no room there stay in the file.
#include <fmt/core.h>

#include <algorithm>

#include "moray/tools.h"
#include "src/formats/checkpoint.h"
#include "src/formats/parameters.h"
#include "src/generate/gpu_plan.h"
#include "src/model/blank_weights.h"
#include "src/model/gpu_layout.h"
#include "src/model/gpu_state.h"
#include "src/model/gpu_workspace.h"
#include "src/model/model.h"

namespace moray {
namespace {

// An allowance for the driver's context, which nothing counts; the loader sees what is really free.
constexpr int64_t kDriverBytes = int64_t{512} << 20;
constexpr int64_t kGib = int64_t{1} << 30;

// What a model takes, before anybody says how much there is.
struct Sizes {
  ModelConfig config;
  GpuKernels kernels;  // shapes only
  int64_t trunk = 0;   // read by every token: layers without routed experts
  int64_t head = 0;
  int64_t embedding = 0;  // 0 when the head is the same table
  int64_t record = 0;     // of one expert
  int64_t mtp = 0;
  int64_t token_weights = 0;  // that a decode step reads, routed experts included

  int64_t all_experts() const { return record * config.num_layers * config.num_experts; }
  int64_t slot_bytes() const { return record * config.num_layers; }  // of a slot in every layer
  int64_t routed() const { return record * config.num_layers * config.top_k; }
};

int64_t table_bytes(const cuda::Matrix& matrix) {
  return (padded_bytes(matrix) + 255) / 256 * 256;
}

// One full-attention layer with experts of its own and the projection of two hidden states.
int64_t mtp_bytes(ModelConfig config) {
  config.num_layers = 1;
  config.layer_kinds = {LayerKind::kFullAttention};
  const Weights shapes = blank_weights(config, HeadFormat::kPublished, nullptr);
  const GpuLayout layout = lay_out(shapes, {});
  return layout.bytes[static_cast<size_t>(GpuArena::kLayers)] +
         layout.bytes[static_cast<size_t>(GpuArena::kExperts)] +
         2 * config.hidden * config.hidden * dtype_bytes(config.dtype);
}

Result<Sizes> measure(const std::string& folder) {
  Sizes sizes;
  ASSIGN_OR_RETURN(sizes.config, read_model_config(folder));
  const ModelConfig& config = sizes.config;
  RETURN_IF_ERROR(check_gpu_limits(config));
  const Weights shapes = blank_weights(config, HeadFormat::kPublished, nullptr);
  ASSIGN_OR_RETURN(const GpuFormats formats, gpu_formats(shapes));
  gpu::DeviceInfo card;  // buffers hardly depend on it; this is an RTX 5060 Ti
  card.major = 12;
  card.multiprocessors = 36;
  sizes.kernels = gpu_kernel_shapes(config, formats, card);
  const GpuLayout layout = lay_out(shapes, {});
  sizes.trunk = layout.bytes[static_cast<size_t>(GpuArena::kLayers)];
  if (!config.tie_word_embeddings) sizes.embedding = table_bytes(layout.weights.embedding);
  sizes.head = layout.bytes[static_cast<size_t>(GpuArena::kTables)] - sizes.embedding;
  sizes.record = layout.weights.layers.front().experts.record_bytes;
  if (config.mtp_layers > 0) sizes.mtp = mtp_bytes(config);
  sizes.token_weights = decode_weight_bytes(shapes);
  return sizes;
}

// What must be in VRAM whatever the slots are.
struct Fixed {
  int64_t kv = 0;         // of all sequences, the MTP head's own included
  int64_t delta = 0;      // states of all sequences
  int64_t snapshots = 0;  // of the delta states, to take rejected drafts back
  int64_t mtp = 0;
  int64_t workspace = 0;
  int64_t block = 0;
  int64_t total = 0;  // with trunk, head and driver
};

Fixed count_fixed(const Sizes& sizes, const PlanQuestion& q) {
  const ModelConfig& c = sizes.config;
  Fixed fixed;
  const int64_t delta = GpuState::bytes_needed(c, KvFormat::kBf16, 0);
  const int64_t kv = GpuState::bytes_needed(c, KvFormat::kBf16, q.context) - delta;
  fixed.delta = q.parallel * delta;
  fixed.kv = q.parallel * kv;
  if (q.drafts > 0) {
    fixed.kv += fixed.kv / c.count_layers(LayerKind::kFullAttention);
    fixed.snapshots = fixed.delta;
    fixed.mtp = sizes.mtp;
  }
  fixed.total = kDriverBytes + kGpuReserveBytes + sizes.trunk + sizes.head + fixed.mtp + fixed.kv +
                fixed.delta + fixed.snapshots;
  fixed.block = choose_block(c, sizes.kernels, 0, q.vram_bytes - fixed.total);
  fixed.workspace = GpuWorkspace::bytes_needed(c, sizes.kernels, fixed.block);
  fixed.total += fixed.workspace;
  return fixed;
}

int64_t count_slots(const Sizes& sizes, const PlanQuestion& q) {
  const int64_t room = q.vram_bytes - count_fixed(sizes, q).total;
  if (room <= 0) return 0;
  return std::min(room / sizes.slot_bytes(), sizes.config.num_experts);
}

// Nothing is left outside VRAM, the embedding included: what the engine runs today.
bool is_resident(const Sizes& sizes, const PlanQuestion& q) {
  return q.vram_bytes - count_fixed(sizes, q).total >= sizes.all_experts() + sizes.embedding;
}

// A decode step needs the experts of one token in slots at once.
bool fits(const Sizes& sizes, const PlanQuestion& q) {
  return is_resident(sizes, q) ||
         (count_slots(sizes, q) >= sizes.config.top_k && sizes.embedding <= q.ram_bytes);
}

// The largest (of [low, high]) for which `holds`, which never becomes true again; low - 1: none.
template <typename Holds>
int64_t largest(int64_t low, int64_t high, Holds holds) {
  int64_t yes = low - 1, no = high + 1;
  while (no - yes > 1) {
    const int64_t middle = yes + (no - yes) / 2;
    (holds(middle) ? yes : no) = middle;
  }
  return yes;
}

constexpr int64_t kGibMax = 4096;

// GiB of VRAM with which `holds(question)`; 0: none up to kGibMax.
template <typename Holds>
int64_t vram_gib_for(PlanQuestion q, Holds holds) {
  const int64_t too_small = largest(1, kGibMax, [&](int64_t gib) {
    q.vram_bytes = gib * kGib;
    return !holds(q);
  });
  return too_small == kGibMax ? 0 : too_small + 1;
}

std::vector<std::string> nearest_settings(const Sizes& sizes, const PlanQuestion& q) {
  std::vector<std::string> nearest;
  const int64_t needed = sizes.all_experts() + sizes.embedding;
  if (!is_resident(sizes, q) && q.ram_bytes < needed) {
    nearest.push_back(fmt::format("--ram {}GiB: every expert in host memory, none in the file",
                                  (needed + kGib - 1) / kGib));
  }
  const auto resident = [&](const PlanQuestion& other) { return is_resident(sizes, other); };
  const auto fitting = [&](const PlanQuestion& other) { return fits(sizes, other); };
  if (fits(sizes, q)) {
    const int64_t gib = is_resident(sizes, q) ? 0 : vram_gib_for(q, resident);
    if (gib > 0) nearest.push_back(fmt::format("--vram {}GiB: everything in VRAM", gib));
    return nearest;
  }
  if (const int64_t gib = vram_gib_for(q, fitting); gib > 0) {
    nearest.push_back(fmt::format("--vram {}GiB with the same context", gib));
  }
  const auto with = [&](auto change) {
    PlanQuestion other = q;
    change(other);
    return fitting(other);
  };
  const int64_t context = largest(1, q.context, [&](int64_t tokens) {
    return with([&](PlanQuestion& other) { other.context = tokens; });
  });
  if (context > 0) nearest.push_back(fmt::format("--ctx {}", context));
  const int64_t parallel = largest(1, q.parallel, [&](int64_t sequences) {
    return with([&](PlanQuestion& other) { other.parallel = sequences; });
  });
  if (parallel > 0) nearest.push_back(fmt::format("--parallel {}", parallel));
  if (q.drafts > 0 && with([](PlanQuestion& other) { other.drafts = 0; })) {
    nearest.push_back("--mtp 0");
  }
  return nearest;
}

// What LRU finds in a layer of the made-up trace, once it is warm.
double expected_hit_rate(const ModelConfig& c, int64_t slots) {
  if (slots >= c.num_experts) return 1;
  constexpr int64_t kTokens = 4096;
  const RoutingTrace trace = make_routing_trace(
      {.tokens = kTokens, .layers = 1, .experts = c.num_experts, .top_k = c.top_k}, 1);
  const auto run = simulate_slots(trace, {.slots = slots});
  CHECK(run.ok(), run.status().message());
  return run->hit_rate();
}

void place_rows(const Sizes& sizes, const PlanQuestion& q, const Fixed& fixed, MemoryPlan& plan) {
  const auto add = [&plan](const char* place, const std::string& what, int64_t bytes) {
    if (bytes > 0) plan.rows.push_back({place, what, bytes});
  };
  add("vram", "trunk: mixers, routers, shared experts", sizes.trunk);
  add("vram", sizes.embedding == 0 ? "head and embedding, tied" : "head", sizes.head);
  add("vram", "MTP head with its experts", fixed.mtp);
  add("vram", fmt::format("keys and values of {} x {} tokens", q.parallel, q.context), fixed.kv);
  add("vram", "delta states", fixed.delta);
  add("vram", "snapshots of delta states", fixed.snapshots);
  add("vram", fmt::format("buffers of a step and a block of {} tokens", fixed.block),
      fixed.workspace);
  add("vram", "driver's context (allowance)", kDriverBytes);
  add("vram", "left free for the driver", kGpuReserveBytes);
  const int64_t slots = plan.slots * sizes.slot_bytes();
  add("vram", fmt::format("expert slots, {} of {} a layer", plan.slots, plan.experts), slots);
  const int64_t embedding = plan.is_resident ? sizes.embedding : 0;
  add("vram", "embedding", embedding);
  add("vram", "unused", q.vram_bytes - fixed.total - slots - embedding);
  add("ram", "embedding", sizes.embedding - embedding);
  const int64_t room = std::max<int64_t>(0, q.ram_bytes - sizes.embedding + embedding);
  // With a slot for each, host memory holds none.
  const int64_t outside = plan.slots < plan.experts ? sizes.all_experts() : 0;
  const int64_t in_ram = std::min(outside, room / sizes.record * sizes.record);
  add("ram", "experts, pinned", in_ram);
  add("ram", "unused", room - in_ram);
  add("file", "experts", outside - in_ram);
}

int64_t bytes_in(const MemoryPlan& plan, std::string_view place, std::string_view what) {
  for (const PlannedBytes& row : plan.rows) {
    if (row.place == place && row.what.starts_with(what)) return row.bytes;
  }
  return 0;
}

void predict(const Sizes& sizes, const PlanQuestion& q, MemoryPlan& plan) {
  plan.hit_rate = plan.slots == plan.experts ? 1
                  : q.hit_rate               ? *q.hit_rate
                                             : expected_hit_rate(sizes.config, plan.slots);
  const auto seconds = [](double bytes, double gbps) { return bytes / (gbps * 1e9); };
  const double in_file = static_cast<double>(bytes_in(plan, "file", "experts")) /
                         static_cast<double>(sizes.all_experts());
  // An expert of the file passes host memory on its way.
  const auto fetch = [&](double bytes) {
    return seconds(bytes, q.link_gbps) + seconds(bytes * in_file, q.disk_gbps);
  };
  const double missed = (1 - plan.hit_rate) * static_cast<double>(plan.routed_bytes);
  plan.decode_tokens_per_s =
      1 / (seconds(static_cast<double>(plan.decode_bytes), q.vram_gbps) + fetch(missed));
  const double compute = 2.0 * static_cast<double>(count_parameters(sizes.config).active()) *
                         static_cast<double>(plan.block_tokens) / (q.tflops * 1e12);
  const double missing = static_cast<double>((plan.experts - plan.slots) * sizes.slot_bytes());
  plan.prefill_tokens_per_s =
      static_cast<double>(plan.block_tokens) / std::max(compute, fetch(missing));
}

std::string mebibytes(int64_t bytes) {
  return fmt::format("{} MiB", bytes >> 20);
}

std::string verdict(const Sizes& sizes, const PlanQuestion& q, const Fixed& fixed,
                    const MemoryPlan& plan) {
  if (plan.is_resident) return "fits: everything in VRAM";
  if (sizes.embedding > q.ram_bytes) {
    return fmt::format("does not fit: found {} of host memory, expected {} for the embedding",
                       mebibytes(q.ram_bytes), mebibytes(sizes.embedding));
  }
  if (!plan.fits) {
    const int64_t least = fixed.total + sizes.config.top_k * sizes.slot_bytes();
    return fmt::format(
        "does not fit: found {} of VRAM, expected {} ({} beside experts, {} for the {} experts of "
        "a "
        "token in each layer)",
        mebibytes(q.vram_bytes), mebibytes(least), mebibytes(fixed.total),
        mebibytes(least - fixed.total), sizes.config.top_k);
  }
  return fmt::format("fits with {:.0f} % of the experts in VRAM",
                     100.0 * static_cast<double>(plan.slots) / static_cast<double>(plan.experts));
}

Status check(const ModelConfig& config, const PlanQuestion& q) {
  if (q.context < 1 || q.context > config.max_positions) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("context: found {} tokens, expected 1 to {} (the model's "
                              "max_position_embeddings)",
                              q.context, config.max_positions));
  }
  if (q.drafts > 0 && config.mtp_layers == 0) {
    return Status(
        StatusCode::kInvalidArgument,
        fmt::format("mtp: found {} drafts, expected 0 (the model has no MTP head)", q.drafts));
  }
  return Status();
}

}  // namespace

Result<MemoryPlan> plan_memory(const std::string& folder, const PlanQuestion& asked) {
  ASSIGN_OR_RETURN(const Sizes sizes, measure(folder));
  PlanQuestion q = asked;
  if (q.context == 0)
    q.context = std::min<int64_t>(kPlanContextDefault, sizes.config.max_positions);
  RETURN_IF_ERROR(check(sizes.config, q));
  const Fixed fixed = count_fixed(sizes, q);
  MemoryPlan plan;
  plan.layers = sizes.config.num_layers;
  plan.experts = sizes.config.num_experts;
  plan.expert_bytes = sizes.record;
  plan.block_tokens = fixed.block;
  plan.slots = count_slots(sizes, q);
  plan.fits = fits(sizes, q);
  plan.is_resident = is_resident(sizes, q);
  plan.routed_bytes = sizes.routed();
  Weights no_weights;
  no_weights.config = sizes.config;
  plan.decode_bytes =
      sizes.token_weights + decode_state_bytes(no_weights, q.context - 1, KvFormat::kBf16);
  place_rows(sizes, q, fixed, plan);
  plan.verdict = verdict(sizes, q, fixed, plan);
  plan.nearest = nearest_settings(sizes, q);
  if (plan.fits) predict(sizes, q, plan);
  return plan;
}

}  // namespace moray
