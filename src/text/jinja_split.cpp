// String cutting with Python's rules. See jinja_split.h.
#include "src/text/jinja_split.h"

#include <algorithm>

#include "src/text/python_text.h"

namespace moray::jinja {
namespace {

bool is_line_break(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

Status charge(std::string_view text, Budget& budget) {
  return budget.charge_steps(1 + static_cast<int64_t>(text.size() / 8));
}

size_t space_bytes(std::string_view text) {
  return text.size() - strip_left(text).size();
}

// Bytes before the next whitespace.
size_t word_bytes(std::string_view text) {
  size_t i = 0;
  while (i < text.size() && !is_space(code_point_at(text, i))) i += code_point_bytes(text, i);
  return i;
}

// The last word of a text that does not end with whitespace.
size_t last_word_start(std::string_view text) {
  size_t start = text.size();
  while (start > 0) {
    size_t i = start - 1;
    while (i > 0 && (static_cast<uint8_t>(text[i]) & 0xC0) == 0x80) --i;
    if (is_space(code_point_at(text, i))) break;
    start = i;
  }
  return start;
}

}  // namespace

Result<std::vector<ByteSpan>> split_at(std::string_view text, std::string_view separator,
                                       int64_t limit, SplitFrom from, Budget& budget) {
  RETURN_IF_ERROR(charge(text, budget));
  std::vector<ByteSpan> parts;
  if (from == SplitFrom::kLeft) {
    size_t start = 0;
    while (limit != 0) {
      const size_t at = text.find(separator, start);
      if (at == std::string_view::npos) break;
      parts.push_back({start, at});
      start = at + separator.size();
      --limit;
    }
    parts.push_back({start, text.size()});
    return parts;
  }
  size_t end = text.size();
  while (limit != 0) {
    const size_t at = text.substr(0, end).rfind(separator);
    if (at == std::string_view::npos) break;
    parts.push_back({at + separator.size(), end});
    end = at;
    --limit;
  }
  parts.push_back({0, end});
  std::reverse(parts.begin(), parts.end());
  return parts;
}

Result<std::vector<ByteSpan>> split_at_space(std::string_view text, int64_t limit, SplitFrom from,
                                             Budget& budget) {
  RETURN_IF_ERROR(charge(text, budget));
  std::vector<ByteSpan> parts;
  if (from == SplitFrom::kLeft) {
    size_t start = space_bytes(text);
    while (start < text.size() && limit != 0) {
      const size_t end = start + word_bytes(text.substr(start));
      parts.push_back({start, end});
      start = end + space_bytes(text.substr(end));
      --limit;
    }
    const size_t end = strip_right(text).size();
    if (start < end) parts.push_back({start, limit == 0 ? text.size() : end});
    return parts;
  }
  size_t end = strip_right(text).size();
  while (end > 0 && limit != 0) {
    const size_t start = last_word_start(text.substr(0, end));
    parts.push_back({start, end});
    end = strip_right(text.substr(0, start)).size();
    --limit;
  }
  if (end > 0) parts.push_back({0, end});
  std::reverse(parts.begin(), parts.end());
  return parts;
}

Result<std::vector<ByteSpan>> split_lines(std::string_view text, bool keeps_ends, Budget& budget) {
  RETURN_IF_ERROR(charge(text, budget));
  std::vector<ByteSpan> lines;
  size_t start = 0;
  for (size_t i = 0; i < text.size();) {
    const char32_t c = code_point_at(text, i);
    size_t next = i + code_point_bytes(text, i);
    if (is_line_break(c)) {
      if (c == '\r' && next < text.size() && text[next] == '\n') ++next;
      lines.push_back({start, keeps_ends ? next : i});
      start = next;
    }
    i = next;
  }
  if (start < text.size()) lines.push_back({start, text.size()});
  return lines;
}

Result<Value> texts_of(const MarkedText& text, const std::vector<ByteSpan>& parts,
                       SequenceKind kind, Budget& budget) {
  RETURN_IF_ERROR(budget.charge_items(2 * static_cast<int64_t>(parts.size())));
  RETURN_IF_ERROR(budget.charge_text(text));
  std::vector<Value> items;
  items.reserve(parts.size());
  for (const ByteSpan& part : parts) items.push_back(text_value(cut(text, part.begin, part.end)));
  return sequence_value(kind, std::move(items));
}

Result<MarkedText> replace_text(const MarkedText& text, std::string_view old,
                                const MarkedText& replacement, int64_t count, Budget& budget) {
  RETURN_IF_ERROR(charge(text.text, budget));
  RETURN_IF_ERROR(budget.charge_text(text));
  MarkedText out;
  size_t start = 0;
  size_t at = 0;
  while (count != 0 && at <= text.text.size()) {
    if (!old.empty()) at = text.text.find(old, at);
    if (at == std::string::npos) break;
    RETURN_IF_ERROR(budget.charge_text(replacement));
    RETURN_IF_ERROR(budget.charge_steps(1));
    append(out, text, start, at);
    append(out, replacement);
    start = at + old.size();
    at = start;
    if (old.empty()) at += at < text.text.size() ? code_point_bytes(text.text, at) : 1;
    --count;
  }
  append(out, text, start, text.text.size());
  return out;
}

}  // namespace moray::jinja
