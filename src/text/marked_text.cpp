// Appending and cutting marked text, and the few UTF-8 walks templates need. See marked_text.h.
#include "src/text/marked_text.h"

#include <algorithm>

#include "src/base/check.h"
#include "src/text/utf8.h"

namespace moray {
namespace {

void add_content_span(MarkedText& out, size_t begin, size_t end) {
  if (begin == end) return;
  if (!out.content.empty() && out.content.back().end == begin) {
    out.content.back().end = end;
  } else {
    out.content.push_back({begin, end});
  }
}

bool is_continuation(char byte) {
  return (static_cast<uint8_t>(byte) & 0xC0) == 0x80;
}

// Length the lead byte announces; 1 for bytes that lead nothing.
size_t announced_bytes(char lead) {
  const auto byte = static_cast<uint8_t>(lead);
  if (byte < 0xC0) return 1;
  if (byte < 0xE0) return 2;
  return byte < 0xF0 ? 3 : 4;
}

}  // namespace

MarkedText marked(std::string text, Mark mark) {
  MarkedText out{std::move(text), {}};
  if (mark == Mark::kContent) add_content_span(out, 0, out.text.size());
  return out;
}

void append(MarkedText& out, std::string_view text, Mark mark) {
  const size_t begin = out.text.size();
  out.text.append(text);
  if (mark == Mark::kContent) add_content_span(out, begin, out.text.size());
}

void append(MarkedText& out, const MarkedText& in, size_t begin, size_t end) {
  CHECK(&out != &in && begin <= end && end <= in.text.size(), begin, end, in.text.size());
  const size_t base = out.text.size();
  out.text.append(in.text, begin, end - begin);
  auto span = std::partition_point(in.content.begin(), in.content.end(),
                                   [&](const ByteSpan& s) { return s.end <= begin; });
  for (; span != in.content.end() && span->begin < end; ++span) {
    add_content_span(out, base + std::max(span->begin, begin) - begin,
                     base + std::min(span->end, end) - begin);
  }
}

void append(MarkedText& out, const MarkedText& in) {
  append(out, in, 0, in.text.size());
}

MarkedText cut(const MarkedText& in, size_t begin, size_t end) {
  MarkedText out;
  append(out, in, begin, end);
  return out;
}

Mark mark_at(const MarkedText& in, size_t byte) {
  auto span = std::partition_point(in.content.begin(), in.content.end(),
                                   [&](const ByteSpan& s) { return s.end <= byte; });
  return span != in.content.end() && span->begin <= byte ? Mark::kContent : Mark::kScaffold;
}

size_t code_point_count(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char byte) { return !is_continuation(byte); }));
}

size_t code_point_bytes(std::string_view text, size_t byte) {
  return std::min(announced_bytes(text[byte]), text.size() - byte);
}

char32_t code_point_at(std::string_view text, size_t byte) {
  return decode_character(text.data() + byte).value;
}

std::vector<size_t> code_point_offsets(std::string_view text) {
  std::vector<size_t> offsets;
  offsets.reserve(text.size() + 1);
  for (size_t i = 0; i < text.size(); ++i) {
    if (!is_continuation(text[i])) offsets.push_back(i);
  }
  offsets.push_back(text.size());
  return offsets;
}

}  // namespace moray
