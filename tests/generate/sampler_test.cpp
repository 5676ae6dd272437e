// The sampler draws from the distribution its head describes, and never what it must not.
//
// Oracle: expected_distribution() enumerates every token's probability by the steps of sampler.h,
// written down plainly with full sorts and std::exp. Frequencies of many draws are held against it
// with a chi-square bound at p = 1e-4; seeds are fixed, so a pass is a pass forever.
#include "src/generate/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>

namespace moray {
namespace {

constexpr int64_t kRows = 12;  // the last two are padding, 5 is a hole

std::vector<TokenId> candidate_ids() {
  return {0, 1, 2, 3, 4, 6, 7, 8, 9};
}

// Padding and hole would win if they were looked at.
std::vector<float> sample_logits() {
  return {1.5f, 0.25f, -0.5f, 1.5f, 2.0f, 90.0f, 0.0f, -3.0f, 1.0f, -0.25f, 99.0f, 99.0f};
}

struct History {
  std::vector<TokenId> prompt;
  std::vector<TokenId> answer;
};

// Each step's result is stored as FP32, as frameworks store logits.
std::vector<float> adjusted_logits(const SamplingOptions& options, const History& history) {
  std::vector<float> adjusted = sample_logits();
  for (const auto& [id, bias] : options.logit_bias) adjusted[static_cast<size_t>(id)] += bias;
  for (size_t id = 0; id < adjusted.size(); ++id) {
    const auto token = static_cast<TokenId>(id);
    const auto uses = std::count(history.answer.begin(), history.answer.end(), token);
    const auto before = std::count(history.prompt.begin(), history.prompt.end(), token);
    double l = adjusted[id];
    if (uses + before > 0) {
      l = l > 0 ? l / options.repetition_penalty : l * options.repetition_penalty;
    }
    if (uses > 0) {
      l = static_cast<float>(l) - options.presence_penalty -
          options.frequency_penalty * static_cast<double>(uses);
    }
    adjusted[id] = static_cast<float>(l);
  }
  return adjusted;
}

std::map<TokenId, double> expected_distribution(const SamplingOptions& options,
                                                const History& history = {}) {
  const std::vector<float> logits = adjusted_logits(options, history);
  std::vector<TokenId> ids = candidate_ids();
  std::stable_sort(ids.begin(), ids.end(), [&](TokenId a, TokenId b) {
    return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
  });
  if (options.top_k > 0) {
    ids.resize(std::min(ids.size(), static_cast<size_t>(options.top_k)));
  }
  const double best = logits[static_cast<size_t>(ids[0])];
  std::vector<double> p;
  for (const TokenId id : ids) {
    p.push_back(std::exp((logits[static_cast<size_t>(id)] - best) / options.temperature));
  }
  while (p.back() < options.min_p) p.pop_back();
  double total = std::accumulate(p.begin(), p.end(), 0.0);
  size_t count = 0;
  for (double held = 0; count < p.size() && held < options.top_p * total;) held += p[count++];
  total = std::accumulate(p.begin(), p.begin() + static_cast<std::ptrdiff_t>(count), 0.0);
  std::map<TokenId, double> distribution;
  for (size_t i = 0; i < count; ++i) distribution[ids[i]] = p[i] / total;
  return distribution;
}

// The upper 1e-4 quantile of chi-square (Wilson and Hilferty 1931: a cube of a normal; to 1 %).
double chi_square_bound(double freedom) {
  const double z = 3.719;
  const double a = 2 / (9 * freedom);
  return freedom * std::pow(1 - a + z * std::sqrt(a), 3) * 1.01;
}

void expect_draws_follow(const SamplingOptions& options, const History& history = {}) {
  constexpr int kDraws = 40000;
  const auto expected = expected_distribution(options, history);
  const std::vector<TokenId> ids = candidate_ids();
  const std::vector<float> logits = sample_logits();
  std::map<TokenId, int> counts;
  // A sampler remembers its picks, so each draw gets a fresh copy of one that knows the history.
  Sampler prepared(options, ids, kRows);
  prepared.note_prompt(history.prompt);
  for (int i = 0; i < kDraws; ++i) {
    Sampler sampler = prepared;
    ++counts[*sampler.sample(logits, i)];
  }
  double chi_square = 0;
  for (const auto& [id, p] : expected) {
    chi_square += std::pow(counts[id] - kDraws * p, 2) / (kDraws * p);
  }
  for (const auto& [id, count] : counts) {
    EXPECT_TRUE(expected.contains(id)) << "token " << id << " was excluded, drawn " << count;
  }
  const double freedom = std::max<double>(1, static_cast<double>(expected.size()) - 1);
  EXPECT_LT(chi_square, chi_square_bound(freedom)) << expected.size() << " tokens remain";
}

SamplingOptions at_temperature(double temperature) {
  SamplingOptions options;
  options.temperature = temperature;
  options.seed = 20261130;
  return options;
}

TEST(Sampler, DrawsFollowTheTemperature) {
  for (const double temperature : {0.3, 1.0, 2.5}) {
    SCOPED_TRACE(temperature);
    expect_draws_follow(at_temperature(temperature));
  }
}

TEST(Sampler, DrawsFollowTopK) {
  for (const int64_t k : {1, 2, 3, 8, 9, 1000}) {
    SCOPED_TRACE(k);
    SamplingOptions options = at_temperature(1);
    options.top_k = k;
    expect_draws_follow(options);
  }
}

TEST(Sampler, DrawsFollowTopPAndMinPAndAllTogether) {
  for (const double top_p : {0.05, 0.4, 0.9, 1.0}) {
    for (const double min_p : {0.0, 0.1, 0.7}) {
      for (const int64_t top_k : {0, 5}) {
        SCOPED_TRACE(testing::Message() << top_p << " " << min_p << " " << top_k);
        SamplingOptions options = at_temperature(0.8);
        options.top_p = top_p;
        options.min_p = min_p;
        options.top_k = top_k;
        expect_draws_follow(options);
      }
    }
  }
}

TEST(Sampler, DrawsFollowBiasAndRepetitionPenaltyOfThePrompt) {
  SamplingOptions options = at_temperature(1);
  options.logit_bias = {{7, 4.0f}, {4, -100.0f}};
  options.repetition_penalty = 1.3;
  expect_draws_follow(options, {.prompt = {0, 2, 2, 9}, .answer = {}});
}

// Presence and frequency look at the answer only: sample greedily under them and follow by hand.
TEST(Sampler, PenaltiesCountTheAnswer) {
  SamplingOptions options;
  options.presence_penalty = 0.4;
  options.frequency_penalty = 0.3;
  options.repetition_penalty = 1.1;
  History history{.prompt = {4, 8}, .answer = {}};
  const std::vector<TokenId> ids = candidate_ids();
  Sampler sampler(options, ids, kRows);
  sampler.note_prompt(history.prompt);
  for (int i = 0; i < 30; ++i) {
    const std::vector<float> logits = adjusted_logits(options, history);
    TokenId expected = ids[0];
    for (const TokenId id : ids) {
      if (logits[static_cast<size_t>(id)] > logits[static_cast<size_t>(expected)]) expected = id;
    }
    const TokenId picked = *sampler.sample(sample_logits(), i);
    ASSERT_EQ(picked, expected) << "step " << i;
    history.answer.push_back(picked);
  }
}

TEST(Sampler, GreedyTakesTheLowerIdOfATieAndNeverPadding) {
  const std::vector<TokenId> ids = candidate_ids();
  std::vector<float> logits(kRows, 1.0f);
  logits[5] = logits[10] = logits[11] = 50.0f;
  logits[3] = logits[6] = 2.0f;
  Sampler sampler(SamplingOptions(), ids, kRows);
  EXPECT_EQ(*sampler.sample(logits, 0), 3);
}

TEST(Sampler, TopKOneIsGreedyAtAnyTemperature) {
  std::mt19937 random(7);
  const std::vector<TokenId> ids = candidate_ids();
  for (int i = 0; i < 200; ++i) {
    std::vector<float> logits(kRows);
    for (float& logit : logits) logit = static_cast<float>(random() % 5);  // ties abound
    SamplingOptions options = at_temperature(3);
    options.top_k = 1;
    Sampler hot(options, ids, kRows);
    Sampler greedy(SamplingOptions(), ids, kRows);
    ASSERT_EQ(*hot.sample(logits, i), *greedy.sample(logits, i)) << "case " << i;
  }
}

// Rows far longer than the blocks that are tested at once, with holes and ties everywhere: greedy
// and top-k pick from what a full sort says.
TEST(Sampler, LongRowsWithHolesAgreeWithASort) {
  const uint32_t seed = 5;
  std::mt19937 random(seed);
  for (int trial = 0; trial < 300; ++trial) {
    const int64_t rows = 1 + static_cast<int64_t>(random() % 700);
    std::vector<TokenId> ids;
    for (TokenId id = 0; id < rows; ++id) {
      if (random() % 50 != 0 || (ids.empty() && id + 1 == rows)) ids.push_back(id);
    }
    std::vector<float> logits(static_cast<size_t>(rows));
    for (float& logit : logits) logit = static_cast<float>(random() % 40) - 20;
    std::vector<TokenId> ranked = ids;
    std::stable_sort(ranked.begin(), ranked.end(), [&](TokenId a, TokenId b) {
      return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
    });
    ASSERT_EQ(*Sampler(SamplingOptions(), ids, rows).sample(logits, 0), ranked[0])
        << "seed " << seed << " trial " << trial;
    SamplingOptions options = at_temperature(1e6);  // beyond validate(): all k nearly equal
    options.top_k = 1 + static_cast<int64_t>(random() % 90);
    const size_t k = std::min(ranked.size(), static_cast<size_t>(options.top_k));
    std::map<TokenId, int> drawn;
    for (int i = 0; i < 200; ++i) ++drawn[*Sampler(options, ids, rows).sample(logits, i)];
    for (const auto& [id, count] : drawn) {
      const auto rank = std::find(ranked.begin(), ranked.end(), id) - ranked.begin();
      ASSERT_LT(rank, static_cast<std::ptrdiff_t>(k)) << "seed " << seed << " trial " << trial;
    }
    // A token of the k is missed by 200 draws with p = (1 - 1/k)^200; for k <= 8 below 3e-12.
    if (k > 8) continue;
    ASSERT_EQ(drawn.size(), k) << "seed " << seed << " trial " << trial;
  }
}

std::vector<TokenId> sixteen_picks(uint64_t seed) {
  const std::vector<TokenId> ids = candidate_ids();
  SamplingOptions options = at_temperature(1.5);
  options.seed = seed;
  Sampler sampler(options, ids, kRows);
  std::vector<TokenId> tokens;
  for (int i = 0; i < 16; ++i) tokens.push_back(*sampler.sample(sample_logits(), i));
  return tokens;
}

TEST(Sampler, SameSeedSamePicksOtherSeedOtherPicks) {
  EXPECT_EQ(sixteen_picks(3), sixteen_picks(3));
  EXPECT_NE(sixteen_picks(3), sixteen_picks(4));
}

// The picks of one seed, written down: they may change only with the documented method.
TEST(Sampler, TheMethodIsPinned) {
  EXPECT_EQ(sixteen_picks(3),
            (std::vector<TokenId>{8, 2, 6, 0, 8, 4, 8, 8, 0, 3, 4, 1, 4, 8, 0, 1}));
}

TEST(Sampler, ExtremeLogitsAndTemperaturesStayInRange) {
  const std::vector<TokenId> ids = candidate_ids();
  const float huge = std::numeric_limits<float>::max();
  std::vector<float> logits(kRows, -huge);
  logits[8] = huge;
  for (const double temperature : {1e-300, 1e-3, 1.0, 100.0}) {
    Sampler sampler(at_temperature(temperature), ids, kRows);
    EXPECT_EQ(*sampler.sample(logits, 0), 8) << temperature;
  }
}

// B46: a NaN or infinity never becomes a token; the message says which and where.
TEST(Sampler, B46NonFiniteLogitsAreReported) {
  const std::vector<TokenId> ids = candidate_ids();
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()}) {
    for (const double temperature : {0.0, 1.0}) {
      std::vector<float> logits = sample_logits();
      logits[7] = bad;
      Sampler sampler(at_temperature(temperature), ids, kRows);
      const auto picked = sampler.sample(logits, 41);
      ASSERT_FALSE(picked.ok());
      EXPECT_EQ(picked.status().code(), StatusCode::kInvalidFile);
      EXPECT_NE(picked.status().message().find("token 7 at position 41"), std::string::npos);
    }
  }
}

