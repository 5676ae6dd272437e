// MarkedText: a string in which every byte knows whether it is scaffold or content.
//
// Scaffold is what a chat template itself wrote; content is what came from messages, tools and
// other request data. The marks decide later which bytes may spell a control token
// (marked_encode.h), so the invariant is: no function here turns content into scaffold. Marks
// follow bytes through cuts, joins and rewrites. Text is valid UTF-8; spans lie on any byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace moray {

// Bytes [begin, end).
struct ByteSpan {
  size_t begin;
  size_t end;
  bool operator==(const ByteSpan&) const = default;
};

// `content` holds the content parts: ascending, not empty, neither overlapping nor touching. All
// other bytes are scaffold.
struct MarkedText {
  std::string text;
  std::vector<ByteSpan> content;
  bool operator==(const MarkedText&) const = default;
};

enum class Mark { kScaffold, kContent };

MarkedText marked(std::string text, Mark mark);

// Appends `text`, all of it with `mark`. O(bytes).
void append(MarkedText& out, std::string_view text, Mark mark);
// Appends bytes [begin, end) of `in` with their marks. O(bytes + log spans).
void append(MarkedText& out, const MarkedText& in, size_t begin, size_t end);
void append(MarkedText& out, const MarkedText& in);

// Bytes [begin, end) of `in` as a text of their own.
MarkedText cut(const MarkedText& in, size_t begin, size_t end);

Mark mark_at(const MarkedText& in, size_t byte);

// Code points, the unit in which templates count and slice. Validation is in utf8.h.
size_t code_point_count(std::string_view text);
// Bytes of the code point starting at `byte`, at least 1 and never beyond the end.
size_t code_point_bytes(std::string_view text, size_t byte);
char32_t code_point_at(std::string_view text, size_t byte);
// Byte offsets at which the code points start, and the total length as last element.
std::vector<size_t> code_point_offsets(std::string_view text);

}  // namespace moray
