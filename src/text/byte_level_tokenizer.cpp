// Construction and the encode pipeline of ByteLevelTokenizer.
#include "src/text/byte_level_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/text/nfc.h"
#include "src/text/utf8.h"
#include "src/text/word_scanner.h"

namespace moray {
namespace {

// Keeps byte positions in 32 bits with room to spare.
constexpr size_t kTextBytesMax = size_t{1} << 30;

enum class AddedResults : uint8_t { kKeep, kLeaveOut };

Bpe make_bpe(const TokenizerFile& file, const std::vector<bool>& is_added, AddedResults results) {
  const auto is_left_out = [&](TokenId id) {
    return results == AddedResults::kLeaveOut && is_added[static_cast<size_t>(id)];
  };
  MergeTable merges(file.merges.size());
  for (size_t rank = 0; rank < file.merges.size(); ++rank) {
    const MergeRule& rule = file.merges[rank];
    if (is_left_out(rule.result)) continue;
    merges.set(rule.left, rule.right, {static_cast<uint32_t>(rank), rule.result});
  }
  Bpe bpe(file.byte_tokens, std::move(merges));
  std::vector<TokenId> words = file.model_ids;
  std::erase_if(words, is_left_out);
  bpe.index_words(file.tokens, words,
                  file.ignores_merges ? Bpe::WholeWords::kAll : Bpe::WholeWords::kWhatMergesMake);
  return bpe;
}

std::vector<bool> flag_added(const TokenizerFile& file) {
  std::vector<bool> is_added(static_cast<size_t>(file.tokens.end()));
  for (const AddedToken& token : file.added) is_added[static_cast<size_t>(token.id)] = true;
  return is_added;
}

// Null unless content needs tables of its own: some merge, or with ignore_merges some word, would
// yield an added token.
std::unique_ptr<const Bpe> make_content_bpe(const TokenizerFile& file,
                                            const std::vector<bool>& is_added) {
  const auto yields_added = [&](const MergeRule& rule) {
    return is_added[static_cast<size_t>(rule.result)];
  };
  const auto is_added_word = [&](TokenId id) { return is_added[static_cast<size_t>(id)]; };
  if (std::none_of(file.merges.begin(), file.merges.end(), yields_added) &&
      std::none_of(file.model_ids.begin(), file.model_ids.end(), is_added_word)) {
    return nullptr;
  }
  return std::make_unique<const Bpe>(make_bpe(file, is_added, AddedResults::kLeaveOut));
}

AddedTokenMatcher make_matcher(const TokenizerFile& file, bool is_normalized) {
  std::vector<AddedToken> chosen;
  std::string buffer;
  for (const AddedToken& token : file.added) {
    if (token.is_normalized != is_normalized) continue;
    chosen.push_back(token);
    if (is_normalized && file.normalizes_nfc)
      chosen.back().text = normalize_nfc(token.text, buffer);
  }
  return AddedTokenMatcher(std::move(chosen));
}

}  // namespace

// What one call of encode carries along.
struct ByteLevelTokenizer::Call {
  EncodeWork& work;
  std::vector<TokenId> ids;
  BpeScratch scratch;
  std::string normalized;
};

ByteLevelTokenizer::ByteLevelTokenizer(TokenizerFile file)
    : pattern_(file.pattern),
      normalizes_nfc_(file.normalizes_nfc),
      bpe_(make_bpe(file, flag_added(file), AddedResults::kKeep)),
      content_bpe_(make_content_bpe(file, flag_added(file))),
      raw_added_(make_matcher(file, false)),
      normalized_added_(make_matcher(file, true)) {
  tokens_ = std::move(file.tokens);
  is_special_.resize(static_cast<size_t>(tokens_.end()));
  for (const AddedToken& token : file.added) {
    added_ids_.emplace(token.text, token.id);
    is_special_[static_cast<size_t>(token.id)] = token.is_special;
  }
}

Result<std::vector<TokenId>> ByteLevelTokenizer::encode(std::string_view text,
                                                        ControlTokens control) const {
  EncodeWork work;
  return encode_counted(text, control, work);
}

Result<std::vector<TokenId>> ByteLevelTokenizer::encode_counted(std::string_view text,
                                                                ControlTokens control,
                                                                EncodeWork& work) const {
  if (text.size() > kTextBytesMax) {
    return Status(
        StatusCode::kInvalidArgument,
        fmt::format("text: found {} bytes, expected at most {}", text.size(), kTextBytesMax));
  }
  const size_t invalid = first_invalid_byte(text);
  if (invalid != std::string_view::npos) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("text: found byte 0x{:02X} at offset {}, expected valid UTF-8",
                              static_cast<uint8_t>(text[invalid]), invalid));
  }
  Call call{work, {}, {}, {}};
  if (control == ControlTokens::kAllow) {
    encode_allowing_added(text, call);
  } else {
    if (normalizes_nfc_) text = normalize_nfc(text, call.normalized, &work.normalize_steps);
    encode_piece(text, content_bpe_ ? *content_bpe_ : bpe_, call);
  }
  return std::move(call.ids);
}

void ByteLevelTokenizer::encode_allowing_added(std::string_view text, Call& call) const {
  for (const TextPiece& raw : raw_added_.split(text)) {
    if (raw.id != kNoToken) {
      call.ids.push_back(raw.id);
      continue;
    }
    std::string_view plain = text.substr(raw.start, raw.end - raw.start);
    if (normalizes_nfc_) plain = normalize_nfc(plain, call.normalized, &call.work.normalize_steps);
    for (const TextPiece& piece : normalized_added_.split(plain)) {
      if (piece.id != kNoToken) {
        call.ids.push_back(piece.id);
      } else {
        encode_piece(plain.substr(piece.start, piece.end - piece.start), bpe_, call);
      }
    }
  }
}

void ByteLevelTokenizer::encode_piece(std::string_view text, const Bpe& bpe, Call& call) const {
  call.work.scan_steps += static_cast<int64_t>(text.size());
  for (size_t start = 0; start < text.size();) {
    const size_t end = scan_word(pattern_, text, start);
    bpe.append_word(tokens_, text.substr(start, end - start), call.scratch, call.work, call.ids);
    start = end;
  }
}

std::string_view ByteLevelTokenizer::token_bytes(TokenId id, bool skip_special) const {
  const std::string_view bytes = tokens_.bytes(id);
  if (skip_special && !bytes.empty() && is_special_[static_cast<size_t>(id)]) return {};
  return bytes;
}

std::optional<TokenId> ByteLevelTokenizer::added_token(std::string_view text) const {
  const auto found = added_ids_.find(std::string(text));
  if (found == added_ids_.end()) return std::nullopt;
  return found->second;
}

}  // namespace moray
