// One safetensors file: a JSON header that places named tensors in the bytes behind it.
//
// Invariant: a SafetensorsFile that open() returned has been checked whole: every tensor's dtype,
// shape and offsets agree, the spans tile the data section exactly, and no name repeats. Nothing
// proportional to a number in the file is allocated before that number is checked. Names and
// meanings of tensors are checkpoint.h's and the model adapter's concern.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "src/base/mapped_file.h"
#include "src/base/status.h"
#include "src/tensor/dtype.h"

namespace moray {

struct TensorEntry {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  uint64_t begin = 0;  // bytes from the start of the data section
  uint64_t end = 0;
};

struct SafetensorsHeader {
  std::unordered_map<std::string, TensorEntry> tensors;
  std::unordered_map<std::string, std::string> metadata;
  uint64_t data_offset = 0;  // of the data section in the file
};

// Parses the first bytes of a file of `file_bytes` bytes in all; `bytes` must hold at least the
// header. The fuzz entry's target: it touches no file.
Result<SafetensorsHeader> parse_safetensors_header(std::span<const std::byte> bytes,
                                                   uint64_t file_bytes, const std::string& path);

class SafetensorsFile {
 public:
  static Result<SafetensorsFile> open(const std::string& path);
  const SafetensorsHeader& header() const { return header_; }
  const std::string& path() const { return file_.path(); }
  // The bytes of a tensor of this file; valid while this object lives.
  std::span<const std::byte> bytes(const TensorEntry& entry) const;

 private:
  SafetensorsFile(MappedFile file, SafetensorsHeader header)
      : file_(std::move(file)), header_(std::move(header)) {}
  MappedFile file_;
  SafetensorsHeader header_;
};

}  // namespace moray
