// moray selftest: every GPU kernel of a model against its oracle, then the whole GPU against the
// CPU.
//
// The first is what a first start does on few sizes: random inputs, bounds derived for each kernel;
// it needs no weights, so that a config.json will do. In the second, left out for random weights,
// which turn roundings into other routes, both score the same pseudo-random tokens, once in blocks
// (the kernels of a prompt) and once 16 and once 1 at a time (those of a decode step). Compared are
// the log-probabilities of the tokens: the CPU's rounding to BF16 and a GPU's differ by about a
// hundredth, a wrong kernel by far more. FP8 activations, which a GPU uses for prompts of models
// that declare them, cost more than BF16.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <span>

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

std::string table_of(std::span<const KernelReport> reports) {
  std::string table = fmt::format("{:<24}{:>7}{:>12}{:>12}{:>12}{:>9}\n", "kernel", "cases",
                                  "elements", "error", "allowed", "share");
  for (const KernelReport& report : reports) {
    table += fmt::format("{:<24}{:>7}{:>12}{:>12.3g}{:>12.3g}{:>9.3f}  {}\n", report.kernel,
                         report.cases, report.elements, report.error, report.bound, report.ratio,
                         report.is_good() ? "good" : "WRONG: " + report.where);
  }
  return table;
}

// Seeds are new each time; a line of the table names the one that went wrong.
Status test_kernels(const Options& options, Output& output) {
  EngineOptions engine;
  ASSIGN_OR_RETURN(engine.model_folder, find_model(options));
  engine.device = options.common.device;
  engine.random_weights = options.common.random_weights;
  std::random_device entropy;
  const uint64_t seeds[] = {entropy(), entropy(), entropy()};
  ASSIGN_OR_RETURN(const auto reports, check_kernels(engine, seeds));
  output.write(table_of(reports));
  std::string wrong;
  for (const KernelReport& report : reports) {
    if (!report.is_good()) wrong += (wrong.empty() ? "" : ", ") + report.kernel;
  }
  if (wrong.empty()) return output.status();
  return Status(StatusCode::kUnsupported,
                fmt::format("selftest: found {} wrong on this GPU, expected its oracle's values; "
                            "--device cpu is safe",
                            wrong));
}

Status compare_with_cpu(const Options& gpu_options, Output& output) {
  Options cpu_options = gpu_options;
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

}  // namespace

Status selftest_command(const Options& options, Output& output) {
  Options gpu_options = options;
  if (gpu_options.common.device == "auto") gpu_options.common.device = "cuda";
  RETURN_IF_ERROR(test_kernels(gpu_options, output));
  if (gpu_options.common.random_weights) return output.status();
  return compare_with_cpu(gpu_options, output);
}

}  // namespace moray
