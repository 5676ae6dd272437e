#include "src/cli/machine.h"

#include <fmt/core.h>
#include <sys/resource.h>
#include <sys/utsname.h>

#include <cstdlib>
#include <fstream>

namespace moray {
namespace {

// The value of the first "key : value" line of /proc/cpuinfo, or "".
std::string processor_field(std::string_view key) {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with(key) && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "";
}

}  // namespace

std::string processor_name() {
  const std::string name = processor_field("model name");
  return name.empty() ? "unknown" : name;
}

std::string processor_clock() {
  const std::string megahertz = processor_field("cpu MHz");
  if (megahertz.empty()) return "unknown";
  return fmt::format("{:.0f} MHz", std::strtod(megahertz.c_str(), nullptr));
}

std::string system_release() {
  utsname names{};
  if (uname(&names) != 0) return "unknown";
  return fmt::format("{} {}", names.sysname, names.release);
}

int64_t peak_memory_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<int64_t>(usage.ru_maxrss) * 1024;
}

}  // namespace moray
