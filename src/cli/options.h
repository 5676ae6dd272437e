// What the user asked for, as plain data: the only place where flags and environment are read.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "moray/engine.h"
#include "moray/tools.h"
#include "src/cli/exit_code.h"

namespace moray {

enum class Command {
  kRun,
  kComplete,
  kInfo,
  kList,
  kTokenize,
  kEval,
  kBench,
  kSelftest,
  kPlan,
  kSimulate
};
enum class BenchFormat { kMarkdown, kJsonLines };

// When --max-tokens is not given: a screenful or two of code, and more than an editor inserts at
// once. Without a limit a model that loops would run until its context is full.
inline constexpr int64_t kRunTokensDefault = 512;
inline constexpr int64_t kCompleteTokensDefault = 256;

struct CommonOptions {
  std::string model;                  // as typed; empty: the model that ships
  int64_t threads = 0;                // 0: one a physical core
  int64_t context = 0;                // 0: what the model and memory allow
  std::optional<int64_t> max_tokens;  // -1: until the context is full; not given: as below
  bool is_quiet = false;              // no statistics, no progress
  bool is_float32 = false;
  bool has_fp8_head = false;
  bool has_fp8_kv = false;
  bool is_fast = false;
  std::string cpu_level;                   // "", "avx2", "avx512"
  std::string device = "auto";             // "auto", "cpu", "cuda", "cuda:N"
  std::optional<uint64_t> random_weights;  // --weights random[:SEED]
};

// Only what was given; the rest comes from the model's generation_config.json or the command.
struct SamplingFlags {
  std::optional<double> temperature, top_p, min_p;
  std::optional<double> repetition_penalty, presence_penalty, frequency_penalty;
  std::optional<int64_t> top_k;
  std::optional<uint64_t> seed;
  std::vector<std::pair<TokenId, float>> logit_bias;
  std::vector<std::string> stop;
};

struct PromptSource {
  std::optional<std::string> text;  // -p
  std::string file;                 // -f; empty and no text: stdin
  bool allows_control_tokens = false;
};

struct Options {
  Command command = Command::kRun;
  CommonOptions common;
  ModelPlaces places;  // $MORAY_MODELS, models/ of here and of the program; the hub cache
  SamplingFlags sampling;
  PromptSource prompt;
  // run
  bool is_chat = false;
  bool is_thinking = false;
  std::string system;
  std::string routing_file;  // empty: not recorded
  // complete
  std::string file;
  int64_t line = 0;    // from 1
  int64_t column = 0;  // from 1, in characters
  // tokenize
  bool ids_only = false;
  bool count_only = false;
  // eval
  std::vector<std::string> text_files;
  // bench
  std::vector<int64_t> prompt_lengths;    // pp tests
  std::vector<int64_t> generate_lengths;  // tg tests
  std::vector<int64_t> depths;            // tokens before either
  int64_t repetitions = 0;
  int64_t batch = 1;  // tokens a decode step
  BenchFormat format = BenchFormat::kMarkdown;
  std::string output_file;  // empty: stdout
  bool has_stages = false;
  // plan
  PlanQuestion plan;
  // simulate
  std::string trace;  // a file; empty: made up from the next two
  uint64_t made_seed = 0;
  int64_t made_tokens = 1024;
  SlotSimulation simulation;
  std::string command_line;
};

// Either options to act on, or a text to print and a code to leave with (help, version, errors).
struct ParsedOptions {
  std::optional<Options> options;
  std::string text;
  ExitCode exit_code = ExitCode::kOk;
};
ParsedOptions parse_options(int argc, const char* const* argv);

}  // namespace moray
