// Token ids of marked text: control tokens from scaffold only.
//
// Invariant: an added token is matched only where all its bytes are scaffold; everything between
// two such tokens is one run of plain text, scaffold and content together, so that words and merges
// cross the borders as they do in Hugging Face's tokenization of the joined text. For content
// without the text of an added token the ids are therefore the same.
#pragma once

#include <vector>

#include "moray/text.h"
#include "src/text/marked_text.h"

namespace moray {

// Added tokens that swallow neighbouring whitespace (lstrip, rstrip) keep it as text here; no
// supported checkpoint has such tokens. Cost: encoding `text` once and its scaffold twice.
// Errors: those of Tokenizer::encode.
Result<std::vector<TokenId>> encode_marked(const Tokenizer& tokenizer, const MarkedText& text);

}  // namespace moray
