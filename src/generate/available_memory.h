// How much memory this process may still take before the system or its limits say no.
//
// The smallest of: the kernel's MemAvailable (it counts page cache that can be dropped), what the
// process's control groups leave, and what its address-space limit leaves. A source that cannot be
// read does not limit.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace moray {

// Bytes of a "MemAvailable:  123 kB" line in the text of a meminfo file.
std::optional<int64_t> parse_mem_available(std::string_view meminfo);

// Bytes that may still be allocated; INT64_MAX when nothing tells.
int64_t available_memory_bytes();

}  // namespace moray
