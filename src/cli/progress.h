// A progress bar of one line on stderr, only on a terminal.
//
// Invariant: the line is gone when the work is done, and nothing at all is printed elsewhere.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace moray {

enum class ProgressUnit { kBytes, kTokens };

class Progress {
 public:
  Progress(std::string label, ProgressUnit unit, bool is_wanted);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Redraws at most every 100 ms, and not in the first 300 ms: what is quick needs no bar.
  void update(int64_t done, int64_t total);

 private:
  std::string label_;
  ProgressUnit unit_;
  bool is_wanted_;
  bool is_drawn_ = false;
  std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point last_;
};

}  // namespace moray
