// A read-only file mapping that survives what the file system can do to it.
//
// Invariant: data() stays valid, at one address, until the MappedFile is destroyed. If the file
// shrinks while it is mapped, touching a lost page raises SIGBUS; install_shrink_guard() turns that
// into one line on stderr and a chosen exit status, because there is no way to go on: the bytes are
// gone in the middle of a load from memory. What the bytes mean is elsewhere (src/formats).
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "src/base/status.h"

namespace moray {

// Files one process may have mapped at a time; the largest published models have about 100 shards.
inline constexpr size_t kMappedFilesMax = 1024;

class MappedFile {
 public:
  // Maps all of `path` (symbolic links are followed). kNotFound when absent, kInvalidFile for a
  // directory, FIFO, device or an empty file, kIo for what the system refuses, kExhausted beyond
  // kMappedFilesMax. Never blocks on a FIFO and reads no page.
  static Result<MappedFile> open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const std::byte> data() const { return {data_, size_}; }
  const std::string& path() const { return path_; }

 private:
  MappedFile() = default;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  std::string path_;
  size_t slot_ = 0;  // this mapping's place in the table that the shrink guard searches
};

// For programs, once at start: a SIGBUS inside a live MappedFile prints
// "error: FILE: shrank or became unreadable while it was mapped ..." and exits with `exit_status`;
// any other SIGBUS keeps its default action.
void install_shrink_guard(int exit_status);

}  // namespace moray
