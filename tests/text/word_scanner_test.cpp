// The hand-written scanner against a backtracking matcher that reads the pattern literally.
#include "src/text/word_scanner.h"

#include <functional>

#include "src/text/unicode_class.h"
#include "tests/text/support.h"

namespace moray {
namespace {

using Predicate = std::function<bool(uint32_t)>;

// One part of an alternative: characters that satisfy `accepts`, between `least` and `most` of
// them, as many as possible first.
struct Part {
  Predicate accepts;
  size_t least, most;
};

struct Alternative {
  std::vector<Part> parts;
  bool needs_no_letter_after = false;  // (?!\S)
};

constexpr size_t kMany = SIZE_MAX;

Predicate has_class(uint8_t flags) {
  return [flags](uint32_t cp) { return (unicode_class(cp) & flags) != 0; };
}
Predicate lacks_class(uint8_t flags) {
  return [flags](uint32_t cp) { return (unicode_class(cp) & flags) == 0; };
}
Predicate folds_to(char lower) {
  return [lower](uint32_t cp) {
    return cp == static_cast<uint32_t>(lower) || cp + 32 == static_cast<uint32_t>(lower) ||
           (lower == 's' && cp == 0x17F);
  };
}
bool is_line_end(uint32_t cp) {
  return cp == '\r' || cp == '\n';
}

// The pattern, term by term.
std::vector<Alternative> alternatives(uint8_t letters) {
  const auto other = lacks_class(static_cast<uint8_t>(kLetter | kNumber));
  const Predicate lead = [other](uint32_t cp) { return other(cp) && !is_line_end(cp); };
  const Predicate apostrophe = [](uint32_t cp) { return cp == '\''; };
  const Predicate blank = [](uint32_t cp) { return cp == ' '; };
  std::vector<Alternative> all;
  for (const std::string_view tail : {"s", "t", "re", "ve", "m", "ll", "d"}) {
    Alternative contraction{{{apostrophe, 1, 1}}};
    for (const char c : tail) contraction.parts.push_back({folds_to(c), 1, 1});
    all.push_back(contraction);
  }
  all.push_back({{{lead, 0, 1}, {has_class(letters), 1, kMany}}});
  all.push_back({{{has_class(kNumber), 1, 1}}});
  all.push_back({{{blank, 0, 1},
                  {lacks_class(static_cast<uint8_t>(letters | kNumber | kSpace)), 1, kMany},
                  {is_line_end, 0, kMany}}});
  all.push_back({{{has_class(kSpace), 0, kMany}, {is_line_end, 1, kMany}}});
  all.push_back({{{has_class(kSpace), 1, kMany}}, true});
  all.push_back({{{has_class(kSpace), 1, kMany}}});
  return all;
}

// End of the match of parts[part..] at `at`, or npos: greedy with backtracking.
size_t match(const Alternative& alternative, const std::u32string& text, size_t at, size_t part) {
  if (part == alternative.parts.size()) {
    const bool fails = alternative.needs_no_letter_after && at < text.size() &&
                       !(unicode_class(text[at]) & kSpace);
    return fails ? std::u32string::npos : at;
  }
  const Part& term = alternative.parts[part];
  size_t count = 0;
  while (count < term.most && at + count < text.size() && term.accepts(text[at + count])) ++count;
  for (;; --count) {
    if (count < term.least) return std::u32string::npos;
    const size_t end = match(alternative, text, at + count, part + 1);
    if (end != std::u32string::npos) return end;
    if (count == 0) return std::u32string::npos;
  }
}

std::vector<std::string> split_by_pattern(const std::vector<Alternative>& all,
                                          const std::u32string& text) {
  std::vector<std::string> words;
  for (size_t at = 0; at < text.size();) {
    size_t end = std::u32string::npos;
    for (size_t i = 0; i < all.size() && end == std::u32string::npos; ++i)
      end = match(all[i], text, at, 0);
    EXPECT_NE(end, std::u32string::npos) << "the pattern matches every text";
    std::string word;
    for (; at < end; ++at) append_character(word, text[at]);
    words.push_back(word);
  }
  return words;
}

std::vector<std::string> split_by_scanner(WordPattern pattern, const std::string& text) {
  std::vector<std::string> words;
  for (size_t start = 0; start < text.size();) {
    const size_t end = scan_word(pattern, text, start);
    words.push_back(text.substr(start, end - start));
    start = end;
  }
  return words;
}

class Scanner : public testing::TestWithParam<WordPattern> {};

TEST_P(Scanner, RandomTextSplitsAsThePatternSays) {
  const uint8_t letters = GetParam() == WordPattern::kQwen2 ? kLetter : kLetter | kMark;
  const auto all = alternatives(letters);
  const std::vector<uint32_t> frequent = {' ',   ' ',   '\n',   '\r',    '\t',  '\'',   's',  'S',
                                          'l',   'L',   'r',    'e',     'v',   'd',    'm',  't',
                                          '1',   '(',   '-',    0x17F,   0xA0,  0x2028, 0x85, 0x301,
                                          0x93E, 0x660, 0x4E00, 0x1F600, 0x200D};
  FreshRandom random;
  SCOPED_TRACE(random.trace());
  for (int i = 0; i < 30000; ++i) {
    std::u32string wide;
    std::string text;
    for (uint32_t left = random.below(14); left > 0; --left) {
      wide += static_cast<char32_t>(random.below(6) ? random.pick(frequent) : random.code_point());
      append_character(text, wide.back());
    }
    ASSERT_EQ(split_by_scanner(GetParam(), text), split_by_pattern(all, wide)) << quote_bytes(text);
  }
}

INSTANTIATE_TEST_SUITE_P(Patterns, Scanner,
                         testing::Values(WordPattern::kQwen2, WordPattern::kQwen35));

TEST(ScannerExamples, MarksBelongToWordsOnlyInTheNewerPattern) {
  const std::string text = "नम";   // NA, MA: letters
  const std::string marked = "मे";  // MA, vowel sign E: letter and mark
  EXPECT_EQ(split_by_scanner(WordPattern::kQwen2, text).size(), 1u);
  EXPECT_EQ(split_by_scanner(WordPattern::kQwen2, marked).size(), 2u);
  EXPECT_EQ(split_by_scanner(WordPattern::kQwen35, marked).size(), 1u);
}

TEST(ScannerExamples, BlanksLeaveOneForTheNextWord) {
  using Words = std::vector<std::string>;
  EXPECT_EQ(split_by_scanner(WordPattern::kQwen35, "    return x"),
            (Words{"   ", " return", " x"}));
  EXPECT_EQ(split_by_scanner(WordPattern::kQwen35, "\r\n\r\n\t x"),
            (Words{"\r\n\r\n", "\t", " x"}));
  EXPECT_EQ(split_by_scanner(WordPattern::kQwen35, "x  "), (Words{"x", "  "}));
  EXPECT_EQ(split_by_scanner(WordPattern::kQwen35, "DON'T 12"),
            (Words{"DON", "'T", " ", "1", "2"}));
}

TEST(ScannerExamples, OnlyTheTwoPatternStringsAreKnown) {
  for (const char* name : {"qwen2", "qwen35"}) {
    const auto pattern = read_json(std::string(name) + "/tokenizer.json")
                             .at("pre_tokenizer")
                             .at("pretokenizers")
                             .at(0)
                             .at("pattern")
                             .at("Regex")
                             .get<std::string>();
    EXPECT_EQ(find_word_pattern(pattern),
              std::string_view(name) == "qwen2" ? WordPattern::kQwen2 : WordPattern::kQwen35);
    EXPECT_FALSE(find_word_pattern(pattern + "|x"));
    EXPECT_FALSE(find_word_pattern(pattern.substr(1)));
  }
}

}  // namespace
}  // namespace moray
