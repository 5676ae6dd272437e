// moray bench: prefill and decode speed beside what the memory allows.
//
// Tests are named as llama-bench names them: pp512 reads 512 tokens, tg128 makes 128 one at a time,
// "@d4096" with 4096 tokens already in the context. Tokens are pseudo-random ids (a fixed
// sequence), so that no text decides which experts run. Per test: one warm-up run, then `runs`
// timed ones; tokens_per_s is their median, spread their standard deviation.
//
// For decode, bytes_per_token is what a step must read (weights of the layers, top-k experts and
// head, states, KV at the test's middle depth). Slices of decoding alternate with slices of as long
// in which the same threads, or the GPU, just read those bytes, so that both see the machine in one
// state; roofline_share is the median over these pairs of the time of a read over the time of a
// token. Prefill and batches (-b) share their reads among tokens, so both are null there.
//
// On a GPU decode is timed as greedy answers run: the device picks each next token, from a
// pseudo-random first one, and a slice is a whole run. --stages shows every kernel of a step
// instead.
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

// Long enough that what a slice finds in the caches of the other one does not show, short enough
// that a disturbance by other programs meets few pairs.
constexpr double kSliceSeconds = 0.01;

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

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

struct Measurement {
  BenchTest test{};
  std::vector<double> tokens_per_second;  // of each run
  int64_t bytes_per_token = 0;            // decode only
  std::vector<double> reads_per_second;   // of bytes_per_token, in each slice; decode only
  std::vector<double> shares;             // of each pair of slices; decode only
  int64_t peak_bytes = 0;
  std::string clock;