TEST(Sampler, PaddingMayHoldAnything) {
  const std::vector<TokenId> ids = candidate_ids();
  std::vector<float> logits = sample_logits();
  logits[5] = logits[11] = std::nanf("");
  Sampler sampler(SamplingOptions(), ids, kRows);
  EXPECT_EQ(*sampler.sample(logits, 0), 4);
}

template <typename Change>
void expect_refused(const std::string& field, Change change) {
  SamplingOptions options;
  change(options);
  const Status status = validate(options, 100);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << field;
  EXPECT_TRUE(status.message().starts_with(field + ": found ")) << status.message();
  EXPECT_NE(status.message().find("expected"), std::string::npos) << status.message();
}

// B06: out-of-range numbers are refused by name.
TEST(SamplingOptions, B06OutOfRangeFieldsAreNamed) {
  using O = SamplingOptions;
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double bad : {-1.0, 1e308, std::nan(""), infinity}) {
    expect_refused("temperature", [bad](O& o) { o.temperature = bad; });
    expect_refused("min_p", [bad](O& o) { o.min_p = bad; });
    expect_refused("top_p", [bad](O& o) { o.top_p = bad; });
    expect_refused("repetition_penalty", [bad](O& o) { o.repetition_penalty = bad; });
  }
  for (const double bad : {-1e308, 1e308, std::nan(""), -infinity}) {
    expect_refused("presence_penalty", [bad](O& o) { o.presence_penalty = bad; });
    expect_refused("frequency_penalty", [bad](O& o) { o.frequency_penalty = bad; });
  }
  expect_refused("top_p", [](O& o) { o.top_p = 0; });
  expect_refused("top_k", [](O& o) { o.top_k = -1; });
  expect_refused("logit_bias", [](O& o) { o.logit_bias = {{-1, 1.0f}}; });
  expect_refused("logit_bias", [](O& o) { o.logit_bias = {{100, 1.0f}}; });
  expect_refused("logit_bias", [](O& o) { o.logit_bias = {{1, std::nanf("")}}; });
  EXPECT_TRUE(validate(SamplingOptions(), 100).ok());
}

}  // namespace
}  // namespace moray
