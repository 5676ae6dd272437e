// The reader of cubins meets bytes that are none: it says so and reads nothing outside.
//
// What it reads from real ones is held against the driver in tests/gpu and used in tests/cuda.
#include "src/gpu/cubin.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

namespace moray::gpu {
namespace {

TEST(Cubin, WhatIsNoCubinIsRefused) {
  for (const std::string& bytes : {std::string(), std::string("ELF"), std::string(64, '\0'),
                                   "\x7f"
                                   "ELF" +
                                       std::string(60, '\xff')}) {
    const auto kernels = read_cubin(bytes);
    ASSERT_FALSE(kernels.ok());
    EXPECT_EQ(kernels.status().code(), StatusCode::kInvalidFile);
  }
}

// A header that promises sections, and random bytes where they should be. A buffer of its exact
// size lets the address sanitizer of the checked build see a read outside.
TEST(Cubin, RandomSectionsNeverReachOutside) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 20000; ++round) {
    const size_t size = 64 + random() % 512;
    const std::unique_ptr<char[]> bytes(new char[size]);
    for (size_t i = 0; i < size; ++i)
      bytes[i] = static_cast<char>(random() % 4 == 0 ? random() : 0);
    const uint16_t machine = 190, header = 64, count = static_cast<uint16_t>(random() % 6);
    const uint16_t names = static_cast<uint16_t>(random() % 3);
    const uint64_t offset = random() % size;
    std::memcpy(bytes.get(),
                "\x7f"
                "ELF",
                4);
    std::memcpy(bytes.get() + 18, &machine, 2);
    std::memcpy(bytes.get() + 40, &offset, 8);
    std::memcpy(bytes.get() + 58, &header, 2);
    std::memcpy(bytes.get() + 60, &count, 2);
    std::memcpy(bytes.get() + 62, &names, 2);
    (void)read_cubin(std::string_view(bytes.get(), size));
  }
}

}  // namespace
}  // namespace moray::gpu
