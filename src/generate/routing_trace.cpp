// Traces of routing on disk, and how soon experts come back in them; see moray/tools.h.
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>

#include "moray/tools.h"
#include "src/base/mapped_file.h"

namespace moray {
namespace {

static_assert(std::endian::native == std::endian::little, "the file is little-endian");

constexpr char kMagic[] = {'M', 'O', 'R', 'A', 'Y', 'R', 'T', '1'};

struct Header {
  char magic[8];
  uint32_t layers, experts, top_k, zero;
  uint64_t tokens;
};
static_assert(sizeof(Header) == 32);

constexpr uint32_t kLayersMax = 1024;
constexpr uint32_t kExpertsMax = 65536;
constexpr int64_t kWindow = 8;

Status failure(const std::string& path, int error) {
  const StatusCode code = error == ENOENT || error == ENOTDIR ? StatusCode::kNotFound
                          : error == ENOSPC || error == EDQUOT || error == EFBIG
                              ? StatusCode::kExhausted
                              : StatusCode::kIo;
  return Status(code, fmt::format("{}: found '{}', expected to write the routing trace", path,
                                  std::strerror(error)));
}

// Where a trace goes: beside the file that `path` names, through a link if it is one.
struct Place {
  std::string target, partial;
  mode_t mode;  // of the file that is there, or what the process gives
};

Result<Place> place_of(const std::string& path) {
  struct stat there = {};
  std::string target = path;
  mode_t mode = 0666;
  if (stat(path.c_str(), &there) == 0) {
    if (S_ISDIR(there.st_mode)) return failure(path, EISDIR);
    if (!S_ISREG(there.st_mode)) {
      return Status(StatusCode::kIo,
                    path + ": found a device or a pipe, expected a regular file or none");
    }
    mode = there.st_mode & 07777;
    std::error_code error;
    target = std::filesystem::canonical(path, error).string();
    if (error) return failure(path, error.value());
  } else if (errno != ENOENT || lstat(path.c_str(), &there) == 0) {
    return failure(path, errno);  // also a link to nothing
  }
  return Place{target, fmt::format("{}.{}.partial", target, getpid()), mode};
}

// A new file, never one that somebody laid there; -1 and errno if it cannot be made.
int open_partial(const Place& place) {
  unlink(place.partial.c_str());
  return open(place.partial.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
              place.mode);
}

// 0 or an error number.
int write_all(int descriptor, const void* data, size_t bytes) {
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = write(descriptor, next, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    next += written;
    bytes -= static_cast<size_t>(written);
  }
  return 0;
}

int write_file(int descriptor, const RoutingTrace& trace) {
  Header header{};
  std::copy(std::begin(kMagic), std::end(kMagic), header.magic);
  header.layers = static_cast<uint32_t>(trace.layers);
  header.experts = static_cast<uint32_t>(trace.experts);
  header.top_k = static_cast<uint32_t>(trace.top_k);
  header.tokens = static_cast<uint64_t>(trace.tokens());
  int error = write_all(descriptor, &header, sizeof header);
  if (error == 0) error = write_all(descriptor, trace.ids.data(), trace.ids.size() * 2);
  if (error == 0) error = write_all(descriptor, trace.weights.data(), trace.weights.size() * 4);
  if (error == 0 && fsync(descriptor) != 0) error = errno;
  return error;
}

// What is wrong with the header for a file of `bytes`, or "".
std::string complaint(const Header& h, size_t bytes) {
  if (!std::equal(std::begin(kMagic), std::end(kMagic), h.magic)) {
    return "found other first bytes, expected MORAYRT1";
  }
  const bool is_sane = h.layers >= 1 && h.layers <= kLayersMax && h.experts >= 1 &&
                       h.experts <= kExpertsMax && h.top_k >= 1 && h.top_k <= h.experts;
  if (!is_sane) {
    return fmt::format(
        "found {} layers, {} experts and top-{}, expected 1 to {}, 1 to {}, 1 to "
        "the experts",
        h.layers, h.experts, h.top_k, kLayersMax, kExpertsMax);
  }
  if (h.zero != 0) return fmt::format("found {} in the fourth number, expected 0", h.zero);
  const uint64_t token_bytes = uint64_t{6} * h.layers * h.top_k;
  const uint64_t rest = bytes - sizeof(Header);
  if (rest % token_bytes != 0 || rest / token_bytes != h.tokens) {
    return fmt::format("found {} bytes, expected {} + {} for each of {} tokens", bytes,
                       sizeof(Header), token_bytes, h.tokens);
  }
  return "";
}

Status check_choices(const RoutingTrace& trace, const std::string& path) {
  std::vector<int64_t> chosen_in(static_cast<size_t>(trace.experts), -1);
  for (size_t i = 0; i < trace.ids.size(); ++i) {
    const int64_t row = static_cast<int64_t>(i) / trace.top_k;
    const int64_t token = row / trace.layers, layer = row % trace.layers;
    const auto found = [&](const std::string& what) {
      return Status(StatusCode::kInvalidFile,
                    fmt::format("{}: token {}, layer {}: {}", path, token, layer, what));
    };
    if (trace.ids[i] >= trace.experts) {
      return found(
          fmt::format("found expert {}, expected less than {}", trace.ids[i], trace.experts));
    }
    if (chosen_in[trace.ids[i]] == row) {
      return found(fmt::format("found expert {} twice, expected once", trace.ids[i]));
    }
    chosen_in[trace.ids[i]] = row;
    if (static_cast<int64_t>(i) % trace.top_k > 0 && trace.weights[i] > trace.weights[i - 1]) {
      return found(fmt::format("found a weight of {} behind {}, expected larger ones first",
                               trace.weights[i], trace.weights[i - 1]));
    }
    if (!std::isfinite(trace.weights[i])) {
      return found(fmt::format("found a weight of {}, expected a finite one", trace.weights[i]));
    }
  }
  return Status();
}

}  // namespace

Status check_routing_path(const std::string& path) {
  ASSIGN_OR_RETURN(const Place place, place_of(path));
  const int descriptor = open_partial(place);
  if (descriptor < 0) return failure(path, errno);
  close(descriptor);
  unlink(place.partial.c_str());
  return Status();
}

Status write_routing_trace(const RoutingTrace& trace, const std::string& path) {
  CHECK(trace.ids.size() == trace.weights.size(), trace.ids.size(), trace.weights.size());
  ASSIGN_OR_RETURN(const Place place, place_of(path));
  const int descriptor = open_partial(place);
  if (descriptor < 0) return failure(path, errno);
  int error = write_file(descriptor, trace);
  if (close(descriptor) != 0 && error == 0) error = errno;
  if (error == 0 && std::rename(place.partial.c_str(), place.target.c_str()) != 0) error = errno;
  if (error == 0) return Status();
  unlink(place.partial.c_str());
  return failure(path, error);
}

Result<RoutingTrace> read_routing_trace(const std::string& path) {
  ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(path));
  const auto bytes = file.data();
  const auto refuse = [&](const std::string& what) {
    return Status(StatusCode::kInvalidFile, path + ": " + what);
  };
  if (bytes.size() < sizeof(Header)) {
    return refuse(fmt::format("found {} bytes, expected a routing trace of {} or more",
                              bytes.size(), sizeof(Header)));
  }
  Header header;
  std::memcpy(&header, bytes.data(), sizeof header);
  if (const std::string what = complaint(header, bytes.size()); !what.empty()) return refuse(what);
  RoutingTrace trace;
  trace.layers = header.layers;
  trace.experts = header.experts;
  trace.top_k = header.top_k;
  const size_t count = (bytes.size() - sizeof header) / 6;
  trace.ids.resize(count);
  trace.weights.resize(count);
  const std::byte* from = bytes.data() + sizeof header;
  if (count > 0) {
    std::memcpy(trace.ids.data(), from, 2 * count);
    std::memcpy(trace.weights.data(), from + 2 * count, 4 * count);
  }
  RETURN_IF_ERROR(check_choices(trace, path));
  return trace;
}

