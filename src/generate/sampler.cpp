// The steps of sampler.h, one function each.
#include "src/generate/sampler.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>

#include "src/base/check.h"
#include "src/generate/exponential.h"
#include "src/generate/random.h"

namespace moray {
namespace {

constexpr double kTemperatureMax = 100;
constexpr double kPenaltyMax = 100;
constexpr int64_t kTopKMax = 1 << 30;

Status out_of_range(const char* field, double found, const char* expected) {
  return Status(StatusCode::kInvalidArgument,
                fmt::format("{}: found {}, expected {}", field, found, expected));
}

// Rows tested at once: enough for the loop to run in vector registers, few enough that a hit costs
// little to look at again.
constexpr TokenId kTestedRows = 64;

bool is_finite(float value) {
  return value - value == 0;
}

bool any_non_finite(const float* logits, TokenId count) {
  int found = 0;
  for (TokenId i = 0; i < count; ++i) found |= !is_finite(logits[i]);
  return found != 0;
}

bool any_above(const float* logits, TokenId count, float threshold) {
  int found = 0;
  for (TokenId i = 0; i < count; ++i) found |= logits[i] > threshold;
  return found != 0;
}

}  // namespace

Status validate(const SamplingOptions& options, int64_t token_count) {
  const auto within = [](double value, double low, double high) {
    return value >= low && value <= high;  // false for NaN
  };
  if (!within(options.temperature, 0, kTemperatureMax)) {
    return out_of_range("temperature", options.temperature, "0 (greedy) to 100");
  }
  if (options.top_k < 0 || options.top_k > kTopKMax) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("top_k: found {}, expected 0 (off) to {}", options.top_k, kTopKMax));
  }
  if (!(options.top_p > 0 && options.top_p <= 1)) {
    return out_of_range("top_p", options.top_p, "more than 0, at most 1 (off)");
  }
  if (!within(options.min_p, 0, 1)) return out_of_range("min_p", options.min_p, "0 (off) to 1");
  if (!(options.repetition_penalty > 0 && options.repetition_penalty <= kPenaltyMax)) {
    return out_of_range("repetition_penalty", options.repetition_penalty,
                        "more than 0, at most 100; 1 is off");
  }
  if (!within(options.presence_penalty, -kPenaltyMax, kPenaltyMax)) {
    return out_of_range("presence_penalty", options.presence_penalty, "-100 to 100; 0 is off");
  }
  if (!within(options.frequency_penalty, -kPenaltyMax, kPenaltyMax)) {
    return out_of_range("frequency_penalty", options.frequency_penalty, "-100 to 100; 0 is off");
  }
  for (const auto& [id, bias] : options.logit_bias) {
    if (id < 0 || id >= token_count) {
      return Status(
          StatusCode::kInvalidArgument,
          fmt::format("logit_bias: found token {}, expected 0 to {}", id, token_count - 1));
    }
    if (!within(bias, -kPenaltyMax, kPenaltyMax)) {
      return out_of_range("logit_bias", bias, "a bias of -100 to 100");
    }
  }
  return Status();
}

Sampler::Sampler(const SamplingOptions& options, std::span<const TokenId> candidates,
                 int64_t vocab_rows)
    : options_(options), candidate_count_(static_cast<int64_t>(candidates.size())) {
  CHECK(!candidates.empty() && candidates.back() < vocab_rows, candidates.size(), vocab_rows);
  for (const TokenId id : candidates) {
    if (runs_.empty() || runs_.back().end != id) runs_.push_back({id, id});
    runs_.back().end = id + 1;
  }
  is_adjusting_ = !options.logit_bias.empty() || options.repetition_penalty != 1 ||
                  options.presence_penalty != 0 || options.frequency_penalty != 0;
  const size_t rows = static_cast<size_t>(vocab_rows);
  adjusted_.resize(rows);
  const size_t kept = options.top_k > 0 ? static_cast<size_t>(options.top_k) : candidates.size();
  if (options.temperature > 0) entries_.reserve(std::min(kept, candidates.size()));
  is_seen_.resize(rows);
  seen_.reserve(rows);
  answer_counts_.resize(rows);
  answer_.reserve(rows);
}

void Sampler::note_prompt(std::span<const TokenId> tokens) {
  for (const TokenId id : tokens) {
    uint8_t& is_seen = is_seen_[static_cast<size_t>(id)];
    if (!is_seen) seen_.push_back(id);
    is_seen = 1;
  }
}

void Sampler::note_answer(TokenId id) {
  note_prompt({&id, 1});
  if (answer_counts_[static_cast<size_t>(id)]++ == 0) answer_.push_back(id);
}

std::optional<TokenId> Sampler::find_non_finite(std::span<const float> logits) const {
  for (const Run& run : runs_) {
    for (TokenId begin = run.begin; begin < run.end; begin += kTestedRows) {
      const TokenId count = std::min(kTestedRows, run.end - begin);
      if (!any_non_finite(logits.data() + begin, count)) continue;
      TokenId id = begin;
      while (is_finite(logits[static_cast<size_t>(id)])) ++id;
      return id;
    }
  }
  return std::nullopt;
}

Result<TokenId> Sampler::sample(std::span<const float> logits, int64_t position) {
  CHECK(logits.size() == adjusted_.size(), logits.size(), adjusted_.size());
  if (const auto bad = find_non_finite(logits)) {
    return Status(StatusCode::kInvalidFile,
                  fmt::format("logits: found {} for token {} at position {}, expected a finite "
                              "number (damaged weights or a numeric overflow)",
                              logits[static_cast<size_t>(*bad)], *bad, position));
  }
  if (is_adjusting_) {
    adjust(logits);
    logits = adjusted_;
  }
  TokenId id = 0;
  if (options_.temperature == 0) {
    id = argmax(logits);
  } else {
    is_ranked_ = options_.top_k > 0 && options_.top_k < candidate_count_;
    entries_.clear();
    if (is_ranked_) {
      keep_top_k(logits);
    } else {
      keep_all(logits);
    }
    weigh();
    keep_min_p();
    keep_top_p();
    id = draw(position);
  }
  note_answer(id);
  return id;
}

