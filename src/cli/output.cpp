#include "src/cli/output.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

namespace moray {

Output::Output(int descriptor, std::string name)
    : descriptor_(descriptor), name_(std::move(name)), is_terminal_(isatty(descriptor) == 1) {}

Output::Output(Output&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)),
      name_(std::move(other.name_)),
      is_terminal_(other.is_terminal_),
      is_closed_(other.is_closed_),
      status_(std::move(other.status_)) {}

Output::~Output() {
  if (descriptor_ > STDERR_FILENO) close(descriptor_);
}

Output Output::standard() {
  return Output(STDOUT_FILENO, "stdout");
}

Result<Output> Output::to_file(const std::string& path) {
  const int descriptor = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (descriptor < 0) {
    const StatusCode code = errno == ENOENT || errno == ENOTDIR ? StatusCode::kNotFound
                            : errno == ENOSPC                   ? StatusCode::kExhausted
                                                                : StatusCode::kIo;
    return Status(code, fmt::format("{}: found '{}', expected a file that can be written", path,
                                    std::strerror(errno)));
  }
  return Output(descriptor, path);
}

void Output::fail(int error) {
  if (error == EPIPE) {
    is_closed_ = true;
    status_ = Status(StatusCode::kCancelled, name_ + ": closed by its reader");
    return;
  }
  const bool is_full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  status_ = Status(is_full ? StatusCode::kExhausted : StatusCode::kIo,
                   fmt::format("{}: found '{}', expected to write; the output is incomplete", name_,
                               std::strerror(error)));
}

bool Output::write(std::string_view text) {
  while (status_.ok() && !text.empty()) {
    const ssize_t written = ::write(descriptor_, text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(static_cast<size_t>(written));
    } else if (errno != EINTR) {
      fail(errno);
    }
  }
  return status_.ok();
}

Status Output::finish() {
  const int descriptor = std::exchange(descriptor_, -1);
  if (descriptor >= 0 && close(descriptor) != 0 && status_.ok() && errno != EINTR) fail(errno);
  return status_;
}

void print_error_line(const Status& status) {
  std::fprintf(stderr, "error: %s\n", status.message().c_str());
}

void print_note(std::string_view text) {
  std::fprintf(stderr, "%.*s\n", static_cast<int>(text.size()), text.data());
}

}  // namespace moray
