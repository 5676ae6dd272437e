// B03: ids equal those of Hugging Face `tokenizers`, text by text, and the bytes come back.
//
// Fixtures by tools/make_tokenizer_fixtures.py: two pattern generations and a tokenizer whose added
// tokens use every flag, over texts of all scripts, code, blanks, contractions and control tokens.
#include <filesystem>

#include "src/text/nfc.h"
#include "tests/text/support.h"

namespace moray {
namespace {

class Golden : public testing::TestWithParam<const char*> {};

TEST_P(Golden, B03IdsEqualTheReference) {
  const auto tokenizer = load_stand_in(GetParam());
  const auto texts = read_json("texts.json");
  const auto expected = read_json("ids.json").at(GetParam());
  ASSERT_EQ(texts.size(), expected.size());
  ASSERT_GT(texts.size(), 400u);
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto text = texts[i].get<std::string>();
    const auto ids = tokenizer->encode(text, ControlTokens::kAllow);
    ASSERT_TRUE(ids.ok()) << ids.status().message();
    EXPECT_EQ(*ids, expected[i].get<std::vector<TokenId>>()) << i << ": " << texts[i];
  }
}

TEST_P(Golden, B03BytesComeBackAsNfc) {
  const auto tokenizer = load_stand_in(GetParam());
  std::string buffer;
  for (const auto& text : read_json("texts.json")) {
    const auto ids = tokenizer->encode(text.get<std::string>(), ControlTokens::kAsText);
    ASSERT_TRUE(ids.ok());
    EXPECT_EQ(join_bytes(*tokenizer, *ids),
              normalize_nfc(text.get_ref<const std::string&>(), buffer))
        << text;
  }
}

TEST_P(Golden, B03RandomTextComesBackAsNfc) {
  const auto tokenizer = load_stand_in(GetParam());
  FreshRandom random;
  SCOPED_TRACE(random.trace());
  std::string buffer;
  for (int i = 0; i < 3000; ++i) {
    const std::string text = random.text(60);
    const auto ids = tokenizer->encode(text, ControlTokens::kAsText);
    ASSERT_TRUE(ids.ok());
    ASSERT_EQ(join_bytes(*tokenizer, *ids), normalize_nfc(text, buffer)) << quote_bytes(text);
  }
}

// The shipped model's own tokenizer, read from its folder as a user's program does.
TEST(GoldenModel, B03IdsOfTheShippedModelEqualTheReference) {
  const std::string folder = std::string(MORAY_SOURCE_DIR) + "/models/moray-nano";
  if (!std::filesystem::exists(folder + "/tokenizer.json")) {
    GTEST_SKIP() << "models/moray-nano is not in this checkout";
  }
  const auto tokenizer = Tokenizer::load(folder);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  const auto texts = read_json("texts.json");
  const auto expected = read_json("ids_model.json").at("moray-nano");
  ASSERT_EQ(texts.size(), expected.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto ids = (*tokenizer)->encode(texts[i].get<std::string>(), ControlTokens::kAllow);
    ASSERT_TRUE(ids.ok());
    EXPECT_EQ(*ids, expected[i].get<std::vector<TokenId>>()) << i << ": " << texts[i];
  }
}

// Both ways to write merges give one tokenizer: qwen2 has strings, qwen35 has pairs.
TEST(GoldenFiles, BothMergeFormsAreCovered) {
  EXPECT_TRUE(read_json("qwen2/tokenizer.json").at("model").at("merges").at(0).is_string());
  EXPECT_TRUE(read_json("qwen35/tokenizer.json").at("model").at("merges").at(0).is_array());
}

INSTANTIATE_TEST_SUITE_P(StandIns, Golden, testing::Values("qwen2", "qwen35", "flags"),
                         [](const auto& stand_in) { return std::string(stand_in.param); });

}  // namespace
}  // namespace moray
