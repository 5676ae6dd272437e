// Traces with a published locality; see moray/tools.h.
//
// Each choice first draws how long ago its expert was last used (the token before, 2 to 8 tokens
// before, longer or never), then one of the experts of that age. Figures: kekzl/imp issue 1359
// (45 % on the next token, 80 % within 8, a median distance of 2).
#include <algorithm>
#include <cmath>
#include <functional>
#include <span>

#include "moray/tools.h"
#include "src/base/check.h"
#include "src/generate/random.h"

namespace moray {
namespace {

constexpr double kRepeats = 0.45;
constexpr double kWithin8 = 0.80;
constexpr int64_t kNever = -(int64_t{1} << 40);

enum class Age { kOne, kUpTo8, kOlder };

Age age_of(int64_t tokens_ago) {
  return tokens_ago == 1 ? Age::kOne : tokens_ago <= 8 ? Age::kUpTo8 : Age::kOlder;
}

// Draws in the order they are asked for.
class Draws {
 public:
  explicit Draws(uint64_t seed) : seed_(seed) {}
  double next() { return uniform_at(seed_, position_++); }

 private:
  uint64_t seed_;
  uint64_t position_ = 0;
};

// One layer's choices for one token; `last[e]` is the token that used e.
void choose(int64_t token, std::vector<int64_t>& last, Draws& draws, std::span<uint16_t> ids) {
  std::vector<uint16_t> of_age;
  for (uint16_t& id : ids) {
    const double kind = draws.next();
    const Age wanted = kind < kRepeats ? Age::kOne : kind < kWithin8 ? Age::kUpTo8 : Age::kOlder;
    of_age.clear();
    std::vector<uint16_t> free;
    for (size_t expert = 0; expert < last.size(); ++expert) {
      if (last[expert] == token) continue;
      free.push_back(static_cast<uint16_t>(expert));
      if (age_of(token - last[expert]) == wanted) of_age.push_back(static_cast<uint16_t>(expert));
    }
    const std::vector<uint16_t>& from = of_age.empty() ? free : of_age;
    const auto index = static_cast<size_t>(draws.next() * static_cast<double>(from.size()));
    id = from[std::min(index, from.size() - 1)];
    last[id] = token;
  }
}

// Shares of a unit, as a softmax over a few chosen logits spreads them.
void spread(Draws& draws, std::span<float> weights) {
  float sum = 0;
  for (float& weight : weights) sum += weight = static_cast<float>(0.1 + draws.next());
  for (float& weight : weights) weight /= sum;
  std::sort(weights.begin(), weights.end(), std::greater<>());
}

}  // namespace

RoutingTrace make_routing_trace(const RoutingShape& shape, uint64_t seed) {
  CHECK(shape.experts <= 65536 && shape.top_k >= 1 && shape.top_k <= shape.experts, shape.experts,
        shape.top_k);
  RoutingTrace trace;
  trace.layers = shape.layers;
  trace.experts = shape.experts;
  trace.top_k = shape.top_k;
  const auto row = static_cast<size_t>(shape.top_k);
  trace.ids.resize(static_cast<size_t>(shape.tokens * shape.layers) * row);
  trace.weights.resize(trace.ids.size());
  std::vector<std::vector<int64_t>> last(
      static_cast<size_t>(shape.layers),
      std::vector<int64_t>(static_cast<size_t>(shape.experts), kNever));
  Draws draws(seed);
  size_t at = 0;
  for (int64_t token = 0; token < shape.tokens; ++token) {
    if (shape.cancel != nullptr && *shape.cancel) break;
    for (std::vector<int64_t>& layer : last) {
      choose(token, layer, draws, {trace.ids.data() + at, row});
      spread(draws, {trace.weights.data() + at, row});
      at += row;
    }
  }
  trace.ids.resize(at);
  trace.weights.resize(at);
  return trace;
}

}  // namespace moray
