// Status and Result: an error survives copies and early returns, and success stays empty.
#include "src/base/status.h"

#include <gtest/gtest.h>

namespace moray {
namespace {

Result<int> half_of(int number) {
  if (number % 2 != 0) {
    return Status(StatusCode::kInvalidArgument, "number: found odd, expected even");
  }
  return number / 2;
}

Result<int> quarter_of(int number) {
  ASSIGN_OR_RETURN(int half, half_of(number));
  return half_of(half);
}

TEST(Status, SuccessHasNoMessage) {
  Status status;
  EXPECT_TRUE(status.ok());
  EXPECT_TRUE(status.message().empty());
}

TEST(Status, CopyKeepsCodeAndMessage) {
  Status error(StatusCode::kIo, "disk: found full, expected room");
  Status copy = error;
  error = Status();
  EXPECT_TRUE(error.ok());
  EXPECT_EQ(copy.code(), StatusCode::kIo);
  EXPECT_EQ(copy.message(), "disk: found full, expected room");
}

TEST(Result, EarlyReturnCarriesTheFirstError) {
  EXPECT_EQ(*quarter_of(12), 3);
  EXPECT_EQ(quarter_of(7).status().code(), StatusCode::kInvalidArgument);
  EXPECT_FALSE(quarter_of(6).ok());
}

TEST(ResultDeathTest, ReadingAMissingValueAborts) {
  EXPECT_DEATH((void)half_of(3).value(), "found odd");
}

}  // namespace
}  // namespace moray
