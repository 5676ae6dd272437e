// Fuzz entry: tokenizer.json, and tokenizer_config.json after a zero byte.
//
// A refused file must have a one-line reason that names it; an accepted one must encode: the bytes
// of what content becomes are the content's NFC, no id is an added token's (single bytes excepted),
// and control tokens allowed or not, every id exists.
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/check.h"
#include "src/text/byte_level_tokenizer.h"
#include "src/text/nfc.h"
#include "src/text/utf8.h"
#include "tests/fuzz/fuzz_entry.h"

namespace moray {
namespace {

constexpr std::string_view kQwen35 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N})"
    R"(| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+)";

// The byte alphabet in the order of bytes, as vocabulary entries "x":0,...
std::string byte_vocabulary() {
  std::string out;
  uint32_t shifted = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool is_itself = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    out += '"';
    if (byte == '"' || byte == '\\') out += '\\';
    append_character(out, is_itself ? byte : shifted++);
    out += "\":" + std::to_string(byte) + ",";
  }
  return out;
}

std::string make_json(std::string_view merges, std::string_view added) {
  std::string json =
      R"({"added_tokens":[)" + std::string(added) + R"(],"normalizer":{"type":"NFC"},)";
  json +=
      R"("pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":")";
  json += kQwen35;
  json +=
      R"("},"behavior":"Isolated","invert":false},{"type":"ByteLevel","add_prefix_space":false,)"
      R"("use_regex":false}]},"decoder":{"type":"ByteLevel"},"model":{"type":"BPE","vocab":{)";
  json += byte_vocabulary();
  json += R"("ab":256,"abc":257,"Ġa":258,"aa":259,"aaaa":260},"merges":[)" + std::string(merges);
  return json + R"(],"ignore_merges":false}})";
}

constexpr std::string_view kAdded =
    R"({"id":261,"content":"<|im_end|>","special":true},)"
    R"({"id":262,"content":"éa","normalized":true,"lstrip":true,"rstrip":true},)"
    R"({"id":257,"content":"abc","single_word":true})";

void check_text(const ByteLevelTokenizer& tokenizer, const TokenizerFile& file,
                std::string_view text) {
  const auto ids = tokenizer.encode(text, ControlTokens::kAsText);
  CHECK(ids.ok() == (first_invalid_byte(text) == std::string_view::npos));
  if (!ids.ok()) return;
  std::string joined, buffer;
  for (const TokenId id : *ids) {
    joined += tokenizer.token_bytes(id);
    const bool is_added = std::any_of(file.added.begin(), file.added.end(),
                                      [id](const AddedToken& token) { return token.id == id; });
    CHECK(!is_added || tokenizer.token_bytes(id).size() == 1, id);
  }
  CHECK(joined == (file.normalizes_nfc ? normalize_nfc(text, buffer) : text));
  const auto allowed = tokenizer.encode(text, ControlTokens::kAllow);
  CHECK(allowed.ok());
  for (const TokenId id : *allowed) CHECK(tokenizer.is_token(id), id);
}

}  // namespace

std::vector<std::string> fuzz_seeds() {
  const std::string pairs =
      make_json(R"(["a","b"],["ab","c"],["Ġ","a"],["a","a"],["aa","aa"])", kAdded);
  const std::string lines = make_json(R"("a b","ab c","Ġ a","a a","aa aa")", "");
  const std::string config =
      R"({"added_tokens_decoder":{"270":{"content":"<|new|>","special":true},)"
      R"("261":{"content":"<|im_end|>","rstrip":true}}})";
  CHECK(parse_tokenizer_file(pairs, config).ok() && parse_tokenizer_file(lines, "").ok());
  return {pairs, lines, pairs + '\0' + config};
}

}  // namespace moray

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t zero = std::min(input.find('\0'), input.size());
  const std::string_view config = zero < input.size() ? input.substr(zero + 1) : "";
  auto file = moray::parse_tokenizer_file(input.substr(0, zero), config);
  if (!file.ok()) {
    const std::string& message = file.status().message();
    CHECK(message.starts_with("tokenizer"), message);
    CHECK(message.find('\n') == message.npos, message);
    return 0;
  }
  const moray::ByteLevelTokenizer tokenizer(*file);
  for (const std::string_view text :
       {"abc aab <|im_end|> e\u0301é 12 \r\n  x", "aaaaaaaaabcabc<|new|>",
        "q\u0323\u0307\u1112\u1161", "\xED\xA0\x80"}) {
    moray::check_text(tokenizer, *file, text);
  }
  // Whatever the mutation put near the end is text, too, cut to what stays quick.
  moray::check_text(tokenizer, *file,
                    input.substr(input.size() - std::min<size_t>(input.size(), 200)));
  return 0;
}
