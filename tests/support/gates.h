// Gates for tests that not every machine or run can do; a gated test says "skipped" and why.
//
// ./test sets MORAY_TEST_LONG and MORAY_TEST_GPU from --long and --gpu. Usage: first statement of a
// test body is MORAY_LONG_TEST(); or MORAY_GPU_TEST();
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string_view>

namespace moray {

inline bool test_flag(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && std::string_view(value) == "1";
}

}  // namespace moray

#define MORAY_LONG_TEST() \
  if (!::moray::test_flag("MORAY_TEST_LONG")) GTEST_SKIP() << "slow: run with ./test --long"
#define MORAY_GPU_TEST() \
  if (!::moray::test_flag("MORAY_TEST_GPU")) GTEST_SKIP() << "needs a GPU: run with ./test --gpu"
