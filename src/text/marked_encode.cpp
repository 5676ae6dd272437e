// Splitting marked text at the control tokens of its scaffold. See marked_encode.h.
#include "src/text/marked_encode.h"

#include <string_view>

namespace moray {
namespace {

// An added token at bytes [begin, end) of the text.
struct Control {
  size_t begin, end;
  TokenId id;
};

// The added tokens the tokenizer finds in `scaffold`, in order. Between two of them there may be no
// other occurrence of the next one's text, so a plain search finds where each one stands.
Status find_controls(const Tokenizer& tokenizer, std::string_view scaffold, size_t base,
                     std::vector<Control>& controls) {
  ASSIGN_OR_RETURN(const std::vector<TokenId> ids,
                   tokenizer.encode(scaffold, ControlTokens::kAllow));
  size_t position = 0;
  for (const TokenId id : ids) {
    const std::string_view bytes = tokenizer.token_bytes(id);
    if (bytes.empty() || tokenizer.added_token(bytes) != id) continue;
    const size_t at = scaffold.find(bytes, position);
    if (at == std::string_view::npos) {
      return Status(StatusCode::kUnsupported,
                    "chat template: the control token of id " + std::to_string(id) +
                        " is written in a form that normalisation changes");
    }
    position = at + bytes.size();
    controls.push_back({base + at, base + position, id});
  }
  return Status();
}

}  // namespace

Result<std::vector<TokenId>> encode_marked(const Tokenizer& tokenizer, const MarkedText& text) {
  std::vector<Control> controls;
  const std::string_view bytes = text.text;
  size_t begin = 0;
  const auto scan = [&](size_t end) {
    return begin == end
               ? Status()
               : find_controls(tokenizer, bytes.substr(begin, end - begin), begin, controls);
  };
  for (const ByteSpan& content : text.content) {
    RETURN_IF_ERROR(scan(content.begin));
    begin = content.end;
  }
  RETURN_IF_ERROR(scan(bytes.size()));

  std::vector<TokenId> ids;
  begin = 0;
  controls.push_back({bytes.size(), bytes.size(), -1});
  for (const Control& control : controls) {
    if (begin < control.begin) {
      ASSIGN_OR_RETURN(
          const std::vector<TokenId> run,
          tokenizer.encode(bytes.substr(begin, control.begin - begin), ControlTokens::kAsText));
      ids.insert(ids.end(), run.begin(), run.end());
    }
    if (control.id >= 0) ids.push_back(control.id);
    begin = control.end;
  }
  return ids;
}

}  // namespace moray
