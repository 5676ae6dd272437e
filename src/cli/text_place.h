// A line and column of a text, as editors count them, to a byte offset.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "src/base/status.h"

namespace moray {

// Lines end with "\n" or "\r\n", which belongs to no column; a text that ends with a line end has
// one more, empty line. Columns count characters (code points), not bytes. Both from 1; a column of
// the line's length + 1 is its end. kInvalidArgument says how many lines or columns there are.
Result<size_t> byte_offset_of(std::string_view text, int64_t line, int64_t column,
                              const std::string& name);

}  // namespace moray
