// Bad tokenizer files: one clear line each, naming the field, what was found and what was expected.
#include "src/text/tokenizer_file.h"

#include <filesystem>
#include <functional>

#include "tests/text/support.h"

namespace moray {
namespace {

using Json = nlohmann::json;

std::string error_of(const std::string& json, const std::string& config = "") {
  const auto file = parse_tokenizer_file(json, config);
  if (file.ok()) return "accepted";
  EXPECT_EQ(file.status().message().find('\n'), std::string::npos);
  return file.status().message();
}

struct BadFile {
  const char* name;
  std::function<void(Json&)> damage;
  std::string message;
};

const std::vector<BadFile>& bad_files() {
  static const std::vector<BadFile> files = {
      {"normalizer",
       [](Json& j) {
         j["normalizer"] = {{"type", "Lowercase"}};
       },
       R"(normalizer: found "Lowercase", expected NFC or null)"},
      {"normalizer in a sequence",
       [](Json& j) {
         j["normalizer"] = {{"type", "Sequence"},
                            {"normalizers", {{{"type", "NFC"}}, {{"type", "NFKC"}}}}};
       },
       R"(normalizer: found "NFKC", expected NFC or null)"},
      {"pre-tokenizer missing", [](Json& j) { j["pre_tokenizer"] = nullptr; },
       "pre_tokenizer: found nothing, expected Sequence of Split(Regex, Isolated) and "
       "ByteLevel(add_prefix_space and use_regex false)"},
      {"pre-tokenizer of another kind",
       [](Json& j) {
         j["pre_tokenizer"] = {{"type", "Metaspace"}};
       },
       "pre_tokenizer: found \"Metaspace\", expected Sequence of Split(Regex, Isolated) and "
       "ByteLevel(add_prefix_space and use_regex false)"},
      {"third member",
       [](Json& j) {
         j["pre_tokenizer"]["pretokenizers"].push_back({{"type", "Digits"}});
       },
       "pre_tokenizer: found a Sequence of 3, expected Sequence of Split(Regex, Isolated) and "
       "ByteLevel(add_prefix_space and use_regex false)"},
      {"pattern",
       [](Json& j) { j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "\\s+"; },
       R"(pre_tokenizer.Split.pattern.Regex: found an unknown pattern "\x5Cs+", expected the )"
       "pattern of Qwen2/Qwen3 or of Qwen3.5"},
      {"behavior", [](Json& j) { j["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Removed"; },
       R"(pre_tokenizer.Split: found behavior "Removed", invert false, expected )"
       R"(behavior "Isolated", invert false)"},
      {"use_regex", [](Json& j) { j["pre_tokenizer"]["pretokenizers"][1].erase("use_regex"); },
       "pre_tokenizer.ByteLevel: found add_prefix_space false, use_regex true, expected both "
       "false"},
      {"decoder",
       [](Json& j) {
         j["decoder"] = {{"type", "WordPiece"}};
       },
       R"(decoder: found "WordPiece", expected ByteLevel)"},
      {"post-processor",
       [](Json& j) {
         j["post_processor"] = {{"type", "TemplateProcessing"}};
       },
       R"(post_processor: found "TemplateProcessing", expected ByteLevel or null)"},
      {"model type", [](Json& j) { j["model"]["type"] = "Unigram"; },
       R"(model.type: found "Unigram", expected "BPE")"},
      {"no model", [](Json& j) { j.erase("model"); }, "model: found nothing, expected an object"},
      {"dropout", [](Json& j) { j["model"]["dropout"] = 0.1; },
       "model.dropout: found 0.1, expected null or 0"},
      {"affix", [](Json& j) { j["model"]["end_of_word_suffix"] = "</w>"; },
       R"(model.end_of_word_suffix: found "</w>", expected null or "")"},
      {"byte fallback", [](Json& j) { j["model"]["byte_fallback"] = true; },
       "model.byte_fallback: found true, expected false"},
      {"no vocabulary", [](Json& j) { j["model"].erase("vocab"); },
       "model.vocab: found nothing, expected an object"},
      {"no merges", [](Json& j) { j["model"].erase("merges"); },
       "model.merges: found nothing, expected an array"},
      {"id a string", [](Json& j) { j["model"]["vocab"]["a"] = "7"; },
       R"(model.vocab["a"]: found "7", expected an id from 0 to 4194303)"},
      {"id negative", [](Json& j) { j["model"]["vocab"]["a"] = -1; },
       R"(model.vocab["a"]: found -1, expected an id from 0 to 4194303)"},
      {"id absurd", [](Json& j) { j["model"]["vocab"]["a"] = 4194304; },
       R"(model.vocab["a"]: found 4194304, expected an id from 0 to 4194303)"},
      {"id fractional", [](Json& j) { j["model"]["vocab"]["a"] = 1.5; },
       R"(model.vocab["a"]: found 1.5, expected an id from 0 to 4194303)"},
      {"id twice", [](Json& j) { j["model"]["vocab"]["b"] = j["model"]["vocab"]["a"]; },
       R"(model.vocab: found id 64 twice, the second for "b", expected each id once)"},
      {"empty token", [](Json& j) { j["model"]["vocab"][""] = 3000; },
       "model.vocab: found an empty token, expected at least one byte"},
      {"byte without token", [](Json& j) { j["model"]["vocab"].erase("Ġ"); },
       "model.vocab: found no token for byte 0x20, expected one for each of the 256 bytes"},
      {"merge part missing",
       [](Json& j) {
         j["model"]["merges"][3] = {"zzq", "a"};
       },
       R"(model.merges[3]: found part "zzq", expected a token of model.vocab)"},
      {"merge result missing",
       [](Json& j) {
         j["model"]["merges"][3] = {"z", "Q"};
       },
       R"(model.merges[3]: found "z" and "Q", whose joint token is missing, )"
       "expected their joint token in model.vocab"},
      {"cycle",
       [](Json& j) {
         j["model"]["merges"][3] = {"", "a"};
       },
       "model.merges[3]: found an empty part, expected two tokens (a merge that yields its own "
       "part never ends)"},
      {"cycle in the older form", [](Json& j) { j["model"]["merges"][3] = "a "; },
       "model.merges[3]: found an empty part, expected two tokens (a merge that yields its own "
       "part never ends)"},
      {"merge of three", [](Json& j) { j["model"]["merges"][3] = "a b c"; },
       R"(model.merges[3]: found "a b c", expected two tokens, )"
       R"(as "left right" or ["left", "right"])"},
      {"merge list cut",
       [](Json& j) { j["model"]["merges"].get_ref<Json::array_t&>().resize(100); },
       "model.merges: found 100 merges, expected about one for each of 1000 tokens"},
      {"added token without id", [](Json& j) { j["added_tokens"][0].erase("id"); },
       "added_tokens[0].id: found nothing, expected an id"},
      {"added token without text", [](Json& j) { j["added_tokens"][1]["content"] = ""; },
       "added_tokens[1].content: found 0 bytes, expected 1 to 4096 bytes"},
      {"added token flag", [](Json& j) { j["added_tokens"][1]["lstrip"] = "yes"; },
       R"(added_tokens[1].lstrip: found "yes", expected true or false)"},
      {"added token twice", [](Json& j) { j["added_tokens"][1]["content"] = "<|endoftext|>"; },
       R"(added_tokens: found "<|endoftext|>" twice, expected each token once)"},
      {"added id twice", [](Json& j) { j["added_tokens"][1]["id"] = j["added_tokens"][0]["id"]; },
       R"(added_tokens: found id 1000 twice, the second for "<|im_start|>", )"
       "expected each id once"},
      {"added id of another token", [](Json& j) { j["added_tokens"][1]["id"] = 64; },
       R"(model.vocab: found id 64 for "a", expected "<|im_start|>" as in added_tokens)"},
      {"added token under another id", [](Json& j) { j["added_tokens"][1]["content"] = "a"; },
       R"(model.vocab: found "a" with id 64, expected id 1001 as in added_tokens)"},
      {"added token that the byte alphabet spells otherwise",
       [](Json& j) {
         j["added_tokens"][1]["content"] = "é";
         j["added_tokens"][1]["id"] = j["model"]["vocab"]["é"];
       },
       R"(model.vocab: found added token "\xC3\xA9" as "\xE9" in the byte alphabet, )"
       "expected the same bytes"},
      {"added tokens no array", [](Json& j) { j["added_tokens"] = 3; },
       "added_tokens: found 3, expected an array"},
  };
  return files;
}

TEST(TokenizerFile, EveryDamageIsNamed) {
  const Json good = read_json("qwen35/tokenizer.json");
  ASSERT_EQ(error_of(good.dump()), "accepted");
  ASSERT_EQ(good.at("model").at("vocab").at("a"), 64);
  for (const BadFile& bad : bad_files()) {
    Json json = good;
    bad.damage(json);
    EXPECT_EQ(error_of(json.dump()), "tokenizer.json: " + bad.message) << bad.name;
  }
}

TEST(TokenizerFile, HarmlessVariantsAreAccepted) {
  const Json good = read_json("qwen35/tokenizer.json");
  const std::vector<std::function<void(Json&)>> variants = {
      [](Json& j) { j["normalizer"] = nullptr; },
      [](Json& j) {
        j["normalizer"] = {{"type", "Sequence"}, {"normalizers", {{{"type", "NFC"}}}}};
      },
      [](Json& j) { j["model"].erase("type"); },
      [](Json& j) { j["model"]["continuing_subword_prefix"] = ""; },
      [](Json& j) { j["model"]["dropout"] = 0.0; },
      [](Json& j) { j["model"]["unk_token"] = "<unk>"; },
      [](Json& j) {
        j["truncation"] = {{"max_length", 4}};
      },
      [](Json& j) {
        j["post_processor"] = {{"type", "ByteLevel"}};
      },
      [](Json& j) { j.erase("added_tokens"); },
      [](Json& j) { j["model"]["vocab"]["<|｜|>"] = 2500; },  // outside the byte alphabet
      [](Json& j) { j["model"]["merges"].get_ref<Json::array_t&>().resize(640); },
      [](Json& j) { j["model"]["merges"].push_back(j["model"]["merges"][0]); },
  };
  for (size_t i = 0; i < variants.size(); ++i) {
    Json json = good;
    variants[i](json);
    EXPECT_EQ(error_of(json.dump()), "accepted") << i;
  }
}

TEST(TokenizerFile, BrokenJsonIsNamed) {
  const std::string good = read_text(data_path("qwen35/tokenizer.json"));
  EXPECT_EQ(error_of("[]"), "tokenizer.json: found an array, expected an object");
  EXPECT_EQ(error_of("\"\""), "tokenizer.json: found \"\", expected an object");
  for (const std::string& text :
       {std::string(), good.substr(0, good.size() / 2), std::string("{\"a\":"),
        std::string("{\"model\":\"\xFF\"}"), std::string(1, '\0'),
        std::string(2000, '[') + std::string(2000, ']'),
        std::string("{\"model\":{\"vocab\":{\"\\ud800\":1}}}")}) {
    EXPECT_EQ(error_of(text).rfind("tokenizer.json: ", 0), 0u) << error_of(text);
    EXPECT_NE(error_of(text), "accepted");
  }
}

// The same key twice can only be written by hand: a JSON library keeps one of them.
TEST(TokenizerFile, ATokenTwiceIsNamed) {
  std::string json = read_text(data_path("qwen35/tokenizer.json"));
  const size_t place = json.find("\"vocab\":{") + 9;
  json.insert(place, "\"a\":2000,");
  EXPECT_EQ(error_of(json),
            "tokenizer.json: model.vocab: found \"a\" twice, expected each token once");
}

TEST(TokenizerConfig, AddsTokensAndChangesFlags) {
  const std::string json = read_text(data_path("qwen35/tokenizer.json"));
  const std::string config = R"({"added_tokens_decoder":{
      "1000":{"content":"<|endoftext|>","special":false,"normalized":false},
      "1020":{"content":"<|audio_start|>","special":true,"normalized":false}}})";
  auto file = parse_tokenizer_file(json, config);
  ASSERT_TRUE(file.ok()) << file.status().message();
  const ByteLevelTokenizer tokenizer(*std::move(file));
  EXPECT_EQ(tokenizer.token_count(), 1021);
  EXPECT_FALSE(tokenizer.is_token(1019));
  EXPECT_EQ(tokenizer.added_token("<|audio_start|>"), 1020);
  EXPECT_EQ(tokenizer.token_bytes(1000, true), "<|endoftext|>");
  EXPECT_EQ(*tokenizer.encode("<|audio_start|>", ControlTokens::kAllow),
            std::vector<TokenId>{1020});
}

