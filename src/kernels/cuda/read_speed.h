// How fast the device reads memory and does nothing else: the ceiling a decode step is held
// against.
#pragma once

namespace moray::cuda {

struct ReadSpeed {
  const void* data;  // 16-byte aligned
  long long bytes;   // a multiple of 16
  unsigned* sink;    // written only if the data is one that it never is
};

}  // namespace moray::cuda
