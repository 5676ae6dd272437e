// Shorthand for tests that run `moray` on the tiny fixture model.
#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/cli/process.h"
#include "tests/support/temp_folder.h"

namespace moray {

// A random model of five layers with a tokenizer and a chat template; loads in milliseconds.
inline const std::string kTinyModel = MORAY_SOURCE_DIR "/tests/data/tiny-experts";
// Its end tokens, forbidden: an answer that lasts until a limit.
inline const std::vector<std::string> kNoEnd = {"--logit-bias", "283:-100", "--logit-bias",
                                                "285:-100"};

// These tests hold on every machine, so that a command that computes and does not say where does so
// on the CPU. "--device" goes right behind the command: what follows may end in a free argument.
inline void choose_cpu(std::vector<std::string>* arguments) {
  static const std::set<std::string> computing = {"run", "complete", "eval", "bench"};
  if (arguments->size() < 2 || !computing.contains(arguments->front())) return;
  for (const std::string& argument : *arguments) {
    if (argument == "--device" || argument == "--help") return;
  }
  arguments->insert(arguments->begin() + 1, {"--device", "cpu"});
}

inline ProcessRequest moray_request(std::vector<std::string> arguments, std::string input = "") {
  choose_cpu(&arguments);
  ProcessRequest request;
  request.arguments = {MORAY_PROGRAM};
  request.arguments.insert(request.arguments.end(), arguments.begin(), arguments.end());
  request.input = std::move(input);
  return request;
}

inline ProcessResult moray(std::vector<std::string> arguments, std::string input = "") {
  return run_process(moray_request(std::move(arguments), std::move(input)));
}

// `arguments` with `more` behind them.
inline std::vector<std::string> with(std::vector<std::string> arguments,
                                     const std::vector<std::string>& more) {
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

inline std::string file_content(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// A copy of the tiny model that a test may damage.
inline std::string copy_tiny_model(const TempFolder& folder) {
  const std::string copy = folder / "model";
  std::filesystem::copy(kTinyModel, copy, std::filesystem::copy_options::recursive);
  return copy;
}

// One line "error: ...", nothing else on either stream, and the code.
inline void expect_refusal(const ProcessResult& result, int exit_code,
                           const std::vector<std::string>& parts) {
  EXPECT_EQ(result.exit_code, exit_code) << result.err;
  EXPECT_EQ(result.out, "");
  EXPECT_TRUE(result.err.starts_with("error: ")) << result.err;
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  EXPECT_TRUE(result.err.ends_with("\n"));
  for (const std::string& part : parts) {
    EXPECT_NE(result.err.find(part), std::string::npos) << "no '" << part << "' in " << result.err;
  }
}

}  // namespace moray