TEST(TokenizerConfig, ContradictionsAreNamed) {
  const std::string json = read_text(data_path("qwen35/tokenizer.json"));
  EXPECT_EQ(error_of(json, R"({"added_tokens_decoder":{"1000":{"content":"<|other|>"}}})"),
            R"(tokenizer_config.json: added_tokens_decoder["1000"]: found "<|other|>", )"
            R"(expected "<|endoftext|>" as in tokenizer.json)");
  EXPECT_EQ(error_of(json, R"({"added_tokens_decoder":{"1e3":{"content":"x"}}})"),
            R"(tokenizer_config.json: added_tokens_decoder["1e3"]: found "1e3", )"
            "expected an id from 0 to 4194303");
  EXPECT_EQ(error_of(json, R"({"added_tokens_decoder":{"64":{"content":"x"}}})"),
            R"(tokenizer.json: model.vocab: found id 64 for "a", expected "x" as in added_tokens)");
  EXPECT_EQ(error_of(json, R"({"added_tokens_decoder":[]})"),
            "tokenizer_config.json: added_tokens_decoder: found an array, expected an object");
  EXPECT_EQ(error_of(json, "{").rfind("tokenizer_config.json: not JSON: found ", 0), 0u);
  EXPECT_EQ(error_of(json, R"({"model_max_length":5})"), "accepted");
}

