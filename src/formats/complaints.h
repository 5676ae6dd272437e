// Collected disagreements between what a file says and what it must say, told in one report.
//
// Invariant: every line names one thing, what was found and what was expected. The list is bounded,
// so a hostile file with a million faults costs no more than one with twenty.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/status.h"

namespace moray {

class Complaints {
 public:
  // Something damaged or inconsistent.
  void add(std::string line);
  // Something well formed that Moray does not do; alone it makes the report kUnsupported.
  void add_unsupported(std::string line);

  bool empty() const { return count_ == 0; }
  size_t count() const { return count_; }
  // OK when empty; else "SUBJECT: line; line; ... and N more" with at most 20 lines spelled out.
  Status status(const std::string& subject) const;

 private:
  std::vector<std::string> lines_;
  size_t count_ = 0;
  bool only_unsupported_ = true;
};

// `text` in single quotes, shortened to about 80 bytes and with control and non-ASCII bytes as
// \xNN: names from files end up in terminals and logs.
std::string in_quotes(std::string_view text);

}  // namespace moray
