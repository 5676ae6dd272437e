// Streams that end early: full disk, closed pipe, Ctrl-C, a model file that shrinks under the run.
#include <gtest/gtest.h>
#include <pty.h>

#include <csignal>
#include <nlohmann/json.hpp>

#include "tests/cli/moray.h"

namespace moray {
namespace {

// Runs until it is stopped: 4,095 tokens.
const std::vector<std::string> kEndless =
    with({"run", kTinyModel, "-p", "x", "--max-tokens", "-1"}, kNoEnd);

// Everything that `arguments` would show on a terminal.
std::string shown_on_terminal(const std::vector<std::string>& arguments) {
  int terminal = -1;
  const pid_t pid = forkpty(&terminal, nullptr, nullptr, nullptr);
  if (pid == 0) {
    std::vector<char*> values = {const_cast<char*>(MORAY_PROGRAM)};
    for (const std::string& argument : arguments) {
      values.push_back(const_cast<char*>(argument.c_str()));
    }
    values.push_back(nullptr);
    execv(values[0], values.data());
    _exit(127);
  }
  std::string shown;
  while (process_detail::read_some(terminal, &shown)) {
  }
  close(terminal);
  waitpid(pid, nullptr, 0);
  return shown;
}

// How long the tiny model takes is unknown: runs are added until they last beyond the bar's wait.
TEST(Streams, ATerminalSeesAProgressBarThatGoes) {
  std::string shown;
  for (int runs = 10; runs <= 10000 && shown.find("pp2000 [") == std::string::npos; runs *= 10) {
    shown = shown_on_terminal(
        {"bench", kTinyModel, "-p", "2000", "-n", "0", "-r", std::to_string(runs), "-o", "jsonl"});
  }
  const size_t bar = shown.find("\rpp2000 [");
  const size_t gone = shown.rfind("\r\033[K");
  ASSERT_NE(bar, std::string::npos) << shown;
  ASSERT_NE(gone, std::string::npos) << shown;
  const std::string rest = shown.substr(gone + 4);
  EXPECT_TRUE(nlohmann::json::accept(rest)) << rest;
  EXPECT_EQ(shown_on_terminal({"bench", kTinyModel, "-p", "2000", "-n", "0", "-r", "10", "-o",
                               "jsonl", "--quiet"})
                .find('['),
            std::string::npos);
}

// On a terminal the shell's prompt must not stick to the answer.
TEST(Streams, ATerminalGetsALineEndBehindTheAnswer) {
  const std::string shown =
      shown_on_terminal({"run", kTinyModel, "-p", "x", "--max-tokens", "3", "--quiet"});
  EXPECT_TRUE(shown.ends_with("\r\n")) << shown;
}

TEST(Streams, AFullDiskIsOneLineAndItsCode) {
  TempFolder folder;
  const std::string file = folder.write("a.py", "x = 1\n");
  const std::vector<std::vector<std::string>> commands = {
      {"run", kTinyModel, "-p", "x", "--max-tokens", "9"},
      {"complete", file, "-m", kTinyModel, "--line", "1", "--col", "5"},
      {"tokenize", kTinyModel, "-p", "x"},
      {"tokenize", kTinyModel, "-p", "x", "--count"},
      {"info", kTinyModel},
      {"eval", kTinyModel, "--text", file},
      {"bench", "-m", kTinyModel, "-p", "4", "-n", "4", "-r", "1"},
      {"--version"},
      {"--help"},
  };
  for (const std::vector<std::string>& command : commands) {
    SCOPED_TRACE(testing::PrintToString(command));
    ProcessRequest request = moray_request(command);
    request.stdout_path = "/dev/full";
    expect_refusal(run_process(request), 6, {"stdout: found 'No space left on device'"});
  }
  expect_refusal(moray({"bench", "-m", kTinyModel, "-p", "4", "-n", "0", "-r", "1", "--output-file",
                        "/dev/full"}),
                 6, {"/dev/full: found 'No space left on device'"});
}

TEST(Streams, AClosedPipeEndsQuietly) {
  ProcessRequest request = moray_request(kEndless);
  request.on_output = [](pid_t, const std::string&) { return false; };
  const ProcessResult result = run_process(request);
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.err, "");
}

TEST(Streams, CtrlCStopsCleanlyWithStatistics) {
  ProcessRequest request = moray_request(kEndless);
  bool is_sent = false;
  request.on_output = [&is_sent](pid_t pid, const std::string&) {
    if (!is_sent) kill(pid, SIGINT);
    is_sent = true;
    return true;
  };
  const ProcessResult result = run_process(request);
  EXPECT_EQ(result.exit_code, 130) << result.err;
  EXPECT_FALSE(result.out.empty());
  EXPECT_NE(result.err.find("stopped: interrupted; the answer is incomplete"), std::string::npos)
      << result.err;
  EXPECT_EQ(result.err.find("error:"), std::string::npos) << result.err;
}

TEST(Streams, CtrlCEndsABench) {
  ProcessRequest request = moray_request(
      {"bench", "-m", kTinyModel, "-p", "4", "-n", "2000", "-r", "1000", "-o", "jsonl"});
  request.on_output = [](pid_t pid, const std::string&) {
    kill(pid, SIGINT);
    return true;
  };
  const ProcessResult result = run_process(request);
  EXPECT_EQ(result.exit_code, 130) << result.err;
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 1);  // pp4 and no torn tg2000
}

// A small model is copied while loading and does not notice; of a larger one a page is missed, and
// that is one line and an exit code. Never a crash, never another text.
TEST(Streams, B48AModelFileThatShrinksDoesNoHarm) {
  TempFolder folder;
  const std::string model = copy_tiny_model(folder);
  std::vector<std::string> arguments = with(kEndless, {"--quiet", "--ctx", "1000"});
  arguments[1] = model;
  ProcessRequest request = moray_request(arguments);
  const std::string undisturbed = run_process(request).out;
  bool is_cut = false;
  request.on_output = [&](pid_t, const std::string&) {
    if (!is_cut) std::filesystem::resize_file(model + "/model.safetensors", 4096);
    is_cut = true;
    return true;
  };
  const ProcessResult result = run_process(request);
  EXPECT_TRUE(is_cut);
  if (result.exit_code == 0) {
    EXPECT_EQ(result.out, undisturbed);
    EXPECT_EQ(result.err, "");
    return;
  }
  EXPECT_EQ(result.exit_code, 3) << result.err;
  EXPECT_TRUE(undisturbed.starts_with(result.out));
  EXPECT_TRUE(result.err.starts_with("error: ")) << result.err;
  EXPECT_NE(result.err.find("model.safetensors"), std::string::npos) << result.err;
}

}  // namespace
}  // namespace moray
