// Prints what opening the first GPU comes to, one line: for tests that bring a driver of their own.
#include <cstdio>

#include "src/gpu/device.h"

int main() {
  const auto device = moray::gpu::Device::open(0);
  if (device.ok()) {
    std::printf("opened %s, arch %d\n", (*device)->info().name.c_str(), (*device)->info().arch());
  } else {
    std::printf("%s\n", device.status().message().c_str());
  }
  return 0;
}
