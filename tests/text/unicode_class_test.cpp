// The class table and NFC over every code point, against digests of what `tokenizers` answers.
//
// tools/check_unicode_tables.py computes the digests from the package and compares the table code
// point by code point; if a digest differs here, run it to see which code points are wrong.
#include "src/text/unicode_class.h"

#include "src/text/nfc.h"
#include "tests/text/support.h"

namespace moray {
namespace {

// 64-bit FNV-1a.
struct Digest {
  uint64_t value = 0xCBF29CE484222325u;
  void add(uint8_t byte) { value = (value ^ byte) * 0x100000001B3u; }
  void add(std::string_view bytes) {
    for (const char byte : bytes) add(static_cast<uint8_t>(byte));
  }
  std::string hex() const {
    char text[17];
    std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(value));
    return text;
  }
};

TEST(UnicodeClass, EveryCodePointIsAsTheReferenceSees) {
  Digest digest;
  for (uint32_t cp = 0; cp < kCodePointEnd; ++cp) digest.add(unicode_class(cp));
  EXPECT_EQ(digest.hex(), read_json("unicode_digest.json").at("classes"));
}

TEST(Nfc, EveryCodePointInEachSurroundingIsAsTheReferenceNormalises) {
  const auto expected = read_json("unicode_digest.json");
  Digest digest;
  std::string buffer;
  for (const auto& frame : expected.at("nfc_frames")) {
    const auto whole = frame.get<std::string>();
    const size_t hole = whole.find("{}");
    for (uint32_t cp = 0; cp < kCodePointEnd; ++cp) {
      if (cp == 0xD800) cp = 0xE000;
      std::string text = whole.substr(0, hole);
      append_character(text, cp);
      text += whole.substr(hole + 2);
      digest.add(normalize_nfc(text, buffer));
    }
  }
  EXPECT_EQ(digest.hex(), expected.at("nfc"));
}

TEST(Nfc, NormalisedTextIsReturnedUntouched) {
  std::string buffer;
  for (const std::string_view text : {"", "plain ASCII", "é ü 中文 日本 가각 🇺🇦"}) {
    EXPECT_EQ(normalize_nfc(text, buffer).data(), text.data());
  }
}

TEST(Nfc, NormalisingTwiceChangesNothing) {
  FreshRandom random;
  SCOPED_TRACE(random.trace());
  std::string once, twice;
  for (int i = 0; i < 5000; ++i) {
    std::string text = random.text(20);
    for (uint32_t marks = random.below(6); marks > 0; --marks) {
      append_character(text, 0x300 + random.below(0x70));
    }
    const std::string normal(normalize_nfc(text, once));
    ASSERT_EQ(normalize_nfc(normal, twice), normal) << quote_bytes(text);
  }
}

}  // namespace
}  // namespace moray
