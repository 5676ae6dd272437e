// Lines and columns to byte offsets, on every place of texts with all kinds of line ends.
#include "src/cli/text_place.h"

#include <gtest/gtest.h>

namespace moray {
namespace {

TEST(TextPlace, CountsCharactersAndLineEnds) {
  const std::string text = "ab\n\né日x\r\nlast";
  EXPECT_EQ(*byte_offset_of(text, 1, 1, "t"), 0u);
  EXPECT_EQ(*byte_offset_of(text, 1, 3, "t"), 2u);  // the end of "ab"
  EXPECT_EQ(*byte_offset_of(text, 2, 1, "t"), 3u);
  EXPECT_EQ(*byte_offset_of(text, 3, 2, "t"), 6u);   // after é
  EXPECT_EQ(*byte_offset_of(text, 3, 3, "t"), 9u);   // after 日
  EXPECT_EQ(*byte_offset_of(text, 3, 4, "t"), 10u);  // before \r
  EXPECT_EQ(*byte_offset_of(text, 4, 5, "t"), text.size());
}

TEST(TextPlace, RefusesWhatIsNotThere) {
  const std::string text = "ab\nc\n";
  EXPECT_TRUE(byte_offset_of(text, 3, 1, "t").ok());  // the empty line after the last end
  EXPECT_EQ(byte_offset_of(text, 4, 1, "t").status().message(),
            "--line: found 4, expected 1 to 3, the lines of t");
  EXPECT_EQ(byte_offset_of(text, 1, 4, "t").status().message(),
            "--col: found 4, expected 1 to 3, the columns of line 1 of t");
  EXPECT_TRUE(byte_offset_of("", 1, 1, "t").ok());
  EXPECT_FALSE(byte_offset_of("", 1, 2, "t").ok());
}

}  // namespace
}  // namespace moray
