// Splitting, joining and replacing inside strings, shared by methods and filters.
//
// All positions are bytes; parts keep their marks because they are cut from the marked text. Linear
// in the bytes, charged before the work.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "src/base/status.h"
#include "src/text/jinja_budget.h"
#include "src/text/jinja_value.h"

namespace moray::jinja {

enum class SplitFrom { kLeft, kRight };

// str.split(separator, limit) or rsplit: parts between occurrences; limit < 0 means all.
Result<std::vector<ByteSpan>> split_at(std::string_view text, std::string_view separator,
                                       int64_t limit, SplitFrom from, Budget& budget);
// str.split(None, limit): parts between runs of whitespace, none of them empty.
Result<std::vector<ByteSpan>> split_at_space(std::string_view text, int64_t limit, SplitFrom from,
                                             Budget& budget);
// str.splitlines(): at \n, \r\n, \r, \v, \f, \x1c-\x1e, U+0085, U+2028 and U+2029.
Result<std::vector<ByteSpan>> split_lines(std::string_view text, bool keeps_ends, Budget& budget);

// The parts of `text` as values in a list or tuple.
Result<Value> texts_of(const MarkedText& text, const std::vector<ByteSpan>& parts,
                       SequenceKind kind, Budget& budget);

// str.replace(old, replacement, count); count < 0 means all. An empty `old` stands between all
// characters. The replacement keeps its own marks.
Result<MarkedText> replace_text(const MarkedText& text, std::string_view old,
                                const MarkedText& replacement, int64_t count, Budget& budget);

}  // namespace moray::jinja
