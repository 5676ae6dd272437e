// Boxes of device memory for the copy unit of sm_90 (CUtensorMap), encoded by the driver.
//
// A map is 128 opaque bytes that travel in a kernel's parameters; it refers to memory, owns nothing
// and needs no device call to make.
#pragma once

#include <cstdint>

namespace moray::gpu {

// Bytes [plane, row, column] at `base`, cut into boxes of box_rows rows by 128 columns of one
// plane, which arrive in shared memory in the 128-byte swizzle; what lies outside arrives as zeros.
struct ByteBoxes {
  const void* base = nullptr;  // 16-byte aligned
  int64_t columns = 0, rows = 0, planes = 1;
  int64_t row_bytes = 0, plane_bytes = 0;  // from one to the next, multiples of 16
  int box_rows = 0;                        // 1..256
};

// Fills the 128 bytes at `map`, 64-byte aligned. CHECKed: a driver is there and takes the sizes.
void encode_map(const ByteBoxes& boxes, void* map);

}  // namespace moray::gpu
