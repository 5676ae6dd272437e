// Stop strings: found wherever they lie across pieces, never shown, and nothing else is lost.
#include "src/generate/stop_matcher.h"

#include <gtest/gtest.h>

#include <random>

namespace moray {
namespace {

struct Outcome {
  std::string text;
  bool is_stopped = false;
  bool operator==(const Outcome&) const = default;
};

// By the definition: the stop string that ends first, the longest of those; text before it.
Outcome expected_outcome(const std::string& text, const std::vector<std::string>& stop) {
  for (size_t end = 1; end <= text.size(); ++end) {
    size_t longest = 0;
    for (const std::string& s : stop) {
      if (s.size() <= end && text.compare(end - s.size(), s.size(), s) == 0) {
        longest = std::max(longest, s.size());
      }
    }
    if (longest > 0) return {text.substr(0, end - longest), true};
  }
  return {text, false};
}

Outcome outcome_of(const std::vector<std::string>& pieces, const std::vector<std::string>& stop) {
  StopMatcher matcher(stop);
  Outcome outcome;
  for (const std::string& piece : pieces) {
    if (matcher.push(piece, &outcome.text)) {
      outcome.is_stopped = true;
      return outcome;
    }
  }
  outcome.text += matcher.finish();
  return outcome;
}

TEST(StopMatcher, SpansPiecesAndReleasesFalseStarts) {
  EXPECT_EQ(outcome_of({"foo\n", "de", "f bar"}, {"\ndef "}), (Outcome{"foo", true}));
  EXPECT_EQ(outcome_of({"foo\n", "de", "l bar"}, {"\ndef "}), (Outcome{"foo\ndel bar", false}));
  EXPECT_EQ(outcome_of({"a", "a", "a", "b"}, {"aab"}), (Outcome{"a", true}));
}

TEST(StopMatcher, HoldsBackOnlyWhatMayBecomeAStop) {
  StopMatcher matcher({"END"});
  std::string shown;
  EXPECT_FALSE(matcher.push("text E", &shown));
  EXPECT_EQ(shown, "text ");
  EXPECT_FALSE(matcher.push("NE", &shown));
  EXPECT_EQ(shown, "text EN");
  EXPECT_TRUE(matcher.push("ND and more", &shown));
  EXPECT_EQ(shown, "text EN");
}

TEST(StopMatcher, HeldTextIsGivenBackAtTheEnd) {
  EXPECT_EQ(outcome_of({"abc", "de"}, {"cdef"}), (Outcome{"abcde", false}));
}

TEST(StopMatcher, WithoutStopsTextPassesThrough) {
  EXPECT_EQ(outcome_of({"a", "", "b"}, {}), (Outcome{"ab", false}));
}

// Small alphabet, so that overlaps and false starts abound; any cut into pieces must agree with the
// definition, and at every moment only a prefix of the final text may be out.
TEST(StopMatcher, AnyCutGivesTheDefinitionsAnswer) {
  const uint32_t seed = 11;
  std::mt19937 random(seed);
  const std::vector<std::string> alphabet = {"a", "b", "é", "日"};
  const auto word = [&](size_t most) {
    std::string text;
    for (size_t i = random() % most + 1; i > 0; --i) text += alphabet[random() % alphabet.size()];
    return text;
  };
  for (int trial = 0; trial < 20000; ++trial) {
    const std::string text = word(24);
    std::vector<std::string> stop;
    for (size_t i = random() % 4; i > 0; --i) stop.push_back(word(4));
    const Outcome expected = expected_outcome(text, stop);
    std::vector<std::string> pieces(1);
    for (const char c : text) {
      const bool starts_character = (static_cast<unsigned char>(c) & 0xC0) != 0x80;
      if (starts_character && random() % 3 == 0) pieces.emplace_back();
      pieces.back() += c;
    }
    ASSERT_EQ(outcome_of(pieces, stop), expected)
        << "seed " << seed << " trial " << trial << " text " << text << " stops "
        << testing::PrintToString(stop);
    StopMatcher matcher(stop);
    std::string shown;
    for (const std::string& piece : pieces) {
      const bool is_stopped = matcher.push(piece, &shown);
      ASSERT_TRUE(expected.text.starts_with(shown)) << "trial " << trial;
      if (is_stopped) break;
    }
  }
}

// B06: ten thousand strings, an empty one, a huge one, bytes that are no text.
TEST(StopMatcher, B06UnreasonableStopsAreNamed) {
  const auto message = [](const std::vector<std::string>& stop) {
    return StopMatcher::validate(stop).message();
  };
  EXPECT_EQ(message(std::vector<std::string>(10000, "x")),
            "stop: found 10000 strings, expected at most 64");
  EXPECT_EQ(message({"x", ""}), "stop: found 0 bytes in string 2, expected 1 to 1024");
  EXPECT_EQ(message({std::string(1025, 'x')}),
            "stop: found 1025 bytes in string 1, expected 1 to 1024");
  EXPECT_EQ(message({"ok", "a\xED\xA0\x80"}),
            "stop: found an invalid byte at offset 1 of string 2, expected UTF-8");
  EXPECT_TRUE(StopMatcher::validate({"\n\n", "日"}).ok());
}

}  // namespace
}  // namespace moray
