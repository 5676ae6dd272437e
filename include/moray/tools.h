// Questions about models on disk: where one is, which there are, what one holds.
//
// Nothing here loads weights or reads the environment: folders to search come from the caller, and
// model_info() reads config.json, the shard headers and the model card only; device_fits() asks the
// GPU driver besides.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/base/status.h"

namespace moray {

// Where models are looked for by name.
struct ModelPlaces {
  std::vector<std::string> model_folders;  // "models": each folder in them is a model
  std::vector<std::string> hub_folders;    // Hugging Face hub caches ("~/.cache/huggingface/hub")
};

// The model folder that `name` means: an existing folder, else a folder below one of
// `model_folders`, else an id "org/name" (or "org/name@revision") of a hub cache, whose refs/main
// (or revision) leads to the snapshot. kNotFound lists where it was looked for; kInvalidFile says
// what the thing found is not. Order of the lists is order of preference.
Result<std::string> resolve_model(const std::string& name, const ModelPlaces& places);

struct FoundModel {
  std::string name;    // what resolve_model() takes
  std::string folder;  // what it gives
};
// Every folder with a config.json in the places, sorted by name within each place.
std::vector<FoundModel> list_models(const ModelPlaces& places);

// Tensors of one part of the model and one dtype. Block scales count as bytes and tensors of the
// part they scale, not as parameters.
struct ModelPart {
  std::string part;   // "embedding", "attention", "delta net", "routed experts", "mtp", ...
  std::string dtype;  // as safetensors writes it
  int64_t tensors = 0;
  int64_t parameters = 0;
  int64_t bytes = 0;
};

struct ModelInfo {
  std::string folder;
  std::string model_type;
  std::string licence;  // from the card's front matter; empty when it says none

  int64_t layers = 0;
  int64_t delta_layers = 0;  // the rest attends fully
  int64_t hidden = 0;
  int64_t vocab_rows = 0;
  int64_t context = 0;
  int64_t heads = 0, kv_heads = 0, head_dim = 0, rotary_dim = 0;
  int64_t delta_key_heads = 0, delta_value_heads = 0, delta_key_dim = 0, delta_value_dim = 0;
  int64_t experts = 0, top_k = 0, expert_dim = 0, shared_expert_dim = 0;
  bool block_fp8 = false;
  bool tied_embeddings = false;

  // By the config: trunk with embedding and head, MTP and vision not counted. Active is what a
  // token's decode step multiplies with: top-k experts, no embedding, the head included.
  int64_t parameters_total = 0;
  int64_t parameters_active = 0;
  int64_t parameters_mtp = 0;  // 0 when the config promises no MTP layer
  // By the headers, in the same senses; different from the config's when tensors are missing.
  int64_t parameters_stored = 0;
  int64_t parameters_stored_mtp = 0;

  int64_t shards = 0;
  int64_t tensors = 0;
  int64_t bytes = 0;             // of all tensors
  std::vector<ModelPart> parts;  // in the order of a forward pass, then by dtype
};

// Errors as opening the checkpoint gives them: not a model folder, unknown architecture, bad
// header.
Result<ModelInfo> model_info(const std::string& folder);

// A GPU of this machine and what it would have to hold.
struct DeviceFit {
  std::string name;          // "cuda:0 NVIDIA H200 (sm_90)"
  int64_t memory_bytes = 0;  // of the device
  int64_t free_bytes = 0;    // at this moment; 0 when it cannot be asked
  int64_t weight_bytes = 0;  // the model's, as laid out on a GPU, by config.json alone
  std::string refusal;       // why the model does not run there; empty when it does
};
// Errors: config.json's; no driver, a driver too old, no GPU (kUnsupported, in one sentence).
Result<std::vector<DeviceFit>> device_fits(const std::string& folder);

// Which experts a model's tokens were routed to, [token, layer, top_k], larger weight first.
struct RoutingTrace {
  int64_t layers = 0, experts = 0, top_k = 0;
  std::vector<uint16_t> ids;
  std::vector<float> weights;

