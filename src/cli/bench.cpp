// moray bench: prefill and decode speed beside what the memory allows.
//
// Tests are named as llama-bench names them: pp512 reads 512 tokens, tg128 makes 128 one at a time,
// "@d4096" with 4096 tokens already in the context. Tokens are pseudo-random ids (a fixed
// sequence), so that no text decides which experts run. Per test: one warm-up run, then `runs`
// timed ones; tokens_per_s is their median, spread their standard deviation.
//
// For decode, bytes_per_token is what a step must read (weights of the layers, top-k experts and
// head, states, KV at the test's middle depth) and roofline_share is the time in which this
// engine's threads just read that many bytes, right before the test, over the time a token took.
// Prefill and batches (-b) share their reads among tokens, so both are null there.
//
// On a GPU decode is timed as greedy answers run: the device picks each next token, from a
// pseudo-random first one. --stages shows every kernel of a step instead.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "src/cli/command.h"
#include "src/cli/interrupt.h"
#include "src/cli/machine.h"
#include "src/cli/model_choice.h"
#include "src/cli/progress.h"
#include "src/cli/version.h"

namespace moray {
namespace {

enum class Phase { kPrefill, kDecode };

struct BenchTest {
  Phase phase;
  int64_t tokens;
  int64_t depth;
  int64_t batch;  // tokens a decode step

  std::string name() const {
    std::string text = fmt::format("{}{}", phase == Phase::kPrefill ? "pp" : "tg", tokens);
    if (phase == Phase::kDecode && batch > 1) text += fmt::format("b{}", batch);
    if (depth > 0) text += fmt::format("@d{}", depth);
    return text;
  }
};

struct Measurement {
  BenchTest test{};
  std::vector<double> tokens_per_second;  // of each run
  int64_t bytes_per_token = 0;            // decode only
  double read_seconds = 0;                // of bytes_per_token; decode only
  int64_t peak_bytes = 0;
  std::string clock;

