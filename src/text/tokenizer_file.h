// tokenizer.json (and the added tokens of tokenizer_config.json) as plain data, checked.
//
// Invariant: what parse_tokenizer_file returns is consistent: every id below kTokenIdEnd, no token
// or id twice, every byte has a token, every merge has its three tokens. Only byte-level BPE with
// the known patterns is accepted; any other component is refused by its name and field. Ignored are
// truncation and padding, which are a caller's wish. Ids of added tokens are those the file states;
// `tokenizers` numbers them upwards from the vocabulary's size, the same in every consistent file.
#pragma once

#include <array>
#include <string_view>
#include <vector>

#include "src/base/status.h"
#include "src/text/added_tokens.h"
#include "src/text/token_table.h"
#include "src/text/word_scanner.h"

namespace moray {

struct MergeRule {
  TokenId left;
  TokenId right;
  TokenId result;
};

struct TokenizerFile {
  WordPattern pattern = WordPattern::kQwen35;
  bool normalizes_nfc = false;
  bool ignores_merges = false;     // a word that is a token is taken whole, whatever merges say
  TokenTable tokens;               // model and added tokens
  std::vector<TokenId> model_ids;  // tokens written in the byte alphabet: what text can become
  std::array<TokenId, 256> byte_tokens{};
  std::vector<MergeRule> merges;  // ascending rank
  std::vector<AddedToken> added;
};

// Parses the two files' contents; `config_json` may be empty for "no such file". Flags of an added
// token in tokenizer_config.json win over those in tokenizer.json, as in transformers. Errors
// (kInvalidFile, or kUnsupported for a component that is not ours) name file and field.
// Memory: about ten times the file while parsing. Nesting beyond 1024 levels is refused.
Result<TokenizerFile> parse_tokenizer_file(std::string_view tokenizer_json,
                                           std::string_view config_json);

}  // namespace moray
