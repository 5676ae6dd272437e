// The template interpreter against jinja2's recorded output (tools/make_template_fixtures.py):
// single constructs, whole templates over a corpus of conversations, and token ids.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "moray/text.h"
#include "src/text/jinja_eval.h"
#include "src/text/jinja_parser.h"
#include "src/text/json_value.h"
#include "src/text/marked_encode.h"

namespace moray {
namespace {

const std::string kData = std::string(MORAY_SOURCE_DIR) + "/tests/data/";

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.good()) << path;
  return std::string(std::istreambuf_iterator<char>(in), {});
}

nlohmann::json fixture(const std::string& name) {
  return nlohmann::json::parse(read_file(kData + "templates/" + name));
}

Result<MarkedText> render(const std::string& source, const std::string& variables_json) {
  ASSIGN_OR_RETURN(const jinja::Block program, jinja::parse_template(source));
  ASSIGN_OR_RETURN(const jinja::Value variables, parse_json_value(variables_json, "variables"));
  return jinja::render(program, *variables.as<jinja::MapRef>(), 0);
}

// Equal text, or refused on both sides; a refusal names the line.
void expect_same(const Result<MarkedText>& got, const nlohmann::json& expected,
                 const std::string& what) {
  if (expected.is_null()) {
    ASSERT_FALSE(got.ok()) << what << "\nprinted " << got->text;
    EXPECT_NE(got.status().message().find("line "), std::string::npos) << got.status().message();
    return;
  }
  ASSERT_TRUE(got.ok()) << what << "\n" << got.status().message();
  EXPECT_EQ(got->text, expected.get<std::string>()) << what;
}

uint64_t fnv1a(const std::vector<TokenId>& ids) {
  uint64_t hash = 0xCBF29CE484222325;
  for (const TokenId id : ids) {
    for (int shift = 0; shift < 32; shift += 8) {
      hash = (hash ^ ((static_cast<uint32_t>(id) >> shift) & 0xFF)) * 0x100000001B3;
    }
  }
  return hash;
}

TEST(TemplateFixtures, ConstructsPrintWhatJinja2Prints) {
  const nlohmann::json cases = fixture("constructs.json")["cases"];
  EXPECT_GT(cases.size(), 200u);
  for (const auto& item : cases) {
    const std::string source = item["template"];
    expect_same(render(source, item["variables"]), item["text"], source);
  }
}

TEST(TemplateFixtures, ConstructsOutsideTheSubsetAreNamed) {
  const nlohmann::json cases = fixture("constructs.json")["strict"];
  EXPECT_GT(cases.size(), 20u);
  for (const auto& item : cases) {
    const std::string source = item["template"];
    const auto got = render(source, item["variables"]);
    ASSERT_FALSE(got.ok()) << source << "\nprinted " << got->text;
    EXPECT_NE(got.status().message().find("chat template line 1: "), std::string::npos) << source;
  }
}

TEST(TemplateFixtures, ConversationsPrintWhatJinja2Prints) {
  const nlohmann::json cases = fixture("conversations.json");
  const nlohmann::json renders = fixture("renders.json")["renders"];
  EXPECT_GE(renders.size() * cases.size(), 300u);
  for (const auto& [name, texts] : renders.items()) {
    const std::string source = read_file(kData + "templates/" + name + ".jinja");
    ASSERT_EQ(texts.size(), cases.size());
    for (size_t i = 0; i < cases.size(); ++i) {
      expect_same(render(source, cases[i]["variables"]), texts[i],
                  name + ": " + cases[i]["name"].get<std::string>());
    }
  }
}

// Marks may move no border between tokens: ids equal those of Hugging Face over the joined text
// wherever content spells no added token.
TEST(TemplateFixtures, MarkedTextEncodesLikeTheJoinedText) {
  const auto tokenizer = Tokenizer::load(kData + "text/qwen35");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  const nlohmann::json cases = fixture("conversations.json");
  const nlohmann::json hashes = fixture("renders.json")["ids"];
  int compared = 0;
  for (const auto& [name, expected] : hashes.items()) {
    const std::string source = read_file(kData + "templates/" + name + ".jinja");
    for (size_t i = 0; i < cases.size(); ++i) {
      if (expected[i].is_null()) continue;
      const auto text = render(source, cases[i]["variables"]);
      ASSERT_TRUE(text.ok());
      const auto ids = encode_marked(**tokenizer, *text);
      ASSERT_TRUE(ids.ok()) << ids.status().message();
      const std::string what = name + ": " + cases[i]["name"].get<std::string>();
      EXPECT_EQ(ids->size(), expected[i][0].get<size_t>()) << what;
      char hash[20];
      snprintf(hash, sizeof hash, "%016llx", static_cast<unsigned long long>(fnv1a(*ids)));
      EXPECT_EQ(hash, expected[i][1].get<std::string>()) << what;
      ++compared;
    }
  }
  EXPECT_GT(compared, 200);
}

}  // namespace
}  // namespace moray
