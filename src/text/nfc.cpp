// NFC in segments: a code point that cannot join its predecessor, and all that follow and might.
//
// utf8proc supplies decompositions, combining classes and compositions. Its own reordering is an
// insertion sort, quadratic in a long run of marks, so that step is a stable sort here.
#include "src/text/nfc.h"

#include <utf8proc.h>

#include <algorithm>
#include <vector>

#include "src/base/check.h"
#include "src/text/unicode_class.h"
#include "src/text/utf8.h"

namespace moray {
namespace {

// No canonical decomposition is longer than 4 code points (U+1F82 and its like).
constexpr int kDecompositionMax = 8;

// Offset of the first character of `text` that needs the slow path, or its size.
size_t quick_check(std::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    if (static_cast<uint8_t>(text[i]) < 0xCC) {  // U+0300 is the first kComposes code point
      ++i;
      continue;
    }
    const CodePoint c = decode_character(text.data() + i);
    if (unicode_class(c.value) & kComposes) return i;
    i += c.bytes;
  }
  return i;
}

uint8_t combining_class(int32_t code_point) {
  if (!(unicode_class(static_cast<uint32_t>(code_point)) & kComposes)) return 0;
  return static_cast<uint8_t>(utf8proc_get_property(code_point)->combining_class);
}

void append_decomposed(std::vector<int32_t>& out, uint32_t code_point) {
  if (!(unicode_class(code_point) & kDecomposes)) {
    out.push_back(static_cast<int32_t>(code_point));
    return;
  }
  int32_t parts[kDecompositionMax];
  int boundary_class = 0;
  const auto count =
      utf8proc_decompose_char(static_cast<int32_t>(code_point), parts, kDecompositionMax,
                              UTF8PROC_DECOMPOSE, &boundary_class);
  CHECK(count > 0 && count <= kDecompositionMax, code_point, count);
  out.insert(out.end(), parts, parts + count);
}

// Sorts each run of marks (class above 0) by class, keeping the order of equals.
void order_marks(std::vector<int32_t>& segment, int64_t& work) {
  const auto by_class = [&work](int32_t a, int32_t b) {
    ++work;
    return combining_class(a) < combining_class(b);
  };
  const auto is_mark = [](int32_t c) { return combining_class(c) != 0; };
  auto run = segment.begin();
  while (run != segment.end()) {
    run = std::find_if(run, segment.end(), is_mark);
    const auto end = std::find_if_not(run, segment.end(), is_mark);
    std::stable_sort(run, end, by_class);
    run = end;
  }
}

void append_segment(std::vector<int32_t>& segment, std::string& out, int64_t& work) {
  order_marks(segment, work);
  const auto count =
      utf8proc_normalize_utf32(segment.data(), static_cast<utf8proc_ssize_t>(segment.size()),
                               static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
  CHECK(count >= 0, count);
  for (utf8proc_ssize_t i = 0; i < count; ++i) {
    append_character(out, static_cast<uint32_t>(segment[static_cast<size_t>(i)]));
  }
  work += static_cast<int64_t>(segment.size());
  segment.clear();
}

}  // namespace

std::string_view normalize_nfc(std::string_view text, std::string& buffer, int64_t* work) {
  const size_t clean = quick_check(text);
  if (clean == text.size()) return text;
  int64_t spent = 0;
  buffer.clear();
  std::vector<int32_t> segment;
  size_t segment_start = 0;
  bool is_joined = false;  // the segment has more than its first character
  const auto flush = [&](size_t end) {
    if (is_joined) {
      append_segment(segment, buffer, spent);
    } else {
      buffer.append(text, segment_start, end - segment_start);
    }
  };
  for (size_t i = 0; i < text.size();) {
    const CodePoint c = decode_character(text.data() + i);
    if (unicode_class(c.value) & kComposes) {
      if (!is_joined && i > segment_start) {
        append_decomposed(segment, decode_character(text.data() + segment_start).value);
      }
      is_joined = true;
      append_decomposed(segment, c.value);
    } else {
      flush(i);
      segment_start = i;
      is_joined = false;
    }
    i += c.bytes;
  }
  flush(text.size());
  if (work != nullptr) *work += spent + static_cast<int64_t>(text.size());
  return buffer;
}

}  // namespace moray
