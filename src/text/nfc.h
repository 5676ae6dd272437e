// Unicode normalisation form C, as the reference tokenizer does it.
//
// Invariant: code points that the reference's older Unicode does not know (neither kComposes nor
// kDecomposes in unicode_class.h) are left where they stand, whatever this machine's utf8proc
// knows; by Unicode's stability policy the two agree on all others. Text without a kComposes code
// point is already normalised and costs one look at each non-ASCII character.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace moray {

// NFC of `text` (valid UTF-8): `text` itself when it is normalised, else a view of `buffer`, which
// is overwritten. Cost: linear, but n log n within one run of combining marks; `*work` grows by the
// code points and comparisons spent, if `work` is not null.
std::string_view normalize_nfc(std::string_view text, std::string& buffer, int64_t* work = nullptr);

}  // namespace moray
