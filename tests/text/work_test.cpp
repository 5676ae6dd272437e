// B02: long runs cost near-linear work. Counted, not timed: steps for twice the text stay below 2.5
// times the steps (n log n gives 2.1 at these sizes, n^2 would give 4), and below a bound per byte.
#include "src/text/nfc.h"
#include "tests/text/support.h"

namespace moray {
namespace {

std::string repeat(std::string_view unit, size_t bytes) {
  std::string text;
  while (text.size() + unit.size() <= bytes) text += unit;
  return text;
}

int64_t work_of(const ByteLevelTokenizer& tokenizer, const std::string& text) {
  EncodeWork work;
  std::string buffer;
  const auto ids = tokenizer.encode_counted(text, ControlTokens::kAllow, work);
  EXPECT_TRUE(ids.ok());
  EXPECT_EQ(join_bytes(tokenizer, *ids), normalize_nfc(text, buffer));
  return work.total();
}

void expect_near_linear(const ByteLevelTokenizer& tokenizer, const std::string& name,
                        const std::string& half, const std::string& whole) {
  const int64_t half_work = work_of(tokenizer, half), whole_work = work_of(tokenizer, whole);
  const double growth = static_cast<double>(whole_work) / static_cast<double>(half_work);
  EXPECT_LT(growth, 2.5) << name;
  // A heap of a million entries is 20 levels deep, two comparisons a level, at most three pushes
  // and pops a symbol.
  EXPECT_LT(static_cast<double>(whole_work) / static_cast<double>(whole.size()), 150) << name;
}

class Work : public testing::TestWithParam<const char*> {};

TEST_P(Work, B02LongRunsStayNearLinear) {
  const auto tokenizer = load_stand_in(GetParam());
  constexpr size_t kBytes = 1'000'000;
  for (const char* unit :
       {"a", "_", " ", "\n", "!", "é", "ab", "\r\n", " \n", "<|im_end", "\u0301", "\u0301\u0323",
        "q\u0323\u0307", "\u1112\u1161\u11ab", "'s", "=", "1", "\u3000", "the"}) {
    expect_near_linear(*tokenizer, quote_bytes(unit), repeat(unit, kBytes / 2),
                       repeat(unit, kBytes));
  }
}

TEST_P(Work, B02RandomLettersInOneWordStayNearLinear) {
  const auto tokenizer = load_stand_in(GetParam());
  FreshRandom random;
  SCOPED_TRACE(random.trace());
  for (const std::string_view alphabet :
       {"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ",
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/",
        "!#$%&()*+,-./:;<=>?@[]^_`{|}~", "etr"}) {
    std::string text(2'000'000, ' ');
    for (char& c : text) c = alphabet[random.below(static_cast<uint32_t>(alphabet.size()))];
    expect_near_linear(*tokenizer, std::string(alphabet), text.substr(0, text.size() / 2), text);
  }
}

INSTANTIATE_TEST_SUITE_P(StandIns, Work, testing::Values("qwen2", "qwen35"),
                         [](const auto& stand_in) { return std::string(stand_in.param); });

// utf8proc's own ordering of marks is quadratic; ours must not be.
TEST(NfcWork, MarksInTheWorstOrderStayNearLinear) {
  const auto work_for = [](size_t marks) {
    std::string text = "a", buffer;
    for (size_t i = 0; i < marks; ++i) append_character(text, i % 2 ? 0x301 : 0x323);
    int64_t work = 0;
    normalize_nfc(text, buffer, &work);
    return static_cast<double>(work);
  };
  EXPECT_LT(work_for(400'000) / work_for(200'000), 2.5);
}

TEST(Limits, TextBeyondOneGibibyteIsRefusedUnread) {
  const auto tokenizer = load_stand_in("qwen35");
  const char byte = 'a';
  const std::string_view huge(&byte, (size_t{1} << 30) + 1);  // never dereferenced beyond the first
  const auto ids = tokenizer->encode(huge, ControlTokens::kAllow);
  ASSERT_FALSE(ids.ok());
  EXPECT_EQ(ids.status().message(), "text: found 1073741825 bytes, expected at most 1073741824");
}

}  // namespace
}  // namespace moray