TEST(TokenizerLoad, ErrorsNameTheFile) {
  const auto missing = Tokenizer::load(data_path("nowhere"));
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.status().code(), StatusCode::kNotFound);
  EXPECT_NE(missing.status().message().find("nowhere/tokenizer.json"), std::string::npos);

  namespace fs = std::filesystem;
  const fs::path folder =
      fs::path(testing::TempDir()) / ("moray_tokenizer_" + std::to_string(getpid()));
  fs::create_directories(folder);
  std::ofstream(folder / "tokenizer.json") << "{}";
  const auto bad = Tokenizer::load(folder.string());
  ASSERT_FALSE(bad.ok());
  EXPECT_EQ(bad.status().message().rfind((folder / "tokenizer.json: ").string(), 0), 0u)
      << bad.status().message();
  fs::remove_all(folder);
}

TEST(TokenizerLoad, ReadsAFolder) {
  for (const char* name : {"qwen2", "qwen35", "flags"}) {
    const auto tokenizer = Tokenizer::load(data_path(name));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
    const auto ids = (*tokenizer)->encode("def f():", ControlTokens::kAsText);
    ASSERT_TRUE(ids.ok());
    EXPECT_EQ(join_bytes(**tokenizer, *ids), "def f():");
  }
}

}  // namespace
}  // namespace moray
