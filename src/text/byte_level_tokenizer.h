// The Tokenizer of this build: byte-level BPE over a checked TokenizerFile.
//
// Invariant: immutable after construction, no cache that changes, so threads share it freely.
// Stages of encode: added tokens (raw), NFC, added tokens (normalised), words, merges. With
// ControlTokens::kAsText both added-token stages are left out and no merge may yield an added
// token, so no id of content is ever an added token's; a single byte that is itself an added token
// is the one exception, for every byte must stay writable.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "moray/text.h"
#include "src/text/added_tokens.h"
#include "src/text/bpe.h"
#include "src/text/tokenizer_file.h"

namespace moray {

class ByteLevelTokenizer final : public Tokenizer {
 public:
  explicit ByteLevelTokenizer(TokenizerFile file);

  Result<std::vector<TokenId>> encode(std::string_view text, ControlTokens control) const override;
  std::string_view token_bytes(TokenId id, bool skip_special = false) const override;
  std::optional<TokenId> added_token(std::string_view text) const override;
  int64_t token_count() const override { return tokens_.end(); }
  bool is_token(TokenId id) const override { return !tokens_.bytes(id).empty(); }

  // encode, and the work it took added to `work`.
  Result<std::vector<TokenId>> encode_counted(std::string_view text, ControlTokens control,
                                              EncodeWork& work) const;

 private:
  struct Call;
  void encode_piece(std::string_view text, const Bpe& bpe, Call& call) const;
  void encode_allowing_added(std::string_view text, Call& call) const;

  WordPattern pattern_;
  bool normalizes_nfc_;
  TokenTable tokens_;
  Bpe bpe_;
  std::unique_ptr<const Bpe> content_bpe_;  // only if some merge yields an added token
  AddedTokenMatcher raw_added_;
  AddedTokenMatcher normalized_added_;
  std::unordered_map<std::string, TokenId> added_ids_;
  std::vector<bool> is_special_;  // by id; may be shorter than the vocabulary
};

}  // namespace moray