ReuseStatistics measure_reuse(const RoutingTrace& trace) {
  const int64_t tokens = trace.tokens();
  std::vector<int64_t> last(static_cast<size_t>(trace.layers * trace.experts), -1);
  std::vector<int64_t> at_distance(static_cast<size_t>(tokens) + 1);
  int64_t choices = 0, seen = 0;
  size_t next = 0;
  for (int64_t token = 0; token < tokens; ++token) {
    for (int64_t i = 0; i < trace.layers * trace.top_k; ++i) {
      int64_t& used =
          last[static_cast<size_t>(i / trace.top_k * trace.experts + trace.ids[next++])];
      if (token >= kWindow) {
        ++choices;
        if (used >= 0) ++at_distance[static_cast<size_t>(token - used)], ++seen;
      }
      used = token;
    }
  }
  ReuseStatistics reuse;
  if (choices == 0) return reuse;
  int64_t so_far = 0;
  for (int64_t distance = 1; distance <= tokens; ++distance) {
    so_far += at_distance[static_cast<size_t>(distance)];
    const double share = static_cast<double>(so_far) / static_cast<double>(choices);
    if (distance == 1) reuse.repeats = share;
    if (distance <= kWindow) reuse.within_8 = share;
    if (reuse.median_distance == 0 && seen > 0 && 2 * so_far >= seen) {
      reuse.median_distance = distance;
    }
  }
  return reuse;
}

}  // namespace moray
