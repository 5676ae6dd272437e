// What the commands do when all is well, seen from outside: streams, equality, formats.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "moray/text.h"
#include "moray/tools.h"
#include "src/cli/exit_code.h"
#include "tests/cli/moray.h"

namespace moray {
namespace {

const std::vector<std::string> kRun = {"run", kTinyModel, "-p", "def f(x):", "--max-tokens", "24"};

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

TEST(Run, TextGoesToStdoutAndStatisticsToStderr) {
  const ProcessResult result = moray(kRun);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_FALSE(result.out.empty());
  EXPECT_EQ(first_invalid_byte(result.out), std::string::npos);
  const std::regex statistics(
      R"(\nprompt:  6 tokens in [0-9.]+ s( \([0-9.]+ tokens/s\))?\n)"
      R"(answer:  [0-9]+ tokens in [0-9.]+ s( \([0-9.]+ tokens/s\))?\n)"
      R"(stopped: [^\n]+\nbackend: cpu (avx2|avx512), [0-9]+ threads? [^\n]+\n)"
      R"(model:   tiny-experts, BF16\nnote: [^\n]+\n)");
  EXPECT_TRUE(std::regex_match(result.err, statistics)) << result.err;
}

TEST(Run, QuietSaysNothingOnStderr) {
  const ProcessResult loud = moray(kRun);
  const ProcessResult quiet = moray(with(kRun, {"--quiet"}));
  EXPECT_EQ(quiet.err, "");
  EXPECT_EQ(quiet.out, loud.out);
}

TEST(Run, ThePromptMayComeFromOptionFileOrStdin) {
  TempFolder folder;
  const std::string file = folder.write("prompt.txt", "def f(x):");
  const std::string expected = moray(kRun).out;
  EXPECT_EQ(moray({"run", kTinyModel, "-f", file, "--max-tokens", "24"}).out, expected);
  EXPECT_EQ(moray({"run", kTinyModel, "--max-tokens", "24"}, "def f(x):").out, expected);
  EXPECT_EQ(moray({"run", "-m", kTinyModel, "--max-tokens", "24"}, "def f(x):").out, expected);
}

TEST(Run, SameSeedSameTextOtherSeedOtherText) {
  const auto text_of = [](const std::string& seed) {
    return moray(with(kRun, {"--temperature", "1.5", "--seed", seed})).out;
  };
  EXPECT_EQ(text_of("1"), text_of("1"));
  EXPECT_NE(text_of("1"), text_of("2"));
}

TEST(Run, TheTextDoesNotDependOnThreads) {
  EXPECT_EQ(moray(with(kRun, {"--threads", "1"})).out, moray(with(kRun, {"--threads", "3"})).out);
}

TEST(Run, ALongerAnswerBeginsWithTheShorter) {
  const std::string longest = moray(with(kRun, kNoEnd)).out;
  // B04: whatever the limit, what is printed is whole characters and a prefix of what comes later.
  const std::vector<std::string> run = with({"run", kTinyModel, "-p", "def f(x):"}, kNoEnd);
  for (int limit = 0; limit <= 12; ++limit) {
    const ProcessResult result = moray(with(run, {"--max-tokens", std::to_string(limit)}));
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_TRUE(longest.starts_with(result.out)) << limit;
    EXPECT_EQ(first_invalid_byte(result.out), std::string::npos) << limit;
  }
}

TEST(Run, AStopStringEndsTheAnswerBeforeIt) {
  const std::vector<std::string> run = with(with(kRun, kNoEnd), {"--quiet"});
  const std::string whole = moray(run).out;
  ASSERT_GE(whole.size(), 9u);
  size_t begin = whole.size() / 2;  // from a character's start to another's
  while ((static_cast<unsigned char>(whole[begin]) & 0xC0) == 0x80) ++begin;
  const std::string stop = whole.substr(begin);
  const ProcessResult cut = moray(with(run, {"--stop", stop, "--stop", "[never, ever]"}));
  EXPECT_EQ(cut.exit_code, 0) << cut.err;
  EXPECT_EQ(cut.out, whole.substr(0, whole.find(stop)));
}

TEST(Run, FillsTheContextAndSaysSo) {
  const ProcessResult result =
      moray(with({"run", kTinyModel, "-p", "x", "--ctx", "40", "--max-tokens", "-1"}, kNoEnd));
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_NE(result.err.find("stopped: context full at 40 tokens"), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("answer:  40 tokens"), std::string::npos) << result.err;
}

// Content cannot forge a turn: the same words as control tokens give another prompt.
TEST(Run, B01ControlTokensInAPromptAreTextUnlessAsked) {
  const std::vector<std::string> run = {"tokenize", kTinyModel, "-p", "a<|im_end|>b", "--count"};
  EXPECT_EQ(moray(run).out, "12\n");
  EXPECT_EQ(moray(with(run, {"--control-tokens"})).out, "3\n");
}

// What the template is given shows in the number of prompt tokens: each x is one.
TEST(Chat, GivesTheTemplateMessagesSystemTextAndMode) {
  TempFolder folder;
  const std::string model = copy_tiny_model(folder);
  folder.write("model/chat_template.jinja",
               "{% for m in messages %}{{ m.role[0] ~ m.content ~ '<|im_end|>' }}{% endfor %}"
               "{{ 'xx' if enable_thinking else '' }}");
  const auto prompt_tokens = [&](const std::vector<std::string>& more) {
    const ProcessResult result =
        moray(with({"run", model, "--chat", "--max-tokens", "1", "-p"}, more));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return std::stoi(result.err.substr(result.err.find(':') + 1));
  };
  EXPECT_EQ(prompt_tokens({"1"}), 3);
  EXPECT_EQ(prompt_tokens({"1", "--think"}), 5);
  EXPECT_EQ(prompt_tokens({"1", "--system", "2"}), 6);
  // B01: a message cannot end its turn; the marker is ten bytes of text, not one token.
  EXPECT_EQ(prompt_tokens({"<|im_end|>"}), 12);
}

// A template that this interpreter cannot run stops a conversation and nothing else.
TEST(Chat, ATemplateThatCannotBeRunStopsOnlyChat) {
  TempFolder folder;
  const std::string model = copy_tiny_model(folder);
  folder.write("model/chat_template.jinja", "{% unheard_of %}");
  const std::vector<std::string> run = {"run", model, "-p", "1", "--max-tokens", "1"};
  EXPECT_EQ(moray(run).exit_code, 0);
  expect_refusal(moray(with(run, {"--chat"})), 5, {"chat template line 1", "unheard_of"});
}

// The insertion is what `run` continues the documented prompt with, and the file stays as it is.
TEST(Complete, SendsPrefixSuffixMiddle) {
  TempFolder folder;
  const std::string text = "def f(é):\r\n    return \nprint(f(1))\n";
  const std::string file = folder.write("a.py", text);
  const std::string before = "def f(é):\r\n    return ";
  ASSERT_TRUE(text.starts_with(before));
  const ProcessResult inserted = moray(with({"complete", file, "-m", kTinyModel, "--line", "2",
                                             "--col", "12", "--max-tokens", "16", "--quiet"},
                                            kNoEnd));
  EXPECT_EQ(inserted.exit_code, 0) << inserted.err;
  const std::string prompt =
      "<|fim_prefix|>" + before + "<|fim_suffix|>" + text.substr(before.size()) + "<|fim_middle|>";
  const std::vector<std::string> run = {
      "run",           kTinyModel, "--control-tokens", "-p", prompt,
      "--temperature", "0",        "--max-tokens",     "16", "--quiet"};
  const std::string continued = moray(with(run, kNoEnd)).out;
  EXPECT_TRUE(continued.starts_with(inserted.out));  // a stop token may end the insertion earlier
  EXPECT_EQ(file_content(file), text);
}

TEST(Tokenize, IdsPiecesAndCountAgree) {
  const std::string text = "x = \"é\"\n\tpass";
  const std::string ids = moray({"tokenize", kTinyModel, "--ids"}, text).out;
  const ProcessResult pieces = moray({"tokenize", kTinyModel}, text);
  const std::string count = moray({"tokenize", kTinyModel, "--count"}, text).out;
  std::string ids_of_pieces;
  for (const std::string& line : lines_of(pieces.out)) {
    std::istringstream in(line);
    std::string id, piece;
    in >> id >> piece;
    ids_of_pieces += (ids_of_pieces.empty() ? "" : " ") + id;
    EXPECT_EQ(piece.front(), '"') << line;
    EXPECT_EQ(line.back(), '"') << line;
  }
  EXPECT_EQ(ids_of_pieces + "\n", ids);
  EXPECT_EQ(std::to_string(lines_of(pieces.out).size()) + "\n", count);
  EXPECT_EQ(pieces.err.find(count.substr(0, count.size() - 1) + " tokens, 14 bytes"), 0u)
      << pieces.err;
}

TEST(Eval, TheTotalIsTheFilesTogether) {
  TempFolder folder;
  const std::string a = folder.write("a.py", "import os\nprint(os.getcwd())\n");
  const std::string b = folder.write("b.py", "é");
  const ProcessResult result = moray({"eval", kTinyModel, "--text", a, b});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  double bytes[3], tokens[3], bits[3];
  const std::vector<std::string> lines = lines_of(result.out);
  ASSERT_EQ(lines.size(), 4u) << result.out;
  for (int i = 0; i < 3; ++i) {
    std::istringstream(lines[static_cast<size_t>(i) + 1]) >> bytes[i] >> tokens[i] >> bits[i];
  }
  EXPECT_EQ(bytes[0], 29);
  EXPECT_EQ(bytes[1], 2);
  EXPECT_EQ(bytes[2], 31);
  EXPECT_EQ(tokens[2], tokens[0] + tokens[1]);
  // A random model knows nothing: no better than log2(320 rows) = 8.3 bits a token, and no wilder
  // than a few bits more.
  EXPECT_NEAR(bits[2] * 31 / tokens[2], 10, 3);
  EXPECT_NEAR(bits[2] * 31, bits[0] * 29 + bits[1] * 2, 31 * 1e-4);
}

TEST(Eval, ALossyOptionIsHeldAgainstTheModelWithoutIt) {
  TempFolder folder;
  const std::string file = folder.write("a.py", "import os\nprint(os.getcwd())\n");
  const auto last_row = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"eval", kTinyModel, "--device", "cpu", "--text", file});
    const ProcessResult result = moray(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    std::istringstream row(lines_of(result.out).back());
    std::vector<double> numbers;
    for (double number; row >> number;) numbers.push_back(number);
    const bool is_said = result.err.find("lossy:   lm-head=fp8") != std::string::npos;
    EXPECT_EQ(is_said, !arguments.back().ends_with(".py")) << result.err;
    return numbers;
  };
  const std::vector<double> plain = last_row({});
  ASSERT_EQ(plain.size(), 3u);
  for (const std::vector<std::string>& option :
       {std::vector<std::string>{"--lm-head", "fp8"}, std::vector<std::string>{"--fast"}}) {
    const std::vector<double> found = last_row(option);
    ASSERT_EQ(found.size(), 6u);
    EXPECT_EQ(found[1], plain[1]);  // tokens
    EXPECT_NE(found[2], found[3]);  // bits per byte with and without
    EXPECT_NEAR(found[3], plain[2], 1e-4);
    EXPECT_GT(found[4], 0);  // KL
    EXPECT_LT(found[4], 0.05);
    EXPECT_GT(found[5], 50);  // per cent of equal choices
    EXPECT_LE(found[5], 100);
  }
}

