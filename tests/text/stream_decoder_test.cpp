// B04, B05, B06: streamed text is valid UTF-8, the same as the whole, and no id is out of range.
#include <limits>

#include "tests/text/support.h"

namespace moray {
namespace {

// A tokenizer whose tokens are given byte strings; id 1000 is special.
class FakeTokenizer final : public Tokenizer {
 public:
  explicit FakeTokenizer(std::vector<std::string> tokens) : tokens_(std::move(tokens)) {}
  Result<std::vector<TokenId>> encode(std::string_view, ControlTokens) const override {
    return Status(StatusCode::kUnsupported, "not needed");
  }
  std::string_view token_bytes(TokenId id, bool skip_special) const override {
    if (id == 1000) return skip_special ? "" : "<|im_end|>";
    return is_token(id) ? tokens_[static_cast<size_t>(id)] : std::string_view();
  }
  std::optional<TokenId> added_token(std::string_view) const override { return std::nullopt; }
  int64_t token_count() const override { return static_cast<int64_t>(tokens_.size()); }
  bool is_token(TokenId id) const override { return id >= 0 && id < token_count(); }

 private:
  std::vector<std::string> tokens_;
};

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

// Streams `tokens` one by one; every piece must be valid UTF-8 by itself.
struct Streamed {
  std::string text;
  int64_t dropped_bytes;
};
Streamed stream(const std::vector<std::string>& tokens) {
  StreamDecoder decoder(std::make_shared<FakeTokenizer>(tokens));
  Streamed out;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const std::string piece = decoder.push(static_cast<TokenId>(i));
    EXPECT_EQ(first_invalid_byte(piece), std::string::npos);
    out.text += piece;
  }
  out.dropped_bytes = decoder.finish();
  return out;
}

TEST(StreamDecoder, B05BadBytesBecomeWhatPythonMakesOfThem) {
  FreshRandom random;
  SCOPED_TRACE(random.trace());
  for (const auto& [hex, expected] :
       read_json("lossy.json").get<std::vector<std::pair<std::string, std::string>>>()) {
    const std::string bytes = from_hex(hex);
    std::vector<std::string> tokens;
    for (size_t start = 0; start < bytes.size();) {
      const size_t end = std::min(bytes.size(), start + 1 + random.below(4));
      tokens.push_back(bytes.substr(start, end - start));
      start = end;
    }
    const Streamed whole = stream({bytes}), parts = stream(tokens);
    EXPECT_EQ(parts.text, whole.text) << hex;
    EXPECT_EQ(parts.dropped_bytes, whole.dropped_bytes) << hex;
    // Python sees the end of its input: it replaces the unfinished tail that we drop.
    const std::string tail(whole.dropped_bytes > 0 ? kReplacementCharacter : "");
    EXPECT_EQ(whole.text + tail, expected) << hex;
  }
}

TEST(StreamDecoder, B05NamedByteSequences) {
  const std::string bad(kReplacementCharacter);
  EXPECT_EQ(stream({"\xC0\x80"}).text, bad + bad);
  EXPECT_EQ(stream({"\xED\xA0\x80"}).text, bad + bad + bad);
  EXPECT_EQ(stream({"\xF4\x90\x80\x80"}).text, bad + bad + bad + bad);
  EXPECT_EQ(stream({"\xF0\x9F", "\x98", "x"}).text, bad + "x");
}

TEST(StreamDecoder, B04CharactersAreNeverCut) {
  const std::string text = "Repeat exactly: 👩‍👩‍👧‍👦 🇺🇦 日本語 ½";
  for (const std::string name : {"qwen2", "qwen35"}) {
    const auto tokenizer = load_stand_in(name);
    const auto ids = tokenizer->encode(text, ControlTokens::kAsText);
    ASSERT_TRUE(ids.ok());
    ASSERT_GT(ids->size(), 12u);
    for (size_t limit = 0; limit <= ids->size(); ++limit) {
      StreamDecoder decoder(tokenizer);
      std::string streamed, bytes;
      for (size_t i = 0; i < limit; ++i) {
        streamed += decoder.push((*ids)[i]);
        bytes += tokenizer->token_bytes((*ids)[i]);
      }
      const auto dropped = static_cast<size_t>(decoder.finish());
      EXPECT_EQ(streamed + bytes.substr(bytes.size() - dropped), bytes);
      EXPECT_EQ(streamed.find(kReplacementCharacter), std::string::npos);
      EXPECT_EQ(first_invalid_byte(streamed), std::string::npos);
    }
  }
}

TEST(StreamDecoder, B04ATailIsHeldThenDropped) {
  const auto tokenizer = std::make_shared<FakeTokenizer>(
      std::vector<std::string>{"a\xF0\x9F", "\x98", "\x80z", "\xE2\x82"});
  StreamDecoder decoder(tokenizer);
  EXPECT_EQ(decoder.push(0), "a");
  EXPECT_EQ(decoder.push(1), "");
  EXPECT_EQ(decoder.push(2), "😀z");
  EXPECT_EQ(decoder.push(3), "");
  EXPECT_EQ(decoder.finish(), 2);
  EXPECT_EQ(decoder.finish(), 0);
}

TEST(StreamDecoder, SpecialTokensAreShownOnlyOnRequest) {
  const auto tokenizer = std::make_shared<FakeTokenizer>(std::vector<std::string>{"a"});
  EXPECT_EQ(StreamDecoder(tokenizer).push(1000), "");
  EXPECT_EQ(StreamDecoder(tokenizer, false).push(1000), "<|im_end|>");
}

TEST(TokenIds, B06IdsOutOfRangeAndHolesStandForNothing) {
  auto json = read_json("qwen35/tokenizer.json");
  json["added_tokens"].push_back({{"id", 2000}, {"content", "<far>"}});
  auto file = parse_tokenizer_file(json.dump(), "");
  ASSERT_TRUE(file.ok()) << file.status().message();
  const auto tokenizer = std::make_shared<const ByteLevelTokenizer>(*std::move(file));
  EXPECT_EQ(tokenizer->token_count(), 2001);
  EXPECT_TRUE(tokenizer->is_token(2000));
  StreamDecoder decoder(tokenizer);
  for (const TokenId id : {-1, std::numeric_limits<TokenId>::min(),
                           std::numeric_limits<TokenId>::max(), 1500, 1999, 2001}) {
    EXPECT_FALSE(tokenizer->is_token(id)) << id;
    EXPECT_EQ(tokenizer->token_bytes(id, true), "") << id;
    EXPECT_EQ(decoder.push(id), "") << id;
  }
}

TEST(Encode, B05InvalidTextIsRefusedByOffset) {
  const auto tokenizer = load_stand_in("qwen35");
  for (const auto control : {ControlTokens::kAllow, ControlTokens::kAsText}) {
    const auto ids = tokenizer->encode("ab\xED\xA0\x80", control);
    ASSERT_FALSE(ids.ok());
    EXPECT_EQ(ids.status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(ids.status().message(), "text: found byte 0xED at offset 2, expected valid UTF-8");
    EXPECT_FALSE(tokenizer->encode("caf\xE9", control).ok());  // Latin-1
    EXPECT_FALSE(tokenizer->encode("tail \xE2\x82", control).ok());
    EXPECT_TRUE(tokenizer->encode(std::string_view("a\0b", 3), control).ok());
    EXPECT_TRUE(tokenizer->encode("", control)->empty());
  }
}

}  // namespace
}  // namespace moray
