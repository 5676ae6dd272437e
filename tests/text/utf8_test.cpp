// UTF-8 stepping: every two-byte start, the borders of Table 3-7, and what an error message may
// show.
#include "src/text/utf8.h"

#include <gtest/gtest.h>

namespace moray {
namespace {

// Plain oracle: is `bytes` the one encoding of a scalar value?
bool is_character(std::string_view bytes) {
  for (uint32_t cp = 0; cp < 0x110000; ++cp) {
    if (cp == 0xD800) cp = 0xE000;
    std::string encoded;
    append_character(encoded, cp);
    if (encoded == bytes) return true;
  }
  return false;
}

TEST(Utf8, EveryScalarValueRoundTrips) {
  for (uint32_t cp = 0; cp < 0x110000; ++cp) {
    if (cp == 0xD800) cp = 0xE000;
    std::string bytes;
    append_character(bytes, cp);
    const Utf8Step step = utf8_step(bytes + "x");
    ASSERT_EQ(step.kind, Utf8Kind::kCharacter) << cp;
    ASSERT_EQ(step.bytes, bytes.size()) << cp;
    ASSERT_EQ(decode_character(bytes.data()).value, cp);
    for (size_t cut = 1; cut < bytes.size(); ++cut) {
      const Utf8Step part = utf8_step(std::string_view(bytes).substr(0, cut));
      ASSERT_EQ(part.kind, Utf8Kind::kIncomplete) << cp;
      ASSERT_EQ(part.bytes, cut) << cp;
    }
  }
}

TEST(Utf8, BordersOfTheTable) {
  struct Case {
    std::string_view bytes;
    size_t invalid_bytes;
  };
  for (const auto& [bytes, invalid_bytes] : std::initializer_list<Case>{{"\x80", 1},
                                                                        {"\xBF", 1},
                                                                        {"\xC0\x80", 1},
                                                                        {"\xC1\xBF", 1},
                                                                        {"\xC2\x41", 1},
                                                                        {"\xE0\x9F\xBF", 1},
                                                                        {"\xED\xA0\x80", 1},
                                                                        {"\xE1\x80\x41", 2},
                                                                        {"\xF0\x8F\xBF\xBF", 1},
                                                                        {"\xF0\x90\x41", 2},
                                                                        {"\xF0\x90\x80\x41", 3},
                                                                        {"\xF4\x90\x80\x80", 1},
                                                                        {"\xF5\x80\x80\x80", 1},
                                                                        {"\xFF", 1}}) {
    EXPECT_FALSE(is_character(bytes)) << quote_bytes(bytes);
    const Utf8Step step = utf8_step(bytes);
    EXPECT_EQ(step.kind, Utf8Kind::kInvalid) << quote_bytes(bytes);
    EXPECT_EQ(step.bytes, invalid_bytes) << quote_bytes(bytes);
    EXPECT_EQ(first_invalid_byte("12345678abc" + std::string(bytes)), 11u);
  }
}

TEST(Utf8, QuotedIsOnePrintableLine) {
  EXPECT_EQ(quote_bytes("a\n\"\\\xFFz"), "\"a\\x0A\\x22\\x5C\\xFFz\"");
  EXPECT_EQ(quote_bytes(std::string(100, 'a')), "\"" + std::string(40, 'a') + "\"...");
}

}  // namespace
}  // namespace moray