  double median() const {
    std::vector<double> sorted = tokens_per_second;
    std::sort(sorted.begin(), sorted.end());
    const size_t middle = sorted.size() / 2;
    return sorted.size() % 2 == 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
  }
  double deviation() const {
    const double count = static_cast<double>(tokens_per_second.size());
    if (count < 2) return 0;
    const double mean =
        std::accumulate(tokens_per_second.begin(), tokens_per_second.end(), 0.0) / count;
    double squares = 0;
    for (const double speed : tokens_per_second) squares += (speed - mean) * (speed - mean);
    return std::sqrt(squares / (count - 1));
  }
  double roofline_share() const { return read_seconds * median(); }
};

std::vector<BenchTest> tests_of(const Options& options) {
  std::vector<BenchTest> tests;
  for (const int64_t depth : options.depths) {
    for (const int64_t tokens : options.prompt_lengths) {
      if (tokens > 0) tests.push_back({Phase::kPrefill, tokens, depth, 1});
    }
    for (const int64_t tokens : options.generate_lengths) {
      if (tokens > 0) tests.push_back({Phase::kDecode, tokens, depth, options.batch});
    }
  }
  return tests;
}

// A fixed sequence of ids spread over the vocabulary (multiplicative congruence, modulus 2^31 - 1);
// without a tokenizer every row of the head is a token.
std::vector<TokenId> spread_tokens(const Engine& engine, int64_t count, uint64_t start) {
  const bool has_tokenizer = engine.tokenizer_status().ok();
  const auto limit =
      static_cast<uint64_t>(has_tokenizer ? engine.tokenizer().token_count() : engine.vocab_rows());
  std::vector<TokenId> tokens;
  uint64_t value = start + 1;
  while (static_cast<int64_t>(tokens.size()) < count) {
    value = value * 48271 % 2147483647;
    const auto id = static_cast<TokenId>(value % limit);
    if (!has_tokenizer || engine.tokenizer().is_token(id)) tokens.push_back(id);
  }
  return tokens;
}

// Seconds of the timed part of one run.
Result<double> run_once(const Engine& engine, Session& session, const BenchTest& test) {
  const auto keep_going = [](int64_t, int64_t) { return !is_interrupted(); };
  session.reset();
  if (test.depth > 0) {
    RETURN_IF_ERROR(session.feed(spread_tokens(engine, test.depth, 1), keep_going));
  }
  const auto tokens = spread_tokens(engine, test.tokens, 2);
  std::vector<TokenId> step;
  const auto start = std::chrono::steady_clock::now();
  if (test.phase == Phase::kPrefill) {
    RETURN_IF_ERROR(session.feed(tokens, keep_going));
  } else if (engine.device_facts() && test.batch == 1) {
    RETURN_IF_ERROR(session.continue_greedily(tokens.front(), test.tokens).status());
  } else {
    for (size_t at = 0; at < tokens.size(); at += step.size()) {
      step.resize(std::min(static_cast<size_t>(test.batch), tokens.size() - at));
      std::copy_n(tokens.begin() + static_cast<std::ptrdiff_t>(at), step.size(), step.begin());
      RETURN_IF_ERROR(session.feed(step, keep_going));
    }
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

Result<Measurement> measure(const Engine& engine, Session& session, const BenchTest& test,
                            const Options& options) {
  Measurement result;
  result.test = test;
  if (test.phase == Phase::kDecode && test.batch == 1) {
    const int64_t middle_depth = test.depth + test.tokens / 2;
    result.bytes_per_token = engine.decode_bytes(middle_depth);
    ASSIGN_OR_RETURN(result.read_seconds, engine.measure_read_seconds(middle_depth));
  }
  Progress progress(test.name(), ProgressUnit::kTokens, !options.common.is_quiet);
  for (int64_t run = -1; run < options.repetitions; ++run) {
    ASSIGN_OR_RETURN(const double seconds, run_once(engine, session, test));
    progress.update((run + 2) * test.tokens, (options.repetitions + 1) * test.tokens);
    if (run >= 0) {
      result.tokens_per_second.push_back(static_cast<double>(test.tokens) / seconds);
    }
  }
  const std::optional<DeviceFacts> device = engine.device_facts();
  result.peak_bytes = device ? device->used_bytes : peak_memory_bytes();
  result.clock = device ? device->clocks : processor_clock();
  return result;
}

std::string json_line(const Engine& engine, const Measurement& m, const Options& options) {
  const bool is_decode = m.test.phase == Phase::kDecode && m.test.batch == 1;
  nlohmann::ordered_json line;
  line["model"] = engine.model_name();
  const std::optional<DeviceFacts> device = engine.device_facts();
  line["device"] = device ? device->device : processor_name();
  line["backend"] = engine.backend_line();
  line["weights"] = engine.weights_line();
  line["kv"] = engine.kv_line();
  line["options"] = fmt::format("ctx={} activations={}", engine.context(),
                                options.common.is_float32 ? "F32" : "BF16");
  line["batch"] = m.test.batch;
  line["test"] = m.test.name();
  line["tokens_per_s"] = m.median();
  line["spread"] = m.deviation();
  line["runs"] = m.tokens_per_second.size();
  line["bytes_per_token"] = is_decode ? nlohmann::ordered_json(m.bytes_per_token) : nullptr;
  line["roofline_share"] = is_decode ? nlohmann::ordered_json(m.roofline_share()) : nullptr;
  line["peak_bytes"] = m.peak_bytes;
  line["clocks"] = m.clock;
  line["driver"] = device ? device->driver : system_release();
  line["command"] = options.command_line;
  line["commit"] = commit_id();
  return line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + '\n';
}

std::string markdown_head(const Engine& engine) {
  return fmt::format(
      "{}, {} weights, {} KV, {}, {}, {}\n\n"
      "| test | tokens/s | spread | MB/token | read limit, tokens/s | share of limit |\n"
      "|---|---:|---:|---:|---:|---:|\n",
      engine.model_name(), engine.weights_line(), engine.kv_line(), engine.backend_line(),
      engine.device_facts() ? engine.device_facts()->driver : processor_name(), version_line());
}

std::string markdown_row(const Measurement& m) {
  const std::string speed =
      fmt::format("| {} | {:.1f} | {:.1f} |", m.test.name(), m.median(), m.deviation());
  if (m.bytes_per_token == 0) return speed + " | | |\n";
  return speed + fmt::format(" {:.2f} | {:.1f} | {:.1f} % |\n",
                             static_cast<double>(m.bytes_per_token) / 1e6, 1 / m.read_seconds,
                             100 * m.roofline_share());
}

// One kernel of a step: the time and traffic of one launch, beside what a read reaches.
std::string stage_line(const Engine& engine, const StageTime& stage, int64_t depth,
                       double read_rate, BenchFormat format) {
  const double rate = static_cast<double>(stage.bytes) / stage.seconds;
  if (format == BenchFormat::kMarkdown) {
    return fmt::format("| {} | {} | {:.2f} | {:.2f} | {:.3f} | {:.0f} | {:.1f} % | {:.2f} |\n",
                       stage.name, stage.launches, 1e6 * stage.seconds,
                       1e6 * stage.seconds * static_cast<double>(stage.launches),
                       static_cast<double>(stage.bytes) / 1e6, rate / 1e9, 100 * rate / read_rate,
                       stage.operations / stage.seconds / 1e12);
  }
  nlohmann::ordered_json line;
  line["model"] = engine.model_name();
  line["device"] = engine.device_facts()->device;
  line["backend"] = engine.backend_line();
  line["stage"] = stage.name;
  line["depth"] = depth;
  line["launches"] = stage.launches;
  line["microseconds"] = 1e6 * stage.seconds;
  line["bytes"] = stage.bytes;
  line["gigabytes_per_s"] = rate / 1e9;
  line["read_share"] = rate / read_rate;
  line["teraflops"] = stage.operations / stage.seconds / 1e12;
  line["commit"] = commit_id();
  return line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + '\n';
}

Status run_stages(const Engine& engine, const Options& options, Output& output) {
  const bool is_markdown = options.format == BenchFormat::kMarkdown;
  for (const int64_t depth : options.depths) {
    ASSIGN_OR_RETURN(const std::vector<StageTime> stages, engine.measure_stages(depth));
    ASSIGN_OR_RETURN(const double read_seconds, engine.measure_read_seconds(depth));
    const double read_rate = static_cast<double>(engine.decode_bytes(depth)) / read_seconds;
    if (is_markdown) {
      output.write(
          fmt::format("{}, {}, depth {}; a read reaches {:.0f} GB/s\n\n"
                      "| stage | launches | us | us a step | MB | GB/s | of the read | TFLOP/s |\n"
                      "|---|---:|---:|---:|---:|---:|---:|---:|\n",
                      engine.model_name(), engine.backend_line(), depth, read_rate / 1e9));
    }
    for (const StageTime& stage : stages) {
      output.write(stage_line(engine, stage, depth, read_rate, options.format));
    }
  }
  return output.status();
}

Status run_tests(const Options& options, Output& output) {
  const std::vector<BenchTest> tests = tests_of(options);
  if (tests.empty()) {
    return Status(StatusCode::kInvalidArgument, "bench: found no test, expected -p or -n above 0");
  }
  ASSIGN_OR_RETURN(const auto engine, open_engine(options));
  if (options.has_stages) return run_stages(*engine, options, output);
  for (const BenchTest& test : tests) {
    if (test.depth + test.tokens <= engine->context()) continue;
    return Status(StatusCode::kExhausted,
                  fmt::format("{}: found {} tokens, expected at most {} (the context)", test.name(),
                              test.depth + test.tokens, engine->context()));
  }
  ASSIGN_OR_RETURN(const auto session, engine->new_session());
  const bool is_markdown = options.format == BenchFormat::kMarkdown;
  if (is_markdown && !output.write(markdown_head(*engine))) return output.status();
  for (const BenchTest& test : tests) {
    ASSIGN_OR_RETURN(const Measurement m, measure(*engine, *session, test, options));
    if (!output.write(is_markdown ? markdown_row(m) : json_line(*engine, m, options))) break;
  }
  return output.status();
}

}  // namespace

Status bench_command(const Options& options, Output& output) {
  if (options.output_file.empty()) return run_tests(options, output);
  ASSIGN_OR_RETURN(Output file, Output::to_file(options.output_file));
  RETURN_IF_ERROR(run_tests(options, file));
  return file.finish();
}

}  // namespace moray
