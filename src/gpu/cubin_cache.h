// Compiled programs kept on disk from one start to the next.
//
// Invariant: load() returns exactly the bytes that store() was given for that key, or nothing: an
// entry carries its key, size and checksum, and one that does not agree is removed. An entry
// appears whole or not at all (written beside, then renamed), so any number of processes may use
// one folder at once. The folder is kept below kCacheBytesMax by removing the oldest entries.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "src/base/status.h"

namespace moray::gpu {

inline constexpr int64_t kCacheBytesMax = int64_t{256} << 20;

// A 128-bit hash (XXH3) of fields, each with its length, so that no two lists of fields look alike.
class CacheKey {
 public:
  CacheKey();
  ~CacheKey();
  CacheKey(const CacheKey&) = delete;
  CacheKey& add(std::string_view field);
  std::string hex() const;  // 32 digits

 private:
  void* state_;
};

class CubinCache {
 public:
  // `folder` is made when first written to, for this user alone; "" is a cache that holds nothing.
  explicit CubinCache(std::string folder) : folder_(std::move(folder)) {}

  std::optional<std::string> load(const std::string& key) const;
  // Errors: kIo naming the folder and the system's reason; nothing is left behind then.
  Status store(const std::string& key, std::string_view bytes) const;

 private:
  std::string path_of(const std::string& key) const;
  void shrink() const;
  std::string folder_;
};

}  // namespace moray::gpu
