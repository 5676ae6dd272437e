// What NVIDIA's management library (libnvidia-ml.so.1) tells about the driver and the clocks.
//
// For benchmark lines only: everything here is "" when the library or the answer is not there.
#pragma once

#include <string>

namespace moray::gpu {

std::string driver_release();  // "580.159.04"

// "SM 1980 MHz, memory 3201 MHz" at this moment. `pci_id` is the driver's "0000:1b:00.0".
std::string current_clocks(const std::string& pci_id);

}  // namespace moray::gpu