  int64_t tokens() const {
    return layers * top_k == 0 ? 0 : static_cast<int64_t>(ids.size()) / (layers * top_k);
  }
};
// A file: "MORAYRT1", then little-endian: uint32 layers, experts, top_k, 0; uint64 tokens; all ids
// as uint16; all weights as float32. Written beside `path` and renamed when whole, so that a full
// disk or a crash leaves what was there; a link is followed, permissions stay. Errors: kNotFound,
// kExhausted, kIo; a device, a pipe or a folder is refused.
Status write_routing_trace(const RoutingTrace& trace, const std::string& path);
// Whether a trace could be written there now, for those who gather one first. Same errors.
Status check_routing_path(const std::string& path);
// kInvalidFile for anything else than such a file: sizes, ids, repeated experts, weights.
Result<RoutingTrace> read_routing_trace(const std::string& path);

// A made-up trace with the locality published for real models of this kind: 45 % of a token's
// experts were the token's before, 80 % were used within the 8 before, the rest is spread evenly.
// The same arguments give the same trace everywhere.
struct RoutingShape {
  int64_t tokens = 0, layers = 0, experts = 0, top_k = 0;
  const std::atomic<bool>* cancel = nullptr;  // set: the trace ends with the token at hand
};
RoutingTrace make_routing_trace(const RoutingShape& shape, uint64_t seed);

// How soon experts come back, over all tokens from the ninth on.
struct ReuseStatistics {
  double repeats = 0;           // share of choices that the token before made too
  double within_8 = 0;          // share that one of the 8 tokens before made
  int64_t median_distance = 0;  // in tokens, of choices seen before
};
ReuseStatistics measure_reuse(const RoutingTrace& trace);

enum class SlotPolicy {
  kLru,     // the one not used for longest goes
  kLfu,     // the one used least often since it came, then LRU
  kFifo,    // the one that came first
  kBelady,  // the one needed last, read from the trace: the bound for all
};
// Decoding a trace a token at a time with `slots` a layer. A layer's hits are computed while its
// misses come over the link; then the misses. Reads fail by chance, as seeded.
struct SlotSimulation {
  int64_t slots = 0;  // top_k .. experts
  SlotPolicy policy = SlotPolicy::kLru;
  int64_t expert_bytes = 0;
  int64_t other_bytes = 0;  // that a token reads besides routed experts
  double link_gbps = 25;
  double vram_gbps = 360;
  // Chances of an attempt to read an expert: to take ten times as long; to bring half of it, so
  // that the rest is asked for again; to bring nothing. After kReadAttempts that brought nothing
  // the request ends there, without harm to the next.
  double slow_share = 0, short_share = 0, fail_share = 0;
  int64_t request_tokens = 256;  // the trace is that of requests so long, one after the other
  uint64_t seed = 0;
  const std::atomic<bool>* cancel = nullptr;  // set: kCancelled
};
inline constexpr int kReadAttempts = 3;
struct SimulatedRun {
  int64_t hits = 0, misses = 0;
  int64_t retries = 0;
  int64_t requests = 0, failed_requests = 0;
  int64_t tokens = 0;  // decoded
  double seconds = 0;
  double stall_seconds = 0;  // of these, waiting for the link with no hit left to compute

  double hit_rate() const {
    return hits + misses == 0 ? 0 : static_cast<double>(hits) / static_cast<double>(hits + misses);
  }
};
// kInvalidArgument: no tokens; slots, rates or chances out of range.
Result<SimulatedRun> simulate_slots(const RoutingTrace& trace, const SlotSimulation& simulation);

inline constexpr int64_t kPlanContextDefault = 32768;

// What a machine with one GPU is asked to do with a model. Rates are GB/s (1e9 bytes a second) and
// TFLOP/s as reached by this kind of work, not a data sheet's.
struct PlanQuestion {
  int64_t vram_bytes = int64_t{16} << 30;
  int64_t ram_bytes = int64_t{64} << 30;  // that Moray may take
  int64_t context = 0;     // tokens of each sequence; 0: kPlanContextDefault or the model's own
  int64_t parallel = 1;    // sequences at once
  int64_t drafts = 0;      // tokens the MTP head drafts; 0: it is not loaded
  double vram_gbps = 360;  // of a 5060 Ti: 80 % of its 448
  double link_gbps = 25;   // PCIe 4.0 x16 or 5.0 x8
  double disk_gbps = 5;
  double tflops = 100;  // of FP8 products in prefill
  // Of routed experts found in their layer's slots; nullopt: what LRU finds in a made-up trace with
  // the locality published for such models (make_routing_trace).
  std::optional<double> hit_rate = {};
};

// A row of the plan: so many bytes of one thing in one place.
struct PlannedBytes {
  std::string place;  // "vram", "ram", "file"
  std::string what;
  int64_t bytes = 0;
};

struct MemoryPlan {
  bool fits = false;
  bool is_resident = false;          // all of it in VRAM, the embedding included
  std::string verdict;               // one sentence
  std::vector<std::string> nearest;  // settings that would fit, or fit better
  std::vector<PlannedBytes> rows;    // what lies in VRAM first; "free" is a row of its own
  int64_t layers = 0;
  int64_t experts = 0;       // a layer
  int64_t expert_bytes = 0;  // of one record
  int64_t slots = 0;         // a layer, in VRAM
  int64_t block_tokens = 0;  // of a prefill pass
  // Of one token of decoding at the full context, and what of it are routed experts.
  int64_t decode_bytes = 0;
  int64_t routed_bytes = 0;
  // Predictions, without drafts: 0 when it does not fit. Decode adds the VRAM's and the link's time
  // (nothing overlaps); prefill takes the longer of computing and streaming missing experts.
  double hit_rate = 0;
  double decode_tokens_per_s = 0;
  double prefill_tokens_per_s = 0;
};

// From config.json alone. What does not fit is not an error but a plan that says so. Errors:
// config.json's; kInvalidArgument for a context beyond the model's or drafts without an MTP head;
// kUnsupported for a model that no GPU kernel is made for.
Result<MemoryPlan> plan_memory(const std::string& folder, const PlanQuestion& question);

}  // namespace moray
