// The mapping itself, and the table of live mappings that the SIGBUS handler searches.
//
// The table is the one piece of process-wide mutable state in Moray: a signal handler receives an
// address and nothing else, so what it knows must be reachable without an argument. Every field is
// a lock-free atomic and the handler only loads them, which makes the lookup async-signal-safe.
#include "src/base/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <utility>

namespace moray {
namespace {

// A slot belongs to one mapping from the moment `taken` is won until release_slot clears it;
// `begin` is published last and withdrawn first, so the handler never sees a range with another's
// path.
struct Slot {
  std::atomic<bool> taken;
  std::atomic<uintptr_t> begin;
  std::atomic<size_t> size;
  std::atomic<char*> path;
};
static_assert(std::atomic<uintptr_t>::is_always_lock_free);
static_assert(std::atomic<char*>::is_always_lock_free);

constinit Slot slots[kMappedFilesMax] = {};
constinit std::atomic<int> guard_exit_status = 0;
constinit std::atomic<bool> guard_has_reported = false;

// Index of a slot now holding the range, or kMappedFilesMax when all are taken.
size_t claim_slot(const void* begin, size_t size, const std::string& path) {
  for (size_t index = 0; index < kMappedFilesMax; ++index) {
    Slot& slot = slots[index];
    if (slot.taken.exchange(true, std::memory_order_acquire)) continue;
    slot.size.store(size, std::memory_order_relaxed);
    slot.path.store(strdup(path.c_str()), std::memory_order_relaxed);
    slot.begin.store(reinterpret_cast<uintptr_t>(begin), std::memory_order_release);
    return index;
  }
  return kMappedFilesMax;
}

void release_slot(size_t index) {
  Slot& slot = slots[index];
  slot.begin.store(0, std::memory_order_release);
  std::free(slot.path.exchange(nullptr, std::memory_order_relaxed));
  slot.taken.store(false, std::memory_order_release);
}

const char* mapped_path(uintptr_t address) {
  for (const Slot& slot : slots) {
    const uintptr_t begin = slot.begin.load(std::memory_order_acquire);
    if (begin == 0 || address < begin) continue;
    if (address - begin >= slot.size.load(std::memory_order_relaxed)) continue;
    const char* path = slot.path.load(std::memory_order_relaxed);
    return path ? path : "a model file";
  }
  return nullptr;
}

// Appends within the buffer; only what POSIX lists as async-signal-safe is used.
void append(char* line, size_t capacity, size_t& used, const char* text) {
  const size_t wanted = std::strlen(text);
  const size_t room = capacity - used;
  const size_t taken = wanted < room ? wanted : room;
  std::memcpy(line + used, text, taken);
  used += taken;
}

void on_bus_error(int signal_number, siginfo_t* info, void*) {
  const char* path = mapped_path(reinterpret_cast<uintptr_t>(info->si_addr));
  const bool from_memory = info->si_code > 0;  // kill() and its kind have codes <= 0
  if (path == nullptr || !from_memory) {
    std::signal(signal_number, SIG_DFL);
    raise(signal_number);  // delivered when this handler returns
    return;
  }
  // Other threads soon hit the same lost pages: one of them speaks, the rest wait for the end.
  while (guard_has_reported.exchange(true)) pause();
  char line[4096 + 256];
  size_t used = 0;
  append(line, sizeof line, used, "error: ");
  append(line, sizeof line, used, path);
  append(line, sizeof line, used,
         ": shrank or became unreadable while it was mapped; expected it to stay as it was when "
         "opened\n");
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line, used);
  _exit(guard_exit_status.load(std::memory_order_relaxed));
}

const char* file_kind(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISSOCK(mode)) return "a socket";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  return "something that is not a file";
}

Status system_error(const std::string& path, int error) {
  const bool absent = error == ENOENT || error == ENOTDIR;
  // A socket cannot be opened at all; a looping link never reaches a file.
  const bool wrong_kind = error == ENXIO || error == ELOOP;
  const StatusCode code = absent       ? StatusCode::kNotFound
                          : wrong_kind ? StatusCode::kInvalidFile
                                       : StatusCode::kIo;
  return Status(
      code, fmt::format("{}: found '{}', expected a readable file", path, std::strerror(error)));
}

Status check_is_file(const std::string& path, const struct stat& info) {
  if (!S_ISREG(info.st_mode)) {
    return Status(StatusCode::kInvalidFile, fmt::format("{}: found {}, expected a regular file",
                                                        path, file_kind(info.st_mode)));
  }
  if (info.st_size == 0) {
    return Status(StatusCode::kInvalidFile,
                  fmt::format("{}: found an empty file, expected content", path));
  }
  return Status();
}

}  // namespace

Result<MappedFile> MappedFile::open(const std::string& path) {
  // O_NONBLOCK: opening a FIFO without a writer returns at once; regular files ignore it.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (descriptor < 0) return system_error(path, errno);
  struct stat info = {};
  Status status =
      fstat(descriptor, &info) == 0 ? check_is_file(path, info) : system_error(path, errno);
  if (!status.ok()) {
    close(descriptor);
    return status;
  }
  const size_t size = static_cast<size_t>(info.st_size);
  void* data = mmap(nullptr, size, PROT_READ, MAP_SHARED, descriptor, 0);
  const int map_error = errno;
  close(descriptor);
  if (data == MAP_FAILED) return system_error(path, map_error);

  MappedFile file;
  file.slot_ = claim_slot(data, size, path);
  if (file.slot_ == kMappedFilesMax) {
    munmap(data, size);
    return Status(StatusCode::kExhausted, fmt::format("{}: found {} files mapped already, expected "
                                                      "fewer",
                                                      path, kMappedFilesMax));
  }
  file.data_ = static_cast<const std::byte*>(data);
  file.size_ = size;
  file.path_ = path;
  return file;
}

MappedFile::MappedFile(MappedFile&& other) noexcept {
  *this = std::move(other);
}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(path_, other.path_);
  std::swap(slot_, other.slot_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ == nullptr) return;
  release_slot(slot_);
  munmap(const_cast<std::byte*>(data_), size_);
}

void install_shrink_guard(int exit_status) {
  guard_exit_status.store(exit_status, std::memory_order_relaxed);
  struct sigaction action = {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  CHECK(sigaction(SIGBUS, &action, nullptr) == 0);
}

}  // namespace moray