  double median() const { return median_of(tokens_per_second); }
  double deviation() const {
    const double count = static_cast<double>(tokens_per_second.size());
    if (count < 2) return 0;
    const double mean =
        std::accumulate(tokens_per_second.begin(), tokens_per_second.end(), 0.0) / count;
    double squares = 0;
    for (const double speed : tokens_per_second) squares += (speed - mean) * (speed - mean);
    return std::sqrt(squares / (count - 1));
  }
  double roofline_share() const { return median_of(shares); }
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

bool keep_going(int64_t, int64_t) {
  return !is_interrupted();
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Seconds that reading all the tokens in blocks takes.
Result<double> run_prefill(Session& session, const std::vector<TokenId>& tokens) {
  const auto start = std::chrono::steady_clock::now();
  RETURN_IF_ERROR(session.feed(tokens, keep_going));
  return seconds_since(start);
}

// Decodes tokens from `at` on, `batch` a step, for a slice of time or to the end; seconds.
Result<double> decode_slice(Session& session, std::span<const TokenId> tokens, int64_t batch,
                            size_t& at) {
  std::vector<TokenId> step;
  const auto start = std::chrono::steady_clock::now();
  double seconds = 0;
  while (at < tokens.size() && seconds < kSliceSeconds) {
    const size_t count = std::min(static_cast<size_t>(batch), tokens.size() - at);
    step.assign(tokens.begin() + static_cast<std::ptrdiff_t>(at),
                tokens.begin() + static_cast<std::ptrdiff_t>(at + count));
    RETURN_IF_ERROR(session.feed(step, keep_going));
    at += count;
    seconds = seconds_since(start);
  }
  return seconds;
}

// Decodes as many tokens on a GPU that picks each by itself; seconds.
Result<double> decode_greedily(Session& session, std::span<const TokenId> tokens, size_t& at) {
  const auto start = std::chrono::steady_clock::now();
  const auto count = static_cast<int64_t>(tokens.size());
  RETURN_IF_ERROR(session.continue_greedily(tokens.front(), count).status());
  at = tokens.size();
  return seconds_since(start);
}

// Seconds a read takes, on average over a slice of `length` seconds.
Result<double> read_slice(StepReader& reader, double length) {
  double seconds = 0;
  int64_t reads = 0;
  do {
    ASSIGN_OR_RETURN(const double read, reader.read_seconds());
    seconds += read;
    ++reads;
  } while (seconds < length);
  return seconds / static_cast<double>(reads);
}

// Seconds that decoding all the tokens takes, the reads in between left out; without a reader there
// are none.
Result<double> run_decode(Session& session, const std::vector<TokenId>& tokens,
                          const BenchTest& test, bool picks_itself, StepReader* reader,
                          Measurement& result) {
  const bool is_greedy = picks_itself && test.batch == 1;
  double total = 0;
  for (size_t at = 0; at < tokens.size();) {
    const size_t first = at;
    ASSIGN_OR_RETURN(const double seconds, is_greedy
                                               ? decode_greedily(session, tokens, at)
                                               : decode_slice(session, tokens, test.batch, at));
    total += seconds;
    if (reader == nullptr) continue;
    ASSIGN_OR_RETURN(const double read_seconds, read_slice(*reader, seconds));
    result.reads_per_second.push_back(1 / read_seconds);
    result.shares.push_back(read_seconds * static_cast<double>(at - first) / seconds);
  }
  return total;
}

Result<Measurement> measure(const Engine& engine, Session& session, const BenchTest& test,
                            const Options& options) {
  Measurement result;
  result.test = test;
  const int64_t middle_depth = test.depth + test.tokens / 2;
  const bool picks_itself = engine.device_facts().has_value();
  std::unique_ptr<StepReader> reader;
  if (test.phase == Phase::kDecode && test.batch == 1) {
    result.bytes_per_token = engine.decode_bytes(middle_depth);
    ASSIGN_OR_RETURN(reader, engine.step_reader(middle_depth));
  }
  const auto context = spread_tokens(engine, test.depth, 1);
  const auto tokens = spread_tokens(engine, test.tokens, 2);
  Progress progress(test.name(), ProgressUnit::kTokens, !options.common.is_quiet);
  for (int64_t run = -1; run < options.repetitions; ++run) {
    session.reset();
    if (test.depth > 0) RETURN_IF_ERROR(session.feed(context, keep_going));
    Measurement warm_up;
    Measurement& kept = run < 0 ? warm_up : result;
    ASSIGN_OR_RETURN(const double seconds,
                     test.phase == Phase::kPrefill
                         ? run_prefill(session, tokens)
                         : run_decode(session, tokens, test, picks_itself, reader.get(), kept));
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
  const std::string lossy = engine.lossy_line();
  const std::string activations = m.test.phase == Phase::kDecode
                                      ? options.common.is_float32 ? "F32" : "BF16"
                                      : engine.prompt_activations();
  line["options"] = fmt::format("ctx={} activations={}{}{}", engine.context(), activations,
                                lossy.empty() ? "" : " ", lossy);
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
      "{}, {} weights, {} KV, {}{}, {}, {}\n\n"
      "| test | tokens/s | spread | MB/token | read limit, tokens/s | share of limit |\n"
      "|---|---:|---:|---:|---:|---:|\n",
      engine.model_name(), engine.weights_line(), engine.kv_line(),
      engine.lossy_line().empty() ? "" : engine.lossy_line() + ", ", engine.backend_line(),
      engine.device_facts() ? engine.device_facts()->driver : processor_name(), version_line());
}

std::string markdown_row(const Measurement& m) {
  const std::string speed =
      fmt::format("| {} | {:.1f} | {:.1f} |", m.test.name(), m.median(), m.deviation());
  if (m.bytes_per_token == 0) return speed + " | | |\n";
  return speed + fmt::format(" {:.2f} | {:.1f} | {:.1f} % |\n",
                             static_cast<double>(m.bytes_per_token) / 1e6,
                             median_of(m.reads_per_second), 100 * m.roofline_share());
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
    ASSIGN_OR_RETURN(const auto reader, engine.step_reader(depth));
    ASSIGN_OR_RETURN(const double read_seconds, reader->read_seconds());
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
