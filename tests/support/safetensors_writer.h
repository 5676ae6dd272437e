// Writes safetensors files for tests: valid ones from tensors, hostile ones from any header text.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/tensor/dtype.h"

namespace moray {

struct TestTensor {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::string bytes;  // must have the size that dtype and shape ask for, if the file is to be valid
};
using TestTensors = std::map<std::string, TestTensor>;

inline int64_t test_element_count(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (int64_t size : shape) count *= size;
  return count;
}

// A tensor of `shape` whose bytes are all zero.
inline TestTensor zero_tensor(DType dtype, std::vector<int64_t> shape) {
  const int64_t bytes = test_element_count(shape) * dtype_bytes(dtype);
  return TestTensor{dtype, std::move(shape), std::string(static_cast<size_t>(bytes), '\0')};
}

inline TestTensor f32_tensor(std::vector<int64_t> shape, std::span<const float> values) {
  TestTensor tensor{DType::kF32, std::move(shape), std::string(values.size() * 4, '\0')};
  std::memcpy(tensor.bytes.data(), values.data(), tensor.bytes.size());
  return tensor;
}

// Eight length bytes (little-endian) of any value.
inline std::string length_bytes(uint64_t length) {
  std::string bytes(8, '\0');
  for (int index = 0; index < 8; ++index) {
    bytes[index] = static_cast<char>(static_cast<uint8_t>(length >> (8 * index)));
  }
  return bytes;
}

// A file with this header text and data, whatever they say.
inline std::string raw_safetensors(std::string_view header, std::string_view data) {
  return length_bytes(header.size()) + std::string(header) + std::string(data);
}

// A valid file: tensors in name order, offsets tiling the data. Names must need no JSON escapes.
inline std::string safetensors_content(const TestTensors& tensors) {
  std::string header = "{\"__metadata__\":{\"format\":\"pt\"}";
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    header += fmt::format(R"(,"{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", name,
                          dtype_name(tensor.dtype), fmt::join(tensor.shape, ","), data.size(),
                          data.size() + tensor.bytes.size());
    data += tensor.bytes;
  }
  header += "}";
  header.append((8 - header.size() % 8) % 8, ' ');
  return raw_safetensors(header, data);
}

// The text of an index that says which shard holds which tensor.
inline std::string index_content(const std::map<std::string, std::string>& shard_of_tensor) {
  std::string entries;
  for (const auto& [tensor, shard] : shard_of_tensor) {
    entries += fmt::format(R"({}"{}":"{}")", entries.empty() ? "" : ",", tensor, shard);
  }
  return fmt::format(R"({{"metadata":{{"total_size":0}},"weight_map":{{{}}}}})", entries);
}

}  // namespace moray
