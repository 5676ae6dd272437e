// CHECK: assertions about our own code, on in release builds.
//
// CHECK(condition, values...) prints file, line, the condition and the values to stderr, then
// aborts. It is for bugs only; whatever a user, file or kernel can cause is a Status (status.h).
// DCHECK is the same for inner loops and vanishes when NDEBUG is set and MORAY_CHECKED is not.
#pragma once

#include <sstream>
#include <string>

namespace moray {

// Prints one line "CHECK failed: file:line: condition [values]" and aborts. Never returns.
[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               const std::string& values);

template <typename... Values>
std::string join_values(const Values&... values) {
  std::ostringstream out;
  ((out << ' ' << values), ...);
  return out.str();
}

}  // namespace moray

#define CHECK(condition, ...)                                                                   \
  do {                                                                                          \
    if (!(condition)) [[unlikely]]                                                              \
      ::moray::check_failed(__FILE__, __LINE__, #condition, ::moray::join_values(__VA_ARGS__)); \
  } while (false)

#if defined(NDEBUG) && !defined(MORAY_CHECKED)
#define DCHECK(condition, ...) \
  do {                         \
  } while (false)
#else
#define DCHECK(condition, ...) CHECK(condition __VA_OPT__(, ) __VA_ARGS__)
#endif
