// No number in a hostile file decides how much is allocated: the largest single allocation while
// refusing it stays near the size of the file. Counts through this binary's operator new.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <string>
#include <vector>

#include "src/formats/model_config.h"
#include "src/formats/safetensors.h"
#include "tests/support/config_texts.h"
#include "tests/support/safetensors_writer.h"

namespace {
thread_local size_t largest_allocation = 0;

void* try_counted(size_t size) noexcept {
  largest_allocation = std::max(largest_allocation, size);
  return std::malloc(size == 0 ? 1 : size);
}

void* counted(size_t size) {
  void* memory = try_counted(size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
}  // namespace

void* operator new(size_t size) {
  return counted(size);
}
void* operator new[](size_t size) {
  return counted(size);
}
void* operator new(size_t size, const std::nothrow_t&) noexcept {
  return try_counted(size);
}
void* operator new[](size_t size, const std::nothrow_t&) noexcept {
  return try_counted(size);
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete[](void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, size_t) noexcept {
  std::free(memory);
}

namespace moray {
namespace {

constexpr size_t kSmallBytes = 256 << 10;

TEST(Allocation, B48_HostileHeadersAllocateByTheFileNotByItsNumbers) {
  const auto tensor = [](std::string_view shape, std::string_view offsets) {
    return raw_safetensors(
        fmt::format(R"({{"a":{{"dtype":"F32","shape":{},"data_offsets":{}}}}})", shape, offsets),
        "data");
  };
  const std::vector<std::string> files = {
      length_bytes(99'999'999) + "{}",
      length_bytes(uint64_t{1} << 63) + "{}",
      tensor("[4294967296,4294967296]", "[0,4]"),
      tensor("[1000000000000]", "[0,4000000000000]"),
      tensor("[1]", "[0,9223372036854775807]"),
  };
  for (const std::string& file : files) {
    largest_allocation = 0;
    const auto header = parse_safetensors_header(
        {reinterpret_cast<const std::byte*>(file.data()), file.size()}, file.size(), "x");
    EXPECT_FALSE(header.ok());
    EXPECT_LT(largest_allocation, kSmallBytes) << header.status().message();
  }
}

TEST(Allocation, B48_ConfigNumbersAllocateNothing) {
  for (std::string_view layers : {"1000000000", "9223372036854775807", "-1"}) {
    largest_allocation = 0;
    const auto config =
        parse_model_config(replaced(kTinyConfig, "\"num_hidden_layers\": 2",
                                    fmt::format("\"num_hidden_layers\": {}", layers)),
                           "x");
    EXPECT_FALSE(config.ok());
    EXPECT_LT(largest_allocation, kSmallBytes);
  }
}

// The counter itself must be able to fail.
TEST(Allocation, CounterSeesALargeAllocation) {
  largest_allocation = 0;
  const std::vector<char> large(kSmallBytes * 2);
  EXPECT_GE(largest_allocation, large.size());
}

}  // namespace
}  // namespace moray
