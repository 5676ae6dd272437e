// Decoding with some experts in fast memory, by arithmetic alone; see moray/tools.h.
//
// The tables and the choice of victims are those of the device (slot_policy.h); what is made up is
// the trace, the clock and the reads.
#include <fmt/core.h>

#include <algorithm>
#include <limits>

#include "moray/tools.h"
#include "src/generate/random.h"
#include "src/kernels/cuda/slot_policy.h"

namespace moray {
namespace {

constexpr double kSlowFactor = 10;
constexpr int kCountBits = 16;  // of an LFU stamp; the rest is the clock
constexpr int64_t kNoUse = std::numeric_limits<int64_t>::max();

struct Layer {
  std::vector<int> slot_of, expert_of, pins;
  std::vector<cuda::SlotStamp> stamps;
  std::vector<int64_t> uses;  // [experts], since the expert came
  cuda::SlotTable table;

  Layer(int experts, int slots)
      : slot_of(static_cast<size_t>(experts)),
        expert_of(static_cast<size_t>(slots)),
        pins(static_cast<size_t>(slots)),
        stamps(static_cast<size_t>(slots)),
        uses(static_cast<size_t>(experts)),
        table{slot_of.data(), expert_of.data(), pins.data(), stamps.data(), experts, slots} {
    cuda::clear_slots(table);
  }
  Layer(const Layer&) = delete;
  Layer(Layer&&) = default;
};

struct Read {
  bool arrived = false;
  double seconds = 0;
  int retries = 0;
};

class Simulator {
 public:
  Simulator(const RoutingTrace& trace, const SlotSimulation& simulation)
      : trace_(trace), s_(simulation) {
    for (int64_t i = 0; i < trace.layers; ++i) {
      layers_.emplace_back(static_cast<int>(trace.experts), static_cast<int>(s_.slots));
    }
    if (s_.policy == SlotPolicy::kBelady) find_next_uses();
  }

  Result<SimulatedRun> run() {
    for (int64_t begin = 0; begin < trace_.tokens(); begin += s_.request_tokens) {
      const int64_t end = std::min(begin + s_.request_tokens, trace_.tokens());
      ++run_.requests;
      for (int64_t token = begin; token < end; ++token) {
        if (s_.cancel != nullptr && *s_.cancel)
          return Status(StatusCode::kCancelled, "interrupted");
        if (decode(token)) continue;
        ++run_.failed_requests;
        break;
      }
    }
    return run_;
  }

 private:
  size_t place(int64_t token, int64_t layer, int64_t i) const {
    return static_cast<size_t>((token * trace_.layers + layer) * trace_.top_k + i);
  }

  void find_next_uses() {
    next_use_.resize(trace_.ids.size());
    std::vector<int64_t> next(static_cast<size_t>(trace_.layers * trace_.experts), kNoUse);
    for (int64_t token = trace_.tokens() - 1; token >= 0; --token) {
      for (int64_t i = 0; i < trace_.layers * trace_.top_k; ++i) {
        const size_t at = place(token, 0, i);
        int64_t& use =
            next[static_cast<size_t>(i / trace_.top_k * trace_.experts + trace_.ids[at])];
        next_use_[at] = use;
        use = token;
      }
    }
  }

  // Before the expert at `at` is leased for the token's layer.
  cuda::SlotStamp stamp(Layer& layer, int64_t token, size_t at) {
    const int expert = trace_.ids[at];
    const int slot = layer.table.slot_of[expert];
    int64_t& uses = layer.uses[static_cast<size_t>(expert)];
    uses = slot == cuda::kNoSlot ? 1 : uses + 1;
    const auto now = static_cast<cuda::SlotStamp>(token);
    switch (s_.policy) {
      case SlotPolicy::kLru:
        return now;
      case SlotPolicy::kLfu:
        return static_cast<cuda::SlotStamp>(std::min(uses, (int64_t{1} << kCountBits) - 2)) << 32 |
               now;
      case SlotPolicy::kFifo:
        return slot == cuda::kNoSlot ? now : layer.table.stamps[slot];
      case SlotPolicy::kBelady:
        return next_use_[at] == kNoUse
                   ? 0
                   : cuda::kSlotStampMax - static_cast<cuda::SlotStamp>(next_use_[at]);
    }
    return now;
  }

  double chance() { return uniform_at(s_.seed, draws_++); }

  Read read_expert() {
    Read read;
    const double whole = static_cast<double>(s_.expert_bytes) / (s_.link_gbps * 1e9);
    double left = whole;
    int failures = 0;
    while (true) {
      const double kind = chance();
      if (kind < s_.fail_share) {
        if (++failures == kReadAttempts) return read;
        ++read.retries;
        continue;
      }
      const double took = left * (chance() < s_.slow_share ? kSlowFactor : 1);
      // Half of very little is all of it.
      if (kind >= s_.fail_share + s_.short_share || left < whole / 64) {
        read.seconds += took;
        read.arrived = true;
        return read;
      }
      read.seconds += took / 2;
      left /= 2;
      ++read.retries;
    }
  }

