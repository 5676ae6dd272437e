// The token side of tokenizer.json: added tokens, vocabulary, merges.
//
// Invariant: each function either completes its part of the TokenizerFile, keeping the promises of
// tokenizer_file.h, or returns an error that names the field; the caller adds the file's name. They
// run in the order in which they are declared.
#pragma once

#include "src/text/tokenizer_fields.h"
#include "src/text/tokenizer_file.h"

namespace moray {

// Appends `added_tokens` of tokenizer.json to file.added.
Status read_added_tokens(JsonArray array, TokenizerFile& file);

// Merges `added_tokens_decoder` of tokenizer_config.json into file.added.
Status read_added_tokens_decoder(JsonObject decoder, TokenizerFile& file);

// Reads model.vocab; fills tokens (added ones included), model_ids, byte_tokens, and `index`, which
// the merges need.
Status read_vocabulary(JsonObject vocabulary, TokenizerFile& file, TokenIndex& index);

// Reads model.merges, written as "left right" or as ["left", "right"].
Status read_merges(JsonArray merges, const TokenIndex& index, TokenizerFile& file);

}  // namespace moray
