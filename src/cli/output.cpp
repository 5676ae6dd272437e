#include "src/cli/output.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "moray/text.h"

namespace moray {

Output::Output(int descriptor, std::string name)
    : descriptor_(descriptor), name_(std::move(name)), is_terminal_(isatty(descriptor) == 1) {}

Output::Output(Output&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)),
      name_(std::move(other.name_)),
      is_terminal_(other.is_terminal_),
      is_closed_(other.is_closed_),
      must_empty_(other.must_empty_),
      status_(std::move(other.status_)) {}

Output::~Output() {
  if (descriptor_ > STDERR_FILENO) close(descriptor_);
}

Output Output::standard() {
  return Output(STDOUT_FILENO, "stdout");
}

Result<Output> Output::to_file(const std::string& path) {
  const int descriptor = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  if (descriptor < 0) {
    const StatusCode code = errno == ENOENT || errno == ENOTDIR ? StatusCode::kNotFound
                            : errno == ENOSPC                   ? StatusCode::kExhausted
                                                                : StatusCode::kIo;
    return Status(code, fmt::format("{}: found '{}', expected a file that can be written", path,
                                    std::strerror(errno)));
  }
  Output output(descriptor, path);
  output.must_empty_ = true;
  return output;
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
  // EINVAL: a pipe or a device, which has no old content.
  if (std::exchange(must_empty_, false) && ftruncate(descriptor_, 0) != 0 && errno != EINVAL) {
    fail(errno);
  }
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

std::string one_line(std::string_view text) {
  std::string line;
  while (!text.empty()) {
    const size_t valid = std::min(first_invalid_byte(text), text.size());
    for (const char c : text.substr(0, valid)) {
      const auto byte = static_cast<unsigned char>(c);
      line += byte < 0x20 || byte == 0x7f ? fmt::format("\\x{:02x}", byte) : std::string(1, c);
    }
    if (valid == text.size()) break;
    line += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[valid]));
    text.remove_prefix(valid + 1);
  }
  return line;
}

void print_error_line(const Status& status) {
  print_note(one_line("error: " + status.message()));
}

void print_note(std::string_view text) {
  std::fprintf(stderr, "%.*s\n", static_cast<int>(text.size()), text.data());
}

}  // namespace moray