  // A lease and, on a miss, the read that fills its slot. False when that failed.
  bool take(Layer& layer, int64_t token, size_t at, double* fill) {
    const cuda::SlotLease lease =
        cuda::lease_slot(layer.table, trace_.ids[at], stamp(layer, token, at));
    CHECK(lease.slot != cuda::kNoSlot, token, at);
    leased_.push_back(lease.slot);
    if (lease.answer == cuda::SlotAnswer::kHit) return true;
    ++run_.misses;
    const Read read = read_expert();
    *fill += read.seconds;
    run_.retries += read.retries;
    if (read.arrived) {
      cuda::finish_fill(layer.table, lease.slot);
    } else {
      cuda::fail_fill(layer.table, lease.slot);
    }
    return read.arrived;
  }

  // False when an expert's bytes could not be read.
  bool decode_layer(int64_t token, int64_t index) {
    Layer& layer = layers_[static_cast<size_t>(index)];
    leased_.clear();
    missing_.clear();
    double fill = 0;
    // Hits first: pinned, they are safe from the misses' victims.
    for (int64_t i = 0; i < trace_.top_k; ++i) {
      const size_t at = place(token, index, i);
      if (layer.table.slot_of[trace_.ids[at]] == cuda::kNoSlot) {
        missing_.push_back(at);
      } else {
        take(layer, token, at, &fill);
      }
    }
    const auto hits = static_cast<int64_t>(leased_.size());
    const bool is_whole = std::all_of(missing_.begin(), missing_.end(),
                                      [&](size_t at) { return take(layer, token, at, &fill); });
    for (const int slot : leased_) cuda::unpin(layer.table, slot);
    run_.hits += hits;
    const double vram = s_.vram_gbps * 1e9;
    const double expert = static_cast<double>(s_.expert_bytes) / vram;
    const double other =
        static_cast<double>(s_.other_bytes) / static_cast<double>(trace_.layers) / vram;
    const double stall = std::max(0.0, fill - static_cast<double>(hits) * expert);
    run_.stall_seconds += stall;
    run_.seconds += other + static_cast<double>(trace_.top_k) * expert + stall;
    return is_whole;
  }

  bool decode(int64_t token) {
    for (int64_t layer = 0; layer < trace_.layers; ++layer) {
      if (!decode_layer(token, layer)) return false;
    }
    ++run_.tokens;
    return true;
  }

  const RoutingTrace& trace_;
  const SlotSimulation& s_;
  std::vector<Layer> layers_;
  std::vector<int64_t> next_use_;  // as trace.ids: the token that uses the expert next
  std::vector<int> leased_;        // slots of the layer at hand
  std::vector<size_t> missing_;    // of its choices, places in trace.ids
  uint64_t draws_ = 0;
  SimulatedRun run_;
};

Status refuse(const char* what, const std::string& found, const std::string& expected) {
  return Status(StatusCode::kInvalidArgument,
                fmt::format("{}: found {}, expected {}", what, found, expected));
}

Status check(const RoutingTrace& trace, const SlotSimulation& s) {
  if (trace.tokens() == 0) return refuse("trace", "no tokens", "one or more");
  if (s.slots < trace.top_k || s.slots > trace.experts) {
    return refuse(
        "slots", fmt::format("{}", s.slots),
        fmt::format("{} (experts a token) to {} (experts a layer)", trace.top_k, trace.experts));
  }
  for (const double rate : {s.link_gbps, s.vram_gbps}) {
    if (!(rate > 0 && rate <= 1e6)) {
      return refuse("rate", fmt::format("{} GB/s", rate), "more than 0, at most 1000000");
    }
  }
  for (const double share : {s.slow_share, s.short_share, s.fail_share}) {
    if (!(share >= 0 && share <= 1)) return refuse("share", fmt::format("{}", share), "0 to 1");
  }
  if (s.short_share + s.fail_share > 1) {
    return refuse("shares of short and failing reads",
                  fmt::format("{} and {}", s.short_share, s.fail_share), "at most 1 together");
  }
  if (s.request_tokens < 1) {
    return refuse("request", fmt::format("{} tokens", s.request_tokens), "1 or more");
  }
  return Status();
}

}  // namespace

Result<SimulatedRun> simulate_slots(const RoutingTrace& trace, const SlotSimulation& simulation) {
  RETURN_IF_ERROR(check(trace, simulation));
  return Simulator(trace, simulation).run();
}

}  // namespace moray
