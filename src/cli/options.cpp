// The command line's grammar, and the only reads of the environment.
//
// CLI11 splits the arguments; values are checked by option_values.cpp so that every refusal has the
// same form. CLI11 reports by exceptions: they end in parse_options().
#include "src/cli/options.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <limits>
#include <sstream>

#include "src/cli/option_values.h"
#include "src/cli/output.h"
#include "src/cli/version.h"

namespace moray {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kNumberMax = std::numeric_limits<int64_t>::max();
constexpr int64_t kThreadsMax = 1024;
constexpr int64_t kLengthMax = int64_t{1} << 24;  // of a bench test; far beyond any context
constexpr int64_t kRepetitionsMax = 1000;
constexpr int64_t kBatchMax = 16;
constexpr int64_t kParallelMax = 1024;
constexpr int64_t kDraftsMax = 15;  // with the token before them a step of 16

// One occurrence takes one value, kept as typed.
CLI::Option* add_value(CLI::App* app, const std::string& names, const std::string& help,
                       const std::string& value_name,
                       const std::function<void(const std::string&)>& take) {
  return app->add_option_function<std::string>(names, take, help)->type_name(value_name);
}

// Any number of occurrences, one value each.
void add_repeated(CLI::App* app, const std::string& name, const std::string& help,
                  const std::string& value_name,
                  const std::function<void(const std::string&)>& take) {
  app->add_option_function<std::vector<std::string>>(
         name,
         [take](const std::vector<std::string>& values) {
           for (const std::string& value : values) take(value);
         },
         help)
      ->type_name(value_name)
      ->type_size(1)
      ->allow_extra_args(false);
}

// An empty argument is mostly an unset variable of a script; it must not mean the default.
std::string refuse_empty(const std::string& text) {
  return text.empty() ? "found '', expected a name" : "";
}

void add_model(CLI::App* app, Options* options) {
  app->add_option("MODEL,-m,--model", options->common.model,
                  "Folder, Hugging Face cache id (org/name) or name under models/; "
                  "default: the model that ships")
      ->type_name("")
      ->check(refuse_empty);
}

void add_engine(CLI::App* app, CommonOptions* common) {
  add_value(app, "--threads", "CPU threads; default: one a physical core", "N",
            [common](const std::string& text) {
              common->threads = parse_whole_number("--threads", text, 1, kThreadsMax);
            });
  add_value(app, "--ctx", "Tokens of context; default: the model's own, less if memory is short",
            "N", [common](const std::string& text) {
              common->context = parse_whole_number("--ctx", text, 1, kNumberMax);
            });
  add_value(app, "--cpu", "Instruction level avx2 or avx512; default: the best there is", "LEVEL",
            [common](const std::string& text) {
              if (text != "avx2" && text != "avx512") {
                throw CLI::ValidationError("--cpu",
                                           "found '" + text + "', expected avx2 or avx512");
              }
              common->cpu_level = text;
            });
  add_value(app, "--device", "cpu, cuda or cuda:N; default: the GPU if the model fits there",
            "NAME", [common](const std::string& text) {
              if (text != "auto" && text != "cpu" && !text.starts_with("cuda")) {
                throw CLI::ValidationError(
                    "--device", "found '" + text + "', expected auto, cpu, cuda or cuda:N");
              }
              common->device = text;
            });
  const auto add_format = [app](const std::string& name, const std::string& help,
                                const std::string& lossless, bool* is_fp8) {
    return add_value(app, name, help, "FORMAT", [=](const std::string& text) {
      if (text != "fp8" && text != lossless) {
        throw CLI::ValidationError(name,
                                   fmt::format("found '{}', expected {} or fp8", text, lossless));
      }
      *is_fp8 = text == "fp8";
    });
  };
  CLI::Option* const head =
      add_format("--lm-head", "published (default), or fp8: faster decoding, not lossless",
                 "published", &common->has_fp8_head);
  CLI::Option* const kv =
      add_format("--kv-type",
                 "bf16 (default), or fp8: a long context takes and reads less, not lossless (GPU)",
                 "bf16", &common->has_fp8_kv);
  app->add_flag("--fast", common->is_fast,
                "--lm-head fp8 and, on a GPU, --kv-type fp8, instead of these two; `moray eval "
                "--fast` measures the cost")
      ->excludes(head)
      ->excludes(kv);
  app->add_flag("--float32", common->is_float32, "FP32 activations: for comparisons, slower");
}

// Speed does not depend on what the weights are, so that a folder with a config.json will do.
void add_weights(CLI::App* app, CommonOptions* common) {
  add_value(app, "--weights",
            "random[:SEED]: made up at the size of config.json, for measurements; default: the "
            "checkpoint's",
            "KIND", [common](const std::string& text) {
              constexpr std::string_view kSeeded = "random:";
              if (text == "random") {
                common->random_weights = 0;
              } else if (text.starts_with(kSeeded)) {
                common->random_weights = parse_seed("--weights", text.substr(kSeeded.size()));
              } else {
                throw CLI::ValidationError("--weights",
                                           "found '" + text + "', expected random or random:SEED");
              }
            });
}

void add_quiet(CLI::App* app, CommonOptions* common) {
  app->add_flag("--quiet", common->is_quiet, "No statistics, no progress bar");
}

void add_max_tokens(CLI::App* app, CommonOptions* common, int64_t usual) {
  add_value(app, "--max-tokens",
            fmt::format("Stop after N tokens, -1: when the context is full; default {}", usual),
            "N", [common](const std::string& text) {
              common->max_tokens = parse_whole_number("--max-tokens", text, -1, kNumberMax);
            });
}

void add_sampling(CLI::App* app, SamplingFlags* flags) {
  const auto decimal = [app](const std::string& name, const std::string& help,
                             std::optional<double>* target) {
    add_value(app, name, help, "X",
              [name, target](const std::string& text) { *target = parse_decimal(name, text); });
  };
  decimal("--temperature", "0: always the likeliest token", &flags->temperature);
  decimal("--top-p", "Keep the likeliest tokens that hold this share", &flags->top_p);
  decimal("--min-p", "Drop tokens below this share of the likeliest", &flags->min_p);
  decimal("--repetition-penalty", "Over prompt and answer; 1: off", &flags->repetition_penalty);
  decimal("--presence-penalty", "Over the answer; 0: off", &flags->presence_penalty);
  decimal("--frequency-penalty", "Over the answer, per use; 0: off", &flags->frequency_penalty);
  add_value(app, "--top-k", "Keep the K likeliest tokens; 0: all", "K",
            [flags](const std::string& text) {
              flags->top_k = parse_whole_number("--top-k", text, 0, 1 << 30);
            });
  add_value(app, "--seed", "Same seed, same text; default 0", "N",
            [flags](const std::string& text) { flags->seed = parse_seed("--seed", text); });
  add_repeated(app, "--logit-bias", "Add BIAS to a token's logit; may be repeated", "TOKEN:BIAS",
               [flags](const std::string& text) {
                 flags->logit_bias.push_back(parse_logit_bias("--logit-bias", text));
               });
  add_repeated(app, "--stop", "Text that ends the answer; may be repeated", "TEXT",
               [flags](const std::string& text) { flags->stop.push_back(text); });
}

void add_prompt(CLI::App* app, PromptSource* prompt) {
  CLI::Option* text = add_value(app, "-p,--prompt", "The prompt itself", "TEXT",
                                [prompt](const std::string& value) { prompt->text = value; });
  CLI::Option* file =
      add_value(app, "-f,--file", "Read the prompt from a file; default: stdin", "FILE",
                [prompt](const std::string& value) {
                  if (value.empty()) {
                    throw CLI::ValidationError("--file", "found '', expected a file name");
                  }
                  prompt->file = value;
                });
  text->excludes(file);
  app->add_flag("--control-tokens", prompt->allows_control_tokens,
                "Text such as <|im_start|> in the prompt becomes the token it spells");
}

void add_run(CLI::App* root, Options* options) {
  CLI::App* app = root->add_subcommand("run", "Continue a text, or answer with --chat");
  add_model(app, options);
  add_prompt(app, &options->prompt);
  CLI::Option* chat = app->add_flag("--chat", options->is_chat,
                                    "The prompt is a message; applies the model's chat template");
  app->add_option("--system", options->system, "System message of --chat")
      ->type_name("TEXT")
      ->needs(chat);
  app->add_flag("--think", options->is_thinking, "With --chat: let the model think first")
      ->needs(chat);
  app->add_option("--record-routing", options->routing_file,
                  "Write which experts each layer chose for each token (CPU only)")
      ->type_name("FILE")
      ->check(refuse_empty);
  add_sampling(app, &options->sampling);
  add_max_tokens(app, &options->common, kRunTokensDefault);
  add_engine(app, &options->common);
  add_weights(app, &options->common);
  add_quiet(app, &options->common);
  app->callback([options] { options->command = Command::kRun; });
}

void add_complete(CLI::App* root, Options* options) {
  CLI::App* app = root->add_subcommand(
      "complete", "Fill in the middle: print what belongs at a place of a file");
  app->add_option("FILE", options->file, "The file to insert into; it is not changed")
      ->type_name("")
      ->required();
  add_value(app, "--line", "Line of the place, from 1", "N", [options](const std::string& text) {
    options->line = parse_whole_number("--line", text, 1, kNumberMax);
  })->required();
  add_value(app, "--col",
            "Column of the place, from 1, in characters: text goes before that character; "
            "1 + the line's length is its end",
            "M",
            [options](const std::string& text) {
              options->column = parse_whole_number("--col", text, 1, kNumberMax);
            })
      ->required();
  app->add_option("-m,--model", options->common.model, "As for run")->type_name("MODEL");
  add_sampling(app, &options->sampling);
  add_max_tokens(app, &options->common, kCompleteTokensDefault);
  add_engine(app, &options->common);
  add_quiet(app, &options->common);
  app->callback([options] { options->command = Command::kComplete; });
}

void add_tokenize(CLI::App* root, Options* options) {
  CLI::App* app = root->add_subcommand("tokenize", "Show how a text is cut into tokens");
  add_model(app, options);
  add_prompt(app, &options->prompt);
  CLI::Option* ids = app->add_flag("--ids", options->ids_only, "Ids only, on one line");
  app->add_flag("--count", options->count_only, "The number of tokens only")->excludes(ids);
  add_quiet(app, &options->common);
  app->callback([options] { options->command = Command::kTokenize; });
}

void add_eval(CLI::App* root, Options* options) {
  CLI::App* app =
      root->add_subcommand("eval", "Bits per byte of whole text files, their first token included");
  add_model(app, options);
  app->add_option("--text", options->text_files, "Files to score")->type_name("FILE")->required();
  add_engine(app, &options->common);
  add_quiet(app, &options->common);
  app->callback([options] { options->command = Command::kEval; });
}

void add_bench(CLI::App* root, Options* options) {
  CLI::App* app =
      root->add_subcommand("bench", "Measure prefill and decode beside a read of the step's bytes");
  add_model(app, options);
  options->prompt_lengths = {512};
  options->generate_lengths = {128};
  options->depths = {0};
  options->repetitions = 5;
  const auto lengths = [app](const std::string& names, const std::string& name,
                             const std::string& help, std::vector<int64_t>* target) {
    add_value(app, names, help, "N,...", [name, target](const std::string& text) {
      *target = parse_whole_numbers(name, text, 0, kLengthMax);
    });
  };
  lengths("-p,--prompt-lengths", "-p", "Prefill lengths; 0: none; default 512",
          &options->prompt_lengths);
  lengths("-n,--generate-lengths", "-n", "Decode lengths; 0: none; default 128",
          &options->generate_lengths);
  lengths("-d,--depths", "-d", "Tokens of context before either; default 0", &options->depths);
  add_value(app, "-r,--repetitions", "Runs of each test; default 5", "N",
            [options](const std::string& text) {
              options->repetitions = parse_whole_number("-r", text, 1, kRepetitionsMax);
            });
  add_value(app, "-b,--batch",
            "Tokens a decode step takes at once, as when drafts are verified; default 1", "N",
            [options](const std::string& text) {
              options->batch = parse_whole_number("-b", text, 1, kBatchMax);
            });
  add_value(app, "-o,--output", "md (default) or jsonl", "FORMAT",
            [options](const std::string& text) {
              if (text != "md" && text != "jsonl") {
                throw CLI::ValidationError("-o", "found '" + text + "', expected md or jsonl");
              }
              options->format = text == "md" ? BenchFormat::kMarkdown : BenchFormat::kJsonLines;
            });
  app->add_option("--output-file", options->output_file, "Write there instead of stdout")
      ->type_name("FILE")
      ->check(refuse_empty);
  app->add_flag("--stages", options->has_stages,
                "Instead of tests: every kernel of a decode step alone (GPU only)");
  add_engine(app, &options->common);
  add_weights(app, &options->common);
  add_quiet(app, &options->common);
  app->callback([options] { options->command = Command::kBench; });
}

void add_selftest(CLI::App* root, Options* options) {
  CLI::App* app =
      root->add_subcommand("selftest", "Compare the GPU's numbers with the CPU's on a model");
  add_model(app, options);
  add_engine(app, &options->common);
  add_weights(app, &options->common);
  add_quiet(app, &options->common);
  app->callback([options] { options->command = Command::kSelftest; });
}

// GB/s as this kind of work reaches them; more than any hardware's is a slip of units.
void add_rate(CLI::App* app, const std::string& name, const std::string& what, double* target) {
  add_value(app, name, fmt::format("{}; default {}", what, *target), "GB/S",
            [name, target](const std::string& text) {
              *target = parse_decimal_within(name, text, 0.001, 1e6);
            });
}

void add_plan(CLI::App* root, Options* options) {
  CLI::App* app = root->add_subcommand(
      "plan", "Where every byte of a model would lie, and how fast that would be, by config.json");
  add_model(app, options);
  PlanQuestion* plan = &options->plan;
  const auto size = [app](const std::string& name, const std::string& help, int64_t* target) {
    add_value(app, name, help, "SIZE",
              [name, target](const std::string& text) { *target = parse_bytes(name, text); });
  };
  const auto count = [app](const std::string& name, const std::string& help, int64_t low,
                           int64_t high, int64_t* target) {
    add_value(app, name, help, "N", [=](const std::string& text) {
      *target = parse_whole_number(name, text, low, high);
    });
  };
  size("--vram", "Memory of the GPU; default 16GiB", &plan->vram_bytes);
  size("--ram", "Host memory that may be taken; default 64GiB", &plan->ram_bytes);
  count("--ctx", "Tokens of context of each sequence; default 32768 or the model's own, if less", 1,
        kNumberMax, &plan->context);
  count("--parallel", "Sequences at once; default 1", 1, kParallelMax, &plan->parallel);
  count("--mtp", "Tokens the MTP head drafts; default 0: it is not loaded", 0, kDraftsMax,
        &plan->drafts);
  add_rate(app, "--hbm", "Read rate of VRAM that decoding reaches", &plan->vram_gbps);
  add_rate(app, "--link", "Rate of copies from host memory to the GPU", &plan->link_gbps);
  add_rate(app, "--disk", "Rate of reading experts from the file", &plan->disk_gbps);
  add_value(app, "--tflops", fmt::format("Rate of prefill's products; default {}", plan->tflops),
            "TFLOP/S", [plan](const std::string& text) {
              plan->tflops = parse_decimal_within("--tflops", text, 0.001, 1e6);
            });
  add_value(app, "--hit-rate",
            "Share of routed experts found in VRAM, 0 to 1; default: LRU's on a made-up trace of "
            "published locality",
            "X", [plan](const std::string& text) {
              plan->hit_rate = parse_decimal_within("--hit-rate", text, 0, 1);
            });
  app->callback([options] { options->command = Command::kPlan; });
}

SlotPolicy parse_policy(const std::string& text) {
  constexpr std::pair<std::string_view, SlotPolicy> kPolicies[] = {{"lru", SlotPolicy::kLru},
                                                                   {"lfu", SlotPolicy::kLfu},
                                                                   {"fifo", SlotPolicy::kFifo},
                                                                   {"belady", SlotPolicy::kBelady}};
  for (const auto& [name, policy] : kPolicies) {
    if (text == name) return policy;
  }
  throw CLI::ValidationError("--policy", "found '" + text + "', expected lru, lfu, fifo or belady");
}

void add_simulate(CLI::App* root, Options* options) {
  CLI::App* app = root->add_subcommand(
      "simulate", "Decode a routing trace with some experts in VRAM, by arithmetic alone");
  add_model(app, options);
  SlotSimulation* simulation = &options->simulation;
  add_value(
      app, "--trace",
      "A file of `moray run --record-routing`, or made[:SEED]: a trace of published locality; "
      "default made",
      "FILE", [options](const std::string& text) {
        if (text.empty()) {
          throw CLI::ValidationError("--trace", "found '', expected a file or made[:SEED]");
        }
        constexpr std::string_view kSeeded = "made:";
        if (text.starts_with(kSeeded)) {
          options->made_seed = parse_seed("--trace", text.substr(kSeeded.size()));
        }
        options->trace = text.starts_with(kSeeded) || text == "made" ? "" : text;
      });
  const auto count = [app](const std::string& name, const std::string& help, int64_t* target) {
    return add_value(app, name, help, "N", [name, target](const std::string& text) {
      *target = parse_whole_number(name, text, 1, kLengthMax);
    });
  };
  CLI::Option* const tokens =
      count("--tokens", "Tokens of a made trace; default 1024", &options->made_tokens);
  count("--slots", "Experts of each layer that VRAM holds", &simulation->slots)->required();
  add_value(app, "--policy", "Who goes: lru (default), lfu, fifo, or belady, the bound", "NAME",
            [simulation](const std::string& text) { simulation->policy = parse_policy(text); });
  add_rate(app, "--hbm", "Read rate of VRAM that decoding reaches", &simulation->vram_gbps);
  add_rate(app, "--link", "Rate of copies from host memory to the GPU", &simulation->link_gbps);
  const auto share = [app](const std::string& name, const std::string& help, double* target) {
    add_value(app, name, help, "X", [name, target](const std::string& text) {
      *target = parse_decimal_within(name, text, 0, 1);
    });
  };
  share("--slow", "Chance that a read takes ten times as long; default 0", &simulation->slow_share);
  share("--short", "Chance that it brings half and has to go on; default 0",
        &simulation->short_share);
  share("--fail", "Chance that it brings nothing; the third time ends the request; default 0",
        &simulation->fail_share);
  count("--request", "Tokens of each request the trace consists of; default 256",
        &simulation->request_tokens);
  add_value(
      app, "--seed", "Of the reads' luck; default 0", "N",
      [simulation](const std::string& text) { simulation->seed = parse_seed("--seed", text); });
  app->callback([options, tokens] {
    if (tokens->count() > 0 && !options->trace.empty()) {
      throw CLI::ValidationError("--tokens", "found it with a trace file, expected --trace made");
    }
    options->command = Command::kSimulate;
  });
}

void add_catalogue(CLI::App* root, Options* options) {
  CLI::App* info = root->add_subcommand(
      "info", "Dimensions, parameters, bytes by part and dtype, licence of a model");
  add_model(info, options);
  info->callback([options] { options->command = Command::kInfo; });
  CLI::App* list = root->add_subcommand("list", "The models that can be named, and where they are");
  list->callback([options] { options->command = Command::kList; });
}

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// The models/ folders of `start` and all its parents.
void add_models_of_parents(fs::path start, std::vector<std::string>* folders) {
  std::error_code ignored;
  for (; !start.empty(); start = start.parent_path()) {
    const fs::path models = start / "models";
    const bool is_new =
        std::find(folders->begin(), folders->end(), models.string()) == folders->end();
    if (is_new && fs::is_directory(models, ignored)) folders->push_back(models.string());
    if (start == start.root_path()) return;
  }
}

ModelPlaces find_model_places() {
  ModelPlaces places;
  std::error_code ignored;
  if (const std::string own = environment("MORAY_MODELS"); !own.empty()) {
    places.model_folders.push_back(own);
  }
  add_models_of_parents(fs::current_path(ignored), &places.model_folders);
  add_models_of_parents(fs::read_symlink("/proc/self/exe", ignored).parent_path(),
                        &places.model_folders);
  const std::string hub = environment("HF_HUB_CACHE");
  const std::string home = environment("HF_HOME");
  const std::string cache = environment("XDG_CACHE_HOME");
  const std::string user = environment("HOME");
  if (!hub.empty()) {
    places.hub_folders = {hub};
  } else if (!home.empty()) {
    places.hub_folders = {home + "/hub"};
  } else if (!cache.empty()) {
    places.hub_folders = {cache + "/huggingface/hub"};
  } else if (!user.empty()) {
    places.hub_folders = {user + "/.cache/huggingface/hub"};
  }
  return places;
}

std::string join_arguments(int argc, const char* const* argv) {
  std::string line;
  for (int i = 0; i < argc; ++i) {
    if (i > 0) line += ' ';
    line += argv[i];
  }
  return line;
}

// CLI11's report as one line that names the option, what was found and what was expected.
std::string error_line(const CLI::App& root, const CLI::ParseError& error,
                       const std::string& first_argument) {
  std::string help = "moray --help";
  for (const CLI::App* command : root.get_subcommands()) {
    help = "moray " + command->get_name() + " --help";
  }
  std::string what = error.what();
  const auto* extras = dynamic_cast<const CLI::ExtrasError*>(&error);
  if (extras != nullptr) {
    const size_t colon = what.find(": ");
    what = fmt::format("option: found '{}', expected only known options",
                       what.substr(colon == std::string::npos ? 0 : colon + 2));
  } else if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr &&
             root.get_subcommands().empty()) {
    what = fmt::format(
        "command: found {}, expected run, complete, info, list, tokenize, eval, "
        "bench, selftest, plan or simulate",
        first_argument.empty() ? "none" : "'" + first_argument + "'");
  } else if (dynamic_cast<const CLI::ValidationError*>(&error) == nullptr) {
    what = "option: " + what;
  }
  return one_line(fmt::format("error: {} (see `{}`)", what, help));
}

}  // namespace

ParsedOptions parse_options(int argc, const char* const* argv) {
  Options options;
  CLI::App root("Moray: hybrid Mixture-of-Experts coding models on one machine", "moray");
  root.require_subcommand(1);
  root.set_version_flag("--version", version_line());
  root.footer("Exit status:\n" + exit_code_table());
  add_run(&root, &options);
  add_complete(&root, &options);
  add_catalogue(&root, &options);
  add_tokenize(&root, &options);
  add_eval(&root, &options);
  add_bench(&root, &options);
  add_selftest(&root, &options);
  add_plan(&root, &options);
  add_simulate(&root, &options);
  try {
    root.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::ostringstream out;
    std::ostringstream ignored;
    if (error.get_exit_code() == 0) {  // help and version
      root.exit(error, out, ignored);
      return {std::nullopt, out.str(), ExitCode::kOk};
    }
    return {std::nullopt, error_line(root, error, argc > 1 ? argv[1] : ""), ExitCode::kUsage};
  }
  options.places = find_model_places();
  options.command_line = join_arguments(argc, argv);
  return {std::move(options), "", ExitCode::kOk};
}

}  // namespace moray
