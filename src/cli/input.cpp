#include "src/cli/input.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "moray/text.h"
#include "src/cli/interrupt.h"
#include "src/cli/output.h"

namespace moray {
namespace {

constexpr size_t kTextBytesMax = size_t{256} << 20;  // 100 times the longest context

Result<std::string> read_descriptor(int descriptor, const std::string& name) {
  std::string text;
  char buffer[1 << 16];
  while (true) {
    const ssize_t count = read(descriptor, buffer, sizeof(buffer));
    if (is_interrupted()) return Status(StatusCode::kCancelled, name + ": interrupted");
    if (count == 0) return text;
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      const StatusCode code = errno == EISDIR ? StatusCode::kInvalidFile : StatusCode::kIo;
      return Status(code, fmt::format("{}: found '{}', expected a readable text", name,
                                      std::strerror(errno)));
    }
    text.append(buffer, static_cast<size_t>(count));
    if (text.size() > kTextBytesMax) {
      return Status(
          StatusCode::kInvalidFile,
          fmt::format("{}: found more than {} MiB, expected less", name, kTextBytesMax >> 20));
    }
  }
}

Status check_text(const std::string& text, const std::string& name, StatusCode code) {
  const size_t invalid = first_invalid_byte(text);
  const size_t zero = text.find('\0');
  const size_t bad = std::min(invalid, zero);
  if (bad == std::string::npos) return Status();
  return Status(code, fmt::format("{}: found byte 0x{:02X} at offset {}, expected text in UTF-8",
                                  name, static_cast<unsigned char>(text[bad]), bad));
}

Result<std::string> read_file_bytes(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) {
    const bool is_missing = errno == ENOENT || errno == ENOTDIR;
    return Status(
        is_missing ? StatusCode::kNotFound : StatusCode::kIo,
        fmt::format("{}: found '{}', expected a readable file", path, std::strerror(errno)));
  }
  Result<std::string> text = read_descriptor(descriptor, path);
  close(descriptor);
  return text;
}

}  // namespace

Result<std::string> read_text_file(const std::string& path) {
  ASSIGN_OR_RETURN(std::string text, read_file_bytes(path));
  RETURN_IF_ERROR(check_text(text, path, StatusCode::kInvalidFile));
  return text;
}

Result<std::string> read_prompt(const PromptSource& source) {
  std::string text;
  std::string name = "prompt";
  if (source.text) {
    text = *source.text;
  } else if (!source.file.empty()) {
    name = source.file;
    ASSIGN_OR_RETURN(text, read_file_bytes(source.file));
  } else {
    name = "stdin";
    if (isatty(STDIN_FILENO) == 1) print_note("Type the prompt, then Ctrl-D on an empty line.");
    ASSIGN_OR_RETURN(text, read_descriptor(STDIN_FILENO, name));
  }
  if (text.empty()) {
    return Status(StatusCode::kInvalidArgument,
                  name + ": found an empty prompt, expected at least one character");
  }
  RETURN_IF_ERROR(check_text(text, name, StatusCode::kInvalidArgument));
  return text;
}

}  // namespace moray
