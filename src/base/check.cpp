#include "src/base/check.h"

#include <cstdio>
#include <cstdlib>

namespace moray {

void check_failed(const char* file, int line, const char* condition, const std::string& values) {
  std::fprintf(stderr, "CHECK failed: %s:%d: %s%s\n", file, line, condition, values.c_str());
  std::abort();
}

}  // namespace moray
