// Whatever a user gets wrong ends in one line that names it, the right exit code and no output.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/cli/moray.h"

namespace moray {
namespace {

struct BadCommand {
  std::vector<std::string> arguments;
  int exit_code;
  std::vector<std::string> parts;  // of the message
  std::string input = "";
};

const std::string kModel = kTinyModel;

const std::vector<BadCommand> kBadCommands = {
    // The grammar of the command line.
    {{}, 2, {"command: found none", "run, complete", "moray --help"}},
    {{"frobnicate"}, 2, {"frobnicate", "moray --help"}},
    {{"run", "--frobnicate"}, 2, {"option: found '--frobnicate'", "`moray run --help`"}},
    {{"run", "--a\n\xff"}, 2, {"option: found '--a\\x0a\\xff'"}},
    {{"run", "", "-p", "x"}, 2, {"found '', expected a name"}},
    {{"bench", kModel, "--output-file", ""}, 2, {"--output-file: found '', expected a name"}},
    {{"run", kModel, "extra", "-p", "x"}, 2, {"extra"}},
    {{"run", kModel, "-p"}, 2, {"-p"}},
    {{"run", kModel, "-p", "x", "-f", "y"}, 2, {"-p", "-f"}},
    {{"run", kModel, "-p", "x", "--think"}, 2, {"--think", "--chat"}},
    {{"run", kModel, "-p", "x", "--system", "s"}, 2, {"--system", "--chat"}},
    {{"run", kModel, "-p", "x", "--threads"}, 2, {"--threads"}},
    {{"run", kModel, "-p", "x", "--threads", "0"}, 2, {"--threads: found '0', expected", "1 to"}},
    {{"run", kModel, "-p", "x", "--threads", "two"}, 2, {"--threads: found 'two', expected"}},
    {{"run", kModel, "-p", "x", "--threads", "9999"}, 2, {"--threads: found '9999', expected"}},
    {{"run", kModel, "-p", "x", "--ctx", "0"}, 2, {"--ctx: found '0', expected"}},
    {{"run", kModel, "-p", "x", "--ctx", "4097"}, 2, {"found 4097 tokens", "1 to 4096"}},
    {{"run", kModel, "-p", "x", "--max-tokens", "-2"}, 2, {"--max-tokens: found '-2'"}},
    {{"run", kModel, "-p", "x", "--max-tokens", "9223372036854775808"}, 2, {"--max-tokens"}},
    {{"run", kModel, "-p", "x", "--cpu", "sse"}, 2, {"--cpu: found 'sse', expected avx2"}},
    // Sampling (B06).
    {{"run", kModel, "-p", "x", "--temperature", "hot"}, 2, {"--temperature: found 'hot'"}},
    {{"run", kModel, "-p", "x", "--temperature", "-1"}, 2, {"temperature: found -1, expected 0"}},
    {{"run", kModel, "-p", "x", "--temperature", "nan"}, 2, {"temperature: found nan"}},
    {{"run", kModel, "-p", "x", "--temperature", "1e308"}, 2, {"temperature: found 1e+308"}},
    {{"run", kModel, "-p", "x", "--top-p", "0"}, 2, {"top_p: found 0, expected"}},
    {{"run", kModel, "-p", "x", "--top-k", "-1"}, 2, {"--top-k: found '-1'"}},
    {{"run", kModel, "-p", "x", "--min-p", "2"}, 2, {"min_p: found 2, expected"}},
    {{"run", kModel, "-p", "x", "--seed", "18446744073709551616"}, 2, {"--seed: found"}},
    {{"run", kModel, "-p", "x", "--logit-bias", "5"}, 2, {"--logit-bias: found '5'", "TOKEN:BIAS"}},
    {{"run", kModel, "-p", "x", "--logit-bias", "999999:5"}, 2, {"logit_bias: found token 999999"}},
    {{"run", kModel, "-p", "x", "--logit-bias", "-1:5"}, 2, {"--logit-bias: found '-1'"}},
    {{"run", kModel, "-p", "x", "--logit-bias", "1:nan"}, 2, {"logit_bias: found nan"}},
    {{"run", kModel, "-p", "x", "--stop", ""}, 2, {"stop: found 0 bytes"}},
    // Prompts.
    {{"run", kModel, "-p", ""}, 2, {"prompt: found an empty prompt, expected at least one"}},
    {{"run", kModel}, 2, {"stdin: found an empty prompt"}},
    {{"run", kModel}, 2, {"stdin: found byte 0xFF at offset 3, expected text in UTF-8"}, "abc\xff"},
    {{"run", kModel}, 2, {"stdin: found byte 0xED at offset 0"}, "\xED\xA0\x80"},
    {{"run", kModel}, 2, {"stdin: found byte 0x00 at offset 1"}, std::string("a\0b", 3)},
    {{"run", kModel, "-f", "/nowhere/prompt"}, 4, {"/nowhere/prompt: found 'No such file"}},
    {{"run", kModel, "-f", "/no\nwhere\x1b[31m\xff"},
     4,
     {"/no\\x0awhere\\x1b[31m\\xff: found 'No"}},
    {{"run", kModel, "-f", "/tmp"}, 3, {"/tmp: found 'Is a directory'"}},
    {{"run", kModel, "-p", "too long", "--ctx", "4"}, 6, {"prompt: found 8 tokens", "at most 4"}},
    {{"tokenize", kModel, "-p", ""}, 2, {"prompt: found an empty prompt"}},
    {{"tokenize", kModel}, 2, {"stdin: found byte 0x80 at offset 2"}, "ab\x80"},
    {{"tokenize", kModel, "-p", "x", "--ids", "--count"}, 2, {"--ids", "--count"}},
    // Models.
    {{"run", "no-such-model", "-p", "x"}, 4, {"no-such-model"}},
    {{"run", "../../no/such", "-p", "x"}, 4, {"../../no/such"}},
    {{"run", "/tmp/", "-p", "x"}, 3, {"config.json"}},
    {{"run", "/dev/null", "-p", "x"}, 3, {"/dev/null"}},
    {{"info", "no-such-model"}, 4, {"no-such-model"}},
    // Fill in the middle.
    {{"complete", "-m", kModel, "--line", "1", "--col", "1"}, 2, {"FILE"}},
    {{"complete", "x.py", "-m", kModel, "--col", "1"}, 2, {"--line"}},
    {{"complete", "x.py", "-m", kModel, "--line", "0", "--col", "1"}, 2, {"--line: found '0'"}},
    {{"complete", "x.py", "-m", kModel, "--line", "1", "--col", "1"}, 4, {"x.py: found 'No such"}},
    {{"complete", "/proc/self/exe", "-m", kModel, "--line", "1", "--col", "1"}, 3, {"at offset"}},
    // Scoring and measuring.
    {{"eval", kModel}, 2, {"--text"}},
    {{"eval", kModel, "--text", "/nowhere/file"}, 4, {"/nowhere/file"}},
    {{"eval", kModel, "--text", "/dev/null"}, 3, {"/dev/null: found an empty file"}},
    {{"bench", "-m", kModel, "-n", "x"}, 2, {"-n: found 'x', expected"}},
    {{"bench", "-m", kModel, "-n", "1,,2"}, 2, {"-n: found '', expected"}},
    {{"bench", "-m", kModel, "-n", "0", "-p", "0"}, 2, {"bench: found no test"}},
    {{"bench", "-m", kModel, "-r", "0"}, 2, {"-r: found '0'"}},
    {{"bench", "-m", kModel, "-b", "17"}, 2, {"-b: found '17', expected"}},
    {{"bench", "-m", kModel, "--weights", "zero"}, 2, {"--weights: found 'zero', expected random"}},
    {{"bench", "-m", kModel, "--weights", "random:x"}, 2, {"--weights: found 'x'"}},
    {{"bench", "-m", kModel, "--stages"}, 5, {"stages: found the CPU, expected a GPU"}},
    {{"run", kModel, "-p", "x", "--device", "gpu"}, 2, {"--device: found 'gpu', expected auto"}},
    {{"run", kModel, "-p", "x", "--lm-head", "fp4"},
     2,
     {"--lm-head: found 'fp4', expected published or fp8"}},
    {{"run", kModel, "-p", "x", "--kv-type", "q8"}, 2, {"--kv-type: found 'q8', expected bf16"}},
    {{"run", kModel, "-p", "x", "--device", "cpu", "--kv-type", "fp8"},
     5,
     {"kv-type: found fp8 on the CPU, expected bf16"}},
    {{"run", kModel, "-p", "x", "--device", "cuda:x"}, 2, {"device: found 'cuda:x', expected"}},
    {{"run", kModel, "-p", "x", "--device", "cuda", "--float32"}, 2, {"found cuda with FP32"}},
    {{"bench", "-m", kModel, "-o", "xml"}, 2, {"-o: found 'xml', expected md or jsonl"}},
    {{"bench", "-m", kModel, "-d", "4090"}, 6, {"pp512@d4090: found 4602 tokens", "at most 4096"}},
    // Planning and simulating.
    {{"plan", kModel, "--vram", "16"}, 2, {"--vram: found '16', expected a size such as 16GiB"}},
    {{"plan", kModel, "--ram", "-1GiB"}, 2, {"--ram: found '-1GiB'"}},
    {{"plan", kModel, "--ram", "nanGiB"}, 2, {"--ram: found 'nanGiB'"}},
    {{"plan", kModel, "--ctx", "4097"}, 2, {"context: found 4097 tokens", "1 to 4096"}},
    {{"plan", kModel, "--parallel", "0"}, 2, {"--parallel: found '0'"}},
    {{"plan", kModel, "--mtp", "16"}, 2, {"--mtp: found '16', expected", "0 to 15"}},
    {{"plan", kModel, "--hbm", "0"}, 2, {"--hbm: found '0', expected a number of"}},
    {{"plan", kModel, "--link", "inf"}, 2, {"--link: found 'inf'"}},
    {{"plan", kModel, "--hit-rate", "1.1"}, 2, {"--hit-rate: found '1.1'"}},
    {{"plan", "no-such-model"}, 4, {"no-such-model"}},
    {{"eval", kModel, "--text", "/nowhere", "--lm-head", "published", "--fast"},
     2,
     {"--fast", "--lm-head"}},
    {{"simulate", kModel}, 2, {"--slots"}},
    {{"simulate", kModel, "--slots", "1"}, 2, {"slots: found 1, expected"}},
    {{"simulate", kModel, "--slots", "4", "--policy", "clock"}, 2, {"--policy: found 'clock'"}},
    {{"simulate", kModel, "--slots", "4", "--fail", "2"}, 2, {"--fail: found '2'"}},
    {{"simulate", kModel, "--slots", "4", "--trace", "made:x"}, 2, {"--trace: found 'x'"}},
    {{"simulate", kModel, "--slots", "4", "--trace", "/nowhere/t", "--tokens", "5"},
     2,
     {"--tokens: found"}},
    {{"simulate", kModel, "--slots", "4", "--trace", "/nowhere/t"}, 4, {"/nowhere/t: found"}},
    {{"simulate", kModel, "--slots", "4", "--trace", "/proc/self/exe"}, 3, {"MORAYRT1"}},
    {{"bench", "-m", kModel, "--output-file", "/nowhere/out"}, 4, {"/nowhere/out: found"}},
};

class BadInput : public testing::TestWithParam<size_t> {};

TEST_P(BadInput, IsRefusedInOneLine) {
  const BadCommand& bad = kBadCommands[GetParam()];
  SCOPED_TRACE(testing::PrintToString(bad.arguments));
  TempFolder folder;  // an empty place, so that no models/ is found by accident
  ProcessRequest request = moray_request(bad.arguments, bad.input);
  request.folder = folder.path();
  request.environment = {"HF_HUB_CACHE=" + folder.path()};
  expect_refusal(run_process(request), bad.exit_code, bad.parts);
}

INSTANTIATE_TEST_SUITE_P(Table, BadInput, testing::Range<size_t>(0, kBadCommands.size()));

// A program looks beside itself too, so this one is copied away from the models that ship.
TEST(BadInput, AListOfNothingSaysWhereItLooked) {
  TempFolder folder;
  ProcessRequest request = moray_request({"list"});
  request.arguments[0] = folder / "moray";
  std::filesystem::copy_file(MORAY_PROGRAM, request.arguments[0]);
  request.folder = folder.path();
  request.environment = {"HF_HUB_CACHE=" + (folder / "hub")};
  expect_refusal(run_process(request), 4, {"models: found none, expected some in", folder / "hub"});
}

TEST(BadInput, APlaceOutsideTheFileSaysWhatThereIs) {
  TempFolder folder;
  const std::string file = folder.write("a.py", "é = 1\n\nprint(é)\n");
  const auto complete = [&](const char* line, const char* column) {
    return moray({"complete", file, "-m", kModel, "--line", line, "--col", column});
  };
  expect_refusal(complete("5", "1"), 2, {"--line: found 5, expected 1 to 4", "a.py"});
  expect_refusal(complete("1", "7"), 2, {"--col: found 7, expected 1 to 6", "line 1"});
  expect_refusal(complete("4", "2"), 2, {"--col: found 2, expected 1 to 1"});
}

TEST(BadInput, AModelWithoutTemplateCannotChat) {
  TempFolder folder;
  const std::string model = copy_tiny_model(folder);
  std::filesystem::remove(model + "/chat_template.jinja");
  std::filesystem::remove(model + "/tokenizer_config.json");
  expect_refusal(moray({"run", model, "--chat", "-p", "x", "--quiet"}), 5, {"chat template"});
}

TEST(BadInput, DamagedModelsAreNamedByFile) {
  const std::vector<std::pair<std::string, std::string>> damages = {
      {"config.json", "{}"},
      {"config.json", "not json"},
      {"config.json", "{\"model_type\": \"gpt5\", \"architectures\": [\"Gpt5\"]}"},
      {"tokenizer.json", "{\"model\": "},
      {"tokenizer.json", ""},
      {"model.safetensors", ""},
      {"model.safetensors", "short"},
      {"model.safetensors", std::string(64, '\xff')},
      {"generation_config.json", "[1"},
      {"generation_config.json", "{\"eos_token_id\": 100000}"},
  };
  for (const auto& [name, content] : damages) {
    SCOPED_TRACE(name + ": " + content);
    TempFolder folder;
    const std::string model = copy_tiny_model(folder);
    folder.write("model/" + name, content);
    const int code = content.find("gpt5") == std::string::npos ? 3 : 5;
    expect_refusal(moray({"run", model, "-p", "x", "--quiet"}), code, {name});
  }
}

TEST(BadInput, ATruncatedShardIsNamed) {
  TempFolder folder;
  const std::string model = copy_tiny_model(folder);
  const std::string shard = model + "/model.safetensors";
  std::filesystem::resize_file(shard, std::filesystem::file_size(shard) - 1);
  expect_refusal(moray({"run", model, "-p", "x", "--quiet"}), 3, {"model.safetensors"});
}

// B49: the config is plausible but the tensors say otherwise.
TEST(BadInput, B49AConfigThatLiesIsToldFromTheTensors) {
  TempFolder folder;
  const std::string model = copy_tiny_model(folder);
  std::string config = file_content(model + "/config.json");
  const std::string from = "\"hidden_size\": 48";
  config.replace(config.find(from), from.size(), "\"hidden_size\": 64");
  folder.write("model/config.json", config);
  expect_refusal(moray({"run", model, "-p", "x", "--quiet"}), 3, {"48", "64"});
}

// The planner refuses before anything is allocated.
TEST(BadInput, AContextBeyondTheMemoryIsRefusedWithNumbers) {
  TempFolder folder;
  const std::string model = copy_tiny_model(folder);
  std::string config = file_content(model + "/config.json");
  const std::string from = "\"max_position_embeddings\": 4096";
  config.replace(config.find(from), from.size(), "\"max_position_embeddings\": 1000000");
  folder.write("model/config.json", config);
  ProcessRequest request = moray_request({"run", model, "-p", "x", "--ctx", "1000000"});
  request.address_space_bytes = int64_t{300} << 20;  // the state alone takes 700 MB
  expect_refusal(run_process(request), 6, {"memory: found", "1000000 tokens", "would fit"});
  request.arguments.resize(request.arguments.size() - 2);  // without --ctx it takes what there is
  const ProcessResult reduced = run_process(request);
  EXPECT_EQ(reduced.exit_code, 0) << reduced.err;
  EXPECT_NE(reduced.err.find("not the model's 1000000"), std::string::npos) << reduced.err;
}

}  // namespace
}  // namespace moray
