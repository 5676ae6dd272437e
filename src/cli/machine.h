// What the system says about the machine a measurement was taken on.
#pragma once

#include <cstdint>
#include <string>

namespace moray {

std::string processor_name();   // "AMD EPYC 9B45", or "unknown"
std::string processor_clock();  // the first core's at this moment, "2700 MHz", or "unknown"
std::string system_release();   // "Linux 6.1.0"
int64_t peak_memory_bytes();    // largest resident size of this process so far

}  // namespace moray