void Sampler::adjust(std::span<const float> logits) {
  std::copy(logits.begin(), logits.end(), adjusted_.begin());
  const auto change = [this](TokenId id, double logit) {
    constexpr double kMax = std::numeric_limits<float>::max();
    adjusted_[static_cast<size_t>(id)] = static_cast<float>(std::clamp(logit, -kMax, kMax));
  };
  const auto current = [this](TokenId id) -> double { return adjusted_[static_cast<size_t>(id)]; };
  for (const auto& [id, bias] : options_.logit_bias) change(id, current(id) + bias);
  if (options_.repetition_penalty != 1) {
    const double penalty = options_.repetition_penalty;
    for (const TokenId id : seen_) {
      const double logit = current(id);
      change(id, logit > 0 ? logit / penalty : logit * penalty);
    }
  }
  for (const TokenId id : answer_) {
    const double count = answer_counts_[static_cast<size_t>(id)];
    change(id, current(id) - options_.presence_penalty - options_.frequency_penalty * count);
  }
}

TokenId Sampler::argmax(std::span<const float> logits) const {
  TokenId best = runs_[0].begin;
  float best_logit = logits[static_cast<size_t>(best)];
  for (const Run& run : runs_) {
    for (TokenId begin = run.begin; begin < run.end; begin += kTestedRows) {
      const TokenId end = std::min(begin + kTestedRows, run.end);
      if (!any_above(logits.data() + begin, end - begin, best_logit)) continue;
      for (TokenId id = begin; id < end; ++id) {
        if (logits[static_cast<size_t>(id)] <= best_logit) continue;
        best = id;
        best_logit = logits[static_cast<size_t>(id)];
      }
    }
  }
  return best;
}

void Sampler::keep_all(std::span<const float> logits) {
  for (const Run& run : runs_) {
    for (TokenId id = run.begin; id < run.end; ++id) {
      entries_.push_back({logits[static_cast<size_t>(id)], id, 0});
    }
  }
}

// A heap of the k best so far, its worst on top. Ids ascend, so a later equal displaces none.
void Sampler::keep_top_k(std::span<const float> logits) {
  const size_t k = static_cast<size_t>(options_.top_k);
  for (const Run& run : runs_) {
    for (TokenId begin = run.begin; begin < run.end; begin += kTestedRows) {
      const TokenId end = std::min(begin + kTestedRows, run.end);
      if (entries_.size() == k &&
          !any_above(logits.data() + begin, end - begin, entries_[0].logit)) {
        continue;
      }
      for (TokenId id = begin; id < end; ++id) {
        const float logit = logits[static_cast<size_t>(id)];
        if (entries_.size() == k) {
          if (logit <= entries_[0].logit) continue;
          std::pop_heap(entries_.begin(), entries_.end(), ranks_before);
          entries_.pop_back();
        }
        entries_.push_back({logit, id, 0});
        std::push_heap(entries_.begin(), entries_.end(), ranks_before);
      }
    }
  }
  std::sort_heap(entries_.begin(), entries_.end(), ranks_before);
}

void Sampler::weigh() {
  double max = entries_[0].logit;
  for (const Entry& entry : entries_) max = std::max<double>(max, entry.logit);
  for (Entry& entry : entries_) {
    entry.weight = exp_nonpositive((static_cast<double>(entry.logit) - max) / options_.temperature);
  }
}

// The largest weight is exactly 1, so min_p needs no sum.
void Sampler::keep_min_p() {
  if (options_.min_p == 0) return;
  std::erase_if(entries_, [&](const Entry& entry) { return entry.weight < options_.min_p; });
}

void Sampler::keep_top_p() {
  if (options_.top_p == 1) return;
  double total = 0;
  for (const Entry& entry : entries_) total += entry.weight;
  const double wanted = options_.top_p * total;
  double held = 0;
  if (is_ranked_) {
    size_t count = 0;
    while (count < entries_.size() && (count == 0 || held < wanted)) {
      held += entries_[count++].weight;
    }
    entries_.resize(count);
    return;
  }
  // A heap yields the few largest without sorting the whole vocabulary.
  const auto ranks_after = [](const Entry& a, const Entry& b) { return ranks_before(b, a); };
  std::make_heap(entries_.begin(), entries_.end(), ranks_after);
  auto first_kept = entries_.end();
  do {
    std::pop_heap(entries_.begin(), first_kept, ranks_after);
    --first_kept;
    held += first_kept->weight;
  } while (first_kept != entries_.begin() && held < wanted);
  const auto kept = entries_.end() - first_kept;
  std::reverse(entries_.begin(), entries_.end());
  entries_.resize(static_cast<size_t>(kept));
}

TokenId Sampler::draw(int64_t position) const {
  double total = 0;
  for (const Entry& entry : entries_) total += entry.weight;
  const double target = uniform_at(options_.seed, static_cast<uint64_t>(position)) * total;
  double sum = 0;
  TokenId last = entries_[0].id;
  for (const Entry& entry : entries_) {
    if (entry.weight == 0) continue;
    sum += entry.weight;
    last = entry.id;
    if (sum > target) break;
  }
  return last;
}

}  // namespace moray
