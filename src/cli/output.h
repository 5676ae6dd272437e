// Where a command's results go, byte by byte and without losing an error.
//
// Invariant: write() either hands every byte to the system or remembers why not; after the first
// failure nothing more is written, so a result is never shown with a hole. A closed pipe is not a
// failure but the reader's wish to stop (is_closed()). Results go to stdout or a file; statistics,
// progress and errors to stderr.
#pragma once

#include <string>
#include <string_view>

#include "src/base/status.h"

namespace moray {

class Output {
 public:
  static Output standard();
  // Creates or empties `path`.
  static Result<Output> to_file(const std::string& path);

  Output(Output&& other) noexcept;
  Output& operator=(Output&&) = delete;
  ~Output();

  // Unbuffered: what a model says appears as it is said. False when writing is over.
  bool write(std::string_view text);
  // Closes; some file systems report a full disk only now.
  Status finish();

  bool is_closed() const { return is_closed_; }
  bool is_terminal() const { return is_terminal_; }
  const Status& status() const { return status_; }

 private:
  Output(int descriptor, std::string name);
  void fail(int error);

  int descriptor_;
  std::string name_;
  bool is_terminal_;
  bool is_closed_ = false;
  Status status_;
};

// Writes to stderr; nothing can be done if that fails.
void print_error_line(const Status& status);
void print_note(std::string_view text);

}  // namespace moray