TEST(Eval, RefusesAFileBeyondTheContextWithoutATotal) {
  TempFolder folder;
  const std::string small = folder.write("small", "x");
  const std::string large = folder.write("large", std::string(200, 'x'));
  const ProcessResult result =
      moray({"eval", kTinyModel, "--ctx", "64", "--quiet", "--text", small, large});
  EXPECT_EQ(result.exit_code, 6);
  EXPECT_NE(result.err.find("large: found "), std::string::npos) << result.err;
  EXPECT_EQ(result.out.find("total"), std::string::npos) << result.out;
}

TEST(Bench, JsonLinesHaveTheDocumentedKeys) {
  const ProcessResult result = moray(
      {"bench", "-m", kTinyModel, "-p", "8", "-n", "4", "-d", "0,5", "-r", "3", "-o", "jsonl"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::vector<std::string> keys = {
      "model",          "device",     "backend",      "weights", "kv",      "options",
      "batch",          "test",       "tokens_per_s", "spread",  "runs",    "bytes_per_token",
      "roofline_share", "peak_bytes", "clocks",       "driver",  "command", "commit"};
  std::vector<std::string> tests;
  for (const std::string& line : lines_of(result.out)) {
    const auto object = nlohmann::ordered_json::parse(line);
    std::vector<std::string> found;
    for (const auto& [key, value] : object.items()) found.push_back(key);
    EXPECT_EQ(found, keys);
    tests.push_back(object["test"]);
    EXPECT_GT(object["tokens_per_s"].get<double>(), 0);
    EXPECT_EQ(object["runs"], 3);
    EXPECT_GT(object["peak_bytes"].get<int64_t>(), 1 << 20);
    const bool is_decode = object["test"].get<std::string>().starts_with("tg");
    EXPECT_EQ(object["roofline_share"].is_null(), !is_decode);
    EXPECT_EQ(object["bytes_per_token"].is_null(), !is_decode);
  }
  EXPECT_EQ(tests, (std::vector<std::string>{"pp8", "tg4", "pp8@d5", "tg4@d5"}));
}

TEST(Bench, MarkdownGoesToAFileWhole) {
  TempFolder folder;
  const std::string file = folder / "out.md";
  const ProcessResult result =
      moray({"bench", "-m", kTinyModel, "-p", "8", "-n", "4", "-r", "2", "--output-file", file});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "");
  const std::string table = file_content(file);
  EXPECT_NE(table.find("| pp8 |"), std::string::npos) << table;
  EXPECT_NE(table.find("| tg4 |"), std::string::npos) << table;
}

TEST(Models, AreFoundByNameUnderModels) {
  TempFolder folder;
  std::filesystem::create_directories(folder / "zoo");
  std::filesystem::copy(kTinyModel, folder / "zoo/wren", std::filesystem::copy_options::recursive);
  std::filesystem::create_directories(folder / "here/models/below");
  std::filesystem::copy(kTinyModel, folder / "here/models/robin",
                        std::filesystem::copy_options::recursive);
  ProcessRequest request = moray_request({"list"});
  request.folder = folder / "here/models/below";  // parents count
  request.environment = {"MORAY_MODELS=" + (folder / "zoo"), "HF_HUB_CACHE=" + folder.path()};
  const ProcessResult list = run_process(request);
  EXPECT_EQ(list.exit_code, 0) << list.err;
  EXPECT_NE(list.out.find("wren"), std::string::npos) << list.out;
  EXPECT_NE(list.out.find("robin"), std::string::npos) << list.out;
  for (const char* name : {"wren", "robin"}) {
    request.arguments = {MORAY_PROGRAM, "info", name};
    const ProcessResult info = run_process(request);
    EXPECT_EQ(info.exit_code, 0) << info.err;
    EXPECT_NE(info.out.find("experts     5 of 16, 3 a token"), std::string::npos) << info.out;
  }
}

TEST(Help, PrintsTheDocumentedExitCodes) {
  const ProcessResult help = moray({"--help"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_NE(help.out.find(exit_code_table()), std::string::npos) << help.out;
  const std::string page = file_content(MORAY_SOURCE_DIR "/docs/exit-codes.md");
  for (const std::string& line : lines_of(exit_code_table())) {
    std::istringstream in(line);
    std::string code, meaning;
    in >> code >> std::ws;
    std::getline(in, meaning);
    if (const size_t bar = meaning.find('|'); bar != std::string::npos) meaning.insert(bar, "\\");
    EXPECT_NE(page.find("| " + code + " | " + meaning + " |"), std::string::npos) << line;
  }
}

TEST(Help, EveryCommandHasOne) {
  for (const char* command :
       {"run", "complete", "info", "list", "tokenize", "eval", "bench", "selftest"}) {
    const ProcessResult help = moray({command, "--help"});
    EXPECT_EQ(help.exit_code, 0) << command;
    EXPECT_NE(help.out.find("Usage: moray " + std::string(command)), std::string::npos) << help.out;
    EXPECT_EQ(help.err, "");
  }
}

TEST(Version, NamesProgramAndBuild) {
  const ProcessResult version = moray({"--version"});
  EXPECT_EQ(version.exit_code, 0);
  EXPECT_TRUE(std::regex_match(version.out, std::regex("moray [0-9.]+ \\(commit [^)]+\\)\n")))
      << version.out;
}

// Prompt and answer, all but the last token, which is not fed; and the answer stays what it was.
TEST(Run, RecordsTheRoutingOfEveryTokenItRead) {
  TempFolder folder;
  const std::vector<std::string> command = with(
      {"run", kTinyModel, "-p", "def f(x):", "--max-tokens", "5", "--temperature", "0", "--quiet"},
      kNoEnd);
  const ProcessResult plain = moray(command);
  const ProcessResult result = moray(with(command, {"--record-routing", folder / "trace"}));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, plain.out);
  const auto trace = read_routing_trace(folder / "trace");
  ASSERT_TRUE(trace.ok()) << trace.status().message();
  const auto model = model_info(kTinyModel);
  ASSERT_TRUE(model.ok());
  EXPECT_EQ(trace->layers, model->layers);
  EXPECT_EQ(trace->experts, model->experts);
  EXPECT_EQ(trace->top_k, model->top_k);
  const int64_t prompt =
      std::stoll(moray({"tokenize", kTinyModel, "-p", "def f(x):", "--count"}).out);
  EXPECT_EQ(trace->tokens(), prompt + 4);
  for (size_t i = 0; i < trace->weights.size(); ++i) {
    EXPECT_GT(trace->weights[i], 0) << i;
    if (i % static_cast<size_t>(trace->top_k) > 0) {
      EXPECT_LE(trace->weights[i], trace->weights[i - 1]);
    }
  }
  const ProcessResult again = moray(with(command, {"--record-routing", folder / "again"}));
  EXPECT_EQ(file_content(folder / "again"), file_content(folder / "trace"));
  expect_refusal(moray({"run", kTinyModel, "-p", "x", "--device", "cuda", "--record-routing", "t"}),
                 2, {"device: found cuda with a record of routing, expected cpu or auto"});
  // A place that cannot be written is found before the answer, not after it.
  const std::string nowhere = folder / "no/such/folder/trace";
  const ProcessResult refused = moray(with(command, {"--record-routing", nowhere}));
  expect_refusal(refused, 4, {nowhere + ": found 'No such file or directory'"});
  EXPECT_EQ(refused.out, "");
  const std::string directory = folder.path();
  expect_refusal(moray(with(command, {"--record-routing", directory})), 7,
                 {directory + ": found 'Is a directory'"});
  const std::string pipe = folder / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  expect_refusal(moray(with(command, {"--record-routing", pipe})), 7,
                 {pipe + ": found a device or a pipe"});
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
  // A link is followed and the file behind it keeps its permissions.
  const std::string file = folder.write("kept", "old");
  std::filesystem::permissions(
      file, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  std::filesystem::create_symlink(file, folder / "link");
  EXPECT_EQ(moray(with(command, {"--record-routing", folder / "link"})).exit_code, 0);
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "link"));
  EXPECT_EQ(file_content(file), file_content(folder / "trace"));
  EXPECT_EQ(std::filesystem::status(file).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
}

}  // namespace
}  // namespace moray
