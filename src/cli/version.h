// Which build this is.
#pragma once

#include <string>

namespace moray {

std::string version_line();  // "moray 0.1.0 (commit 1a2b3c4, Release, GCC 12.2.0)"
std::string commit_id();     // short hash, "-dirty" if the tree had changes, or "unknown"

}  // namespace moray
