#include "src/gpu/cubin_cache.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace moray::gpu {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSuffix = ".cubin";
constexpr std::string_view kTemporary = ".partial";
constexpr auto kTemporaryAgeMax = std::chrono::hours(24);

// In front of an entry's bytes. Native byte order: a cache belongs to one machine.
struct Header {
  std::array<char, 8> magic;
  std::array<char, 32> key;
  uint64_t size;
  XXH128_hash_t checksum;
};
constexpr std::array<char, 8> kMagic = {'m', 'o', 'r', 'a', 'y', 'c', 'b', '1'};

Header make_header(const std::string& key, std::string_view bytes) {
  Header header = {};
  header.magic = kMagic;
  CHECK(key.size() == header.key.size(), key);
  std::copy(key.begin(), key.end(), header.key.begin());
  header.size = bytes.size();
  header.checksum = XXH3_128bits(bytes.data(), bytes.size());
  return header;
}

// A descriptor that closes itself.
class File {
 public:
  explicit File(int descriptor) : descriptor_(descriptor) {}
  ~File() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  File(const File&) = delete;
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

std::optional<std::string> read_whole(int descriptor) {
  struct stat info;
  if (fstat(descriptor, &info) != 0 || !S_ISREG(info.st_mode)) return std::nullopt;
  if (info.st_size > kCacheBytesMax) return std::nullopt;
  std::string bytes(static_cast<size_t>(info.st_size), '\0');
  for (size_t at = 0; at < bytes.size();) {
    const ssize_t got = read(descriptor, bytes.data() + at, bytes.size() - at);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return std::nullopt;
    at += static_cast<size_t>(got);
  }
  return bytes;
}

bool write_whole(int descriptor, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t put = write(descriptor, bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(put));
  }
  return true;
}

Status refuse(const std::string& folder, int error) {
  return Status(StatusCode::kIo,
                fmt::format("kernel cache {}: found '{}', expected a folder to write to", folder,
                            std::strerror(error)));
}

// Folders above are made as the system's default has it, the last one for this user alone.
Status make_folder(const std::string& folder) {
  std::error_code error;
  fs::create_directories(fs::path(folder).parent_path(), error);
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return refuse(folder, errno);
  return Status();
}

}  // namespace

CacheKey::CacheKey() : state_(XXH3_createState()) {
  CHECK(state_ != nullptr, "no memory");
  XXH3_128bits_reset(static_cast<XXH3_state_t*>(state_));
}

CacheKey::~CacheKey() {
  XXH3_freeState(static_cast<XXH3_state_t*>(state_));
}

CacheKey& CacheKey::add(std::string_view field) {
  const uint64_t size = field.size();
  XXH3_128bits_update(static_cast<XXH3_state_t*>(state_), &size, sizeof(size));
  XXH3_128bits_update(static_cast<XXH3_state_t*>(state_), field.data(), field.size());
  return *this;
}

std::string CacheKey::hex() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(static_cast<const XXH3_state_t*>(state_));
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

std::string CubinCache::path_of(const std::string& key) const {
  return (fs::path(folder_) / key).string() + std::string(kSuffix);
}

std::optional<std::string> CubinCache::load(const std::string& key) const {
  if (folder_.empty()) return std::nullopt;
  const std::string path = path_of(key);
  const File file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) return std::nullopt;
  const std::optional<std::string> entry = read_whole(file.get());
  if (entry && entry->size() >= sizeof(Header)) {
    std::string bytes = entry->substr(sizeof(Header));
    const Header expected = make_header(key, bytes);
    if (std::memcmp(entry->data(), &expected, sizeof(Header)) == 0) return bytes;
  }
  unlink(path.c_str());
  return std::nullopt;
}

Status CubinCache::store(const std::string& key, std::string_view bytes) const {
  if (folder_.empty()) return Status();
  RETURN_IF_ERROR(make_folder(folder_));
  std::string temporary = path_of(key) + std::string(kTemporary) + "XXXXXX";
  int error = 0;
  {
    const File file(mkostemp(temporary.data(), O_CLOEXEC));
    if (file.get() < 0) return refuse(folder_, errno);
    const Header header = make_header(key, bytes);
    const std::string_view head(reinterpret_cast<const char*>(&header), sizeof(header));
    if (!write_whole(file.get(), head) || !write_whole(file.get(), bytes)) error = errno;
  }
  if (error == 0 && rename(temporary.c_str(), path_of(key).c_str()) != 0) error = errno;
  if (error != 0) {
    unlink(temporary.c_str());
    return refuse(folder_, error);
  }
  shrink();
  return Status();
}

// Temporary files are removed when a process must have died over them.
void CubinCache::shrink() const {
  struct Entry {
    fs::path path;
    fs::file_time_type written;
    int64_t bytes;
  };
  std::vector<Entry> entries;
  int64_t total = 0;
  const auto now = fs::file_time_type::clock::now();
  std::error_code error;
  for (fs::directory_iterator at(folder_, error), end; !error && at != end; at.increment(error)) {
    std::error_code gone;
    const Entry entry = {at->path(), at->last_write_time(gone),
                         static_cast<int64_t>(at->file_size(gone))};
    if (gone) continue;
    const std::string name = entry.path.filename();
    if (name.find(kTemporary) != std::string::npos) {
      if (now - entry.written > kTemporaryAgeMax) fs::remove(entry.path, gone);
    } else if (name.ends_with(kSuffix)) {
      total += entry.bytes;
      entries.push_back(entry);
    }
  }
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return a.written < b.written; });
  for (size_t i = 0; i < entries.size() && total > kCacheBytesMax; ++i) {
    std::error_code gone;
    fs::remove(entries[i].path, gone);
    total -= entries[i].bytes;
  }
}

}  // namespace moray::gpu
