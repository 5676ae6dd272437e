#include "src/cli/progress.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace moray {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kQuiet{300};
constexpr milliseconds kBetween{100};
constexpr int kBarWidth = 24;

std::string amounts(ProgressUnit unit, int64_t done, int64_t total, double seconds) {
  const double rate = static_cast<double>(done) / seconds;
  if (unit == ProgressUnit::kTokens) {
    return fmt::format("{}/{} tokens, {:.0f} tokens/s", done, total, rate);
  }
  return fmt::format("{:.2f}/{:.2f} GB, {:.2f} GB/s", static_cast<double>(done) / 1e9,
                     static_cast<double>(total) / 1e9, rate / 1e9);
}

}  // namespace

Progress::Progress(std::string label, ProgressUnit unit, bool is_wanted)
    : label_(std::move(label)),
      unit_(unit),
      is_wanted_(is_wanted && isatty(STDERR_FILENO) == 1),
      start_(steady_clock::now()) {}

Progress::~Progress() {
  if (is_drawn_) std::fputs("\r\033[K", stderr);
}

void Progress::update(int64_t done, int64_t total) {
  if (!is_wanted_ || total <= 0 || done <= 0) return;
  const auto now = steady_clock::now();
  if (now - start_ < kQuiet || (is_drawn_ && now - last_ < kBetween)) return;
  last_ = now;
  is_drawn_ = true;
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const int filled = static_cast<int>(std::min<int64_t>(kBarWidth, kBarWidth * done / total));
  const double left = seconds * static_cast<double>(total - done) / static_cast<double>(done);
  const std::string line =
      fmt::format("\r{} [{:#<{}}{:.<{}}] {}, {:.0f} s left\033[K", label_, "", filled, "",
                  kBarWidth - filled, amounts(unit_, done, total, seconds), left);
  std::fputs(line.c_str(), stderr);
  std::fflush(stderr);
}

}  // namespace moray
