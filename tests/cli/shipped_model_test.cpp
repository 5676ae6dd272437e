// The shipped model through the program, as a newcomer meets it: its card's figure, its code.
#include <gtest/gtest.h>

#include <regex>
#include <string>

#include "tests/cli/moray.h"

namespace moray {
namespace {

const std::string kRoot = MORAY_SOURCE_DIR;
const std::string kNano = kRoot + "/models/moray-nano";

// Of the file's first 23,965 bytes (whole lines), by transformers 5.17's eager FP32 forward on the
// dequantised twin, <|endoftext|> in front; the two programs share no code. The card promises
// agreement within 0.1 %; 16-bit activations alone move the figure by some 0.02 %.
constexpr size_t kScoredBytes = 23965;
constexpr double kBitsPerByte = 0.549923;

TEST(ShippedModel, EvalAgreesWithTransformersWithinATenthOfAPercent) {
  TempFolder folder;
  const std::string text = file_content(kRoot + "/tests/data/held_out_code.txt");
  ASSERT_GT(text.size(), kScoredBytes);
  const std::string part = folder.write("part.txt", text.substr(0, kScoredBytes));
  const ProcessResult result = moray({"eval", kNano, "--quiet", "--text", part});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  std::smatch match;
  ASSERT_TRUE(std::regex_search(result.out, match, std::regex(R"(\n +\d+ +\d+ +(\d\.\d+) )")))
      << result.out;
  EXPECT_NEAR(std::stod(match[1]), kBitsPerByte, kBitsPerByte * 1e-3);
}

TEST(ShippedModel, FinishesTheFunctionOfTheQuickstart) {
  const ProcessResult result =
      moray({"run", kNano, "--quiet", "--temperature", "0", "--max-tokens", "96", "--stop",
             "\ndef ", "-p",
             "def load_config(path):\n    \"\"\"Load a YAML configuration file.\"\"\"\n"
             "    if not os.path.exists(path):\n"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(result.out.starts_with("        raise ")) << result.out;
  EXPECT_NE(result.out.find("\n        return yaml.safe_load("), std::string::npos) << result.out;
}

TEST(ShippedModel, FillsTheMiddleOfALineAndStops) {
  TempFolder folder;
  const std::string file = folder.write("mean.py",
                                        "def mean(values):\n"
                                        "    \"\"\"Return the arithmetic mean.\"\"\"\n"
                                        "    total = \n"
                                        "    return total / len(values)\n");
  const ProcessResult result =
      moray({"complete", file, "-m", kNano, "--quiet", "--line", "3", "--col", "13"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_FALSE(result.out.empty());
  EXPECT_EQ(result.out.find('\n'), std::string::npos) << result.out;
}

}  // namespace
}  // namespace moray
