// Fuzz entry: the safetensors header. An accepted file's spans must tile its data, by a check that
// shares nothing with the parser's own; a refused one must have a one-line reason.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "src/formats/safetensors.h"
#include "tests/fuzz/fuzz_entry.h"
#include "tests/support/safetensors_writer.h"

namespace moray {
namespace {

// Marks each byte with the tensor that covers it: none free, none twice.
void check_tiling(const SafetensorsHeader& header, uint64_t file_bytes) {
  CHECK(header.data_offset <= file_bytes, header.data_offset, file_bytes);
  std::vector<bool> covered(file_bytes - header.data_offset);
  for (const auto& [name, tensor] : header.tensors) {
    CHECK(tensor.begin <= tensor.end && tensor.end <= covered.size(), name);
    for (uint64_t byte = tensor.begin; byte < tensor.end; ++byte) {
      CHECK(!covered[byte], name, byte);
      covered[byte] = true;
    }
    long double bytes = static_cast<long double>(dtype_bytes(tensor.dtype));
    for (int64_t size : tensor.shape) bytes *= static_cast<long double>(size);
    CHECK(bytes == static_cast<long double>(tensor.end - tensor.begin), name);
  }
  CHECK(std::find(covered.begin(), covered.end(), false) == covered.end());
}

void check_file(const std::string& file) {
  const auto header =
      parse_safetensors_header({reinterpret_cast<const std::byte*>(file.data()), file.size()},
                               file.size(), "fuzz.safetensors");
  if (header.ok()) {
    check_tiling(*header, file.size());
  } else {
    const std::string& message = header.status().message();
    CHECK(message.starts_with("fuzz.safetensors: "), message);
    CHECK(message.find('\n') == message.npos, message);
  }
}

}  // namespace

std::vector<std::string> fuzz_seeds() {
  return {
      raw_safetensors("{}", ""),
      safetensors_content({{"a", zero_tensor(DType::kF32, {})}}),
      safetensors_content({{"model.embed_tokens.weight", zero_tensor(DType::kBF16, {4, 8})},
                           {"model.layers.0.q.weight", zero_tensor(DType::kF8E4M3, {16, 8})},
                           {"model.layers.0.q.weight_scale_inv", zero_tensor(DType::kF32, {1, 1})},
                           {"none", zero_tensor(DType::kI64, {3, 0})}}),
      raw_safetensors(
          R"({"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", ""),
  };
}

}  // namespace moray

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string file(reinterpret_cast<const char*>(data), size);
  moray::check_file(file);
  // Again with a header length that fits the last brace, or few mutations get past the length.
  const size_t brace = file.rfind('}');
  if (brace != file.npos && brace > 8) {
    moray::check_file(moray::length_bytes(brace - 7) + file.substr(8));
  }
  return 0;
}
