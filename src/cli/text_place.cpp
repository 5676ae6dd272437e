#include "src/cli/text_place.h"

#include <fmt/core.h>

#include <algorithm>

namespace moray {
namespace {

bool is_continuation(char c) {
  return (static_cast<unsigned char>(c) & 0xC0) == 0x80;
}

}  // namespace

Result<size_t> byte_offset_of(std::string_view text, int64_t line, int64_t column,
                              const std::string& name) {
  size_t begin = 0;
  for (int64_t number = 1; number < line; ++number) {
    const size_t end = text.find('\n', begin);
    if (end == std::string_view::npos) {
      return Status(
          StatusCode::kInvalidArgument,
          fmt::format("--line: found {}, expected 1 to {}, the lines of {}", line, number, name));
    }
    begin = end + 1;
  }
  std::string_view content = text.substr(begin, text.find('\n', begin) - begin);
  if (content.ends_with('\r')) content.remove_suffix(1);
  size_t offset = 0;
  int64_t reached = 1;
  while (reached < column && offset < content.size()) {
    ++offset;
    while (offset < content.size() && is_continuation(content[offset])) ++offset;
    ++reached;
  }
  if (reached < column) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("--col: found {}, expected 1 to {}, the columns of line {} of {}",
                              column, reached, line, name));
  }
  return begin + offset;
}

}  // namespace moray
