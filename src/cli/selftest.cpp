// moray selftest: the GPU against the CPU on the same model, every stage of it.
//
// Both score the same pseudo-random tokens, once in blocks (the kernels of a prompt) and once 16
// and once 1 at a time (those of a decode step). Compared are the log-probabilities of the tokens:
// the CPU's rounding to BF16 and a GPU's differ by about a hundredth, a wrong kernel by far more.
// FP8 activations, which a GPU uses for prompts of models that declare them, cost more than BF16.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "src/cli/command.h"
#include "src/cli/model_choice.h"

namespace moray {
namespace {

constexpr int64_t kTokens = 300;
// Of the mean difference of a log-probability. A single one may be off by more where a close
// decision of a router turns.
constexpr double kStepDifferenceMax = 0.05;
constexpr double kBlockDifferenceMax = 0.2;

struct Way {
  const char* name;
  int64_t call_tokens;  // 0: all at once
  double allowed;
};
constexpr Way kWays[] = {{"in blocks", 0, kBlockDifferenceMax},
                         {"16 at a time", 16, kStepDifferenceMax},
                         {"one at a time", 1, kStepDifferenceMax}};

std::vector<TokenId> some_tokens(int64_t vocabulary) {
  std::vector<TokenId> tokens;
  uint64_t value = 1;
  for (int64_t i = 0; i < kTokens; ++i) {
    value = value * 48271 % 2147483647;
    tokens.push_back(static_cast<TokenId>(value % static_cast<uint64_t>(vocabulary)));
  }
  return tokens;
}

Result<std::vector<double>> score(const Engine& engine, const std::vector<TokenId>& tokens,
                                  int64_t call_tokens) {
  ASSIGN_OR_RETURN(const auto session, engine.new_session());
  std::vector<double> scores;
  const auto size = static_cast<int64_t>(tokens.size());
  for (int64_t at = 0; at < size;) {
    const int64_t end = call_tokens == 0 ? size : std::min(at + call_tokens, size);
    ASSIGN_OR_RETURN(const auto part,
                     session->score({tokens.begin() + at, tokens.begin() + end}, nullptr));
    scores.insert(scores.end(), part.begin(), part.end());
    at = end;
  }
  return scores;
}

double mean_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += std::abs(a[i] - b[i]);
  return sum / static_cast<double>(a.size());
}

}  // namespace

Status selftest_command(const Options& options, Output& output) {
  Options gpu_options = options;
  if (gpu_options.common.device == "auto") gpu_options.common.device = "cuda";
  Options cpu_options = options;
  cpu_options.common.device = "cpu";
  cpu_options.common.has_fp8_kv = false;  // only a GPU has them
  if (cpu_options.common.context == 0) cpu_options.common.context = 2 * kTokens;
  ASSIGN_OR_RETURN(const auto gpu, open_engine(gpu_options));
  ASSIGN_OR_RETURN(const auto cpu, open_engine(cpu_options));
  output.write(gpu->backend_line() + "\n" + cpu->backend_line() + "\n");
  const std::vector<TokenId> tokens = some_tokens(gpu->vocab_rows());
  ASSIGN_OR_RETURN(const auto expected, score(*cpu, tokens, 0));
  std::string failed;
  for (const Way& way : kWays) {
    ASSIGN_OR_RETURN(const auto found, score(*gpu, tokens, way.call_tokens));
    const double difference = mean_difference(found, expected);
    const bool is_good = difference <= way.allowed;  // false for NaN
    output.write(fmt::format("{:<14} mean difference of a log-probability {:.5f}, allowed {}: {}\n",
                             way.name, difference, way.allowed, is_good ? "good" : "WRONG"));
    if (!is_good) failed += (failed.empty() ? "" : ", ") + std::string(way.name);
  }
  if (failed.empty()) return output.status();
  return Status(StatusCode::kUnsupported,
                fmt::format("selftest: found the GPU wrong with tokens {}, expected the CPU's "
                            "numbers; --device cpu is safe",
                            failed));
}

}  // namespace moray
