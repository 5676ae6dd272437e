// Reads the kernel's own files; see available_memory.h. Control groups: version 2 only, every level
// from the process's own up to the root, since each may hold a limit.
#include "src/generate/available_memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>

namespace moray {
namespace {

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

std::string read_text(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

std::optional<int64_t> leading_number(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
  int64_t number = 0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), number);
  if (end.ec != std::errc()) return std::nullopt;
  return number;
}

// The number after `key` at the start of a line.
std::optional<int64_t> line_number(std::string_view text, std::string_view key) {
  size_t at = text.starts_with(key) ? 0 : text.find(std::string("\n").append(key));
  if (at == std::string_view::npos) return std::nullopt;
  if (text[at] == '\n') ++at;
  return leading_number(text.substr(at + key.size()));
}

// What the group in `folder` leaves; its inactive file pages can be dropped, so they count as free.
int64_t group_room(const std::string& folder) {
  const auto limit = leading_number(read_text(folder + "/memory.max"));  // "max": no number
  const auto used = leading_number(read_text(folder + "/memory.current"));
  if (!limit || !used) return kNoLimit;
  const int64_t droppable =
      line_number(read_text(folder + "/memory.stat"), "inactive_file ").value_or(0);
  return std::max<int64_t>(0, *limit - *used + droppable);
}

int64_t control_group_room() {
  const std::string text = read_text("/proc/self/cgroup");
  const size_t at = text.find("0::");
  if (at == std::string::npos) return kNoLimit;
  std::string group = text.substr(at + 3, text.find('\n', at) - at - 3);
  int64_t room = group_room("/sys/fs/cgroup");
  while (group.size() > 1) {
    room = std::min(room, group_room("/sys/fs/cgroup" + group));
    group.resize(group.rfind('/'));
  }
  return room;
}

int64_t address_space_room() {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return kNoLimit;
  const int64_t pages = leading_number(read_text("/proc/self/statm")).value_or(0);
  return std::max<int64_t>(0, static_cast<int64_t>(limit.rlim_cur) - pages * sysconf(_SC_PAGESIZE));
}

}  // namespace

std::optional<int64_t> parse_mem_available(std::string_view meminfo) {
  const auto kilobytes = line_number(meminfo, "MemAvailable:");
  if (!kilobytes) return std::nullopt;
  return *kilobytes * 1024;
}

int64_t available_memory_bytes() {
  const auto system = parse_mem_available(read_text("/proc/meminfo"));
  return std::min({system.value_or(kNoLimit), control_group_room(), address_space_room()});
}

}  // namespace moray
