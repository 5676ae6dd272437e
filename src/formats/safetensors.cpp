// Checking a safetensors header whole, in the order in which its numbers may be trusted.
//
// Source of the format: the safetensors README (u64 little-endian header length, JSON header of at
// most 100 MB starting with '{', data_offsets relative to the end of the header, no holes).
#include "src/formats/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "src/formats/json_fields.h"

namespace moray {
namespace {

namespace dom = simdjson::dom;

constexpr uint64_t kHeaderBytesMax = 100'000'000;  // the cap of the reference implementation
constexpr uint64_t kLengthBytes = 8;
constexpr size_t kDepthMax = 8;  // root, tensor, list: 3, and room to say what is wrong
constexpr size_t kRankMax = 8;

constexpr std::array kDTypes = {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3,
                                DType::kU8,  DType::kI32, DType::kI64};

Status invalid(const std::string& path, const std::string& what) {
  return Status(StatusCode::kInvalidFile, fmt::format("{}: {}", path, what));
}

// Length of the JSON text, or why it cannot be one.
Result<uint64_t> header_length(std::span<const std::byte> bytes, uint64_t file_bytes,
                               const std::string& path) {
  const uint64_t available = std::min<uint64_t>(bytes.size(), file_bytes);
  if (available < kLengthBytes) {
    return invalid(path,
                   fmt::format("header length: found a file of {} bytes, expected at least {}",
                               available, kLengthBytes));
  }
  uint64_t length = 0;
  for (size_t index = 0; index < kLengthBytes; ++index) {
    length |= std::to_integer<uint64_t>(bytes[index]) << (8 * index);
  }
  if (length < 2 || length > kHeaderBytesMax) {
    return invalid(path, fmt::format("header length: found {}, expected 2..{} bytes", length,
                                     kHeaderBytesMax));
  }
  if (length > available - kLengthBytes) {
    return invalid(path, fmt::format("header length: found {}, expected at most the {} bytes that "
                                     "follow it",
                                     length, available - kLengthBytes));
  }
  return length;
}

std::string dtype_choices() {
  std::vector<std::string_view> names;
  for (DType dtype : kDTypes) names.push_back(dtype_name(dtype));
  return fmt::format("one of {}", fmt::join(names, ", "));
}

Result<DType> parse_dtype(dom::element element, const std::string& where) {
  std::string_view name;
  if (!element.get_string().get(name)) {
    for (DType dtype : kDTypes) {
      if (dtype_name(dtype) == name) return dtype;
    }
  }
  return invalid(where,
                 fmt::format("dtype: found {}, expected {}", describe(element), dtype_choices()));
}

Result<std::vector<int64_t>> parse_shape(dom::element element, const std::string& where) {
  dom::array array;
  if (element.get_array().get(array)) {
    return invalid(where,
                   fmt::format("shape: found {}, expected a list of sizes", describe(element)));
  }
  std::vector<int64_t> shape;
  for (dom::element item : array) {
    int64_t size = 0;
    if (item.get_int64().get(size) || size < 0) {
      return invalid(where, fmt::format("shape[{}]: found {}, expected a size of 0..2^63-1",
                                        shape.size(), describe(item)));
    }
    if (shape.size() == kRankMax) {
      return invalid(where, fmt::format("shape: found more than {} dimensions, expected at most {}",
                                        kRankMax, kRankMax));
    }
    shape.push_back(size);
  }
  return shape;
}

// Reads data_offsets: [begin, end) within `data_bytes`.
Status parse_offsets(dom::element element, uint64_t data_bytes, const std::string& where,
                     TensorEntry& entry) {
  dom::array array;
  if (element.get_array().get(array)) {
    return invalid(where,
                   fmt::format("data_offsets: found {}, expected [begin, end]", describe(element)));
  }
  uint64_t offsets[2] = {};
  size_t count = 0;
  for (dom::element item : array) {
    if (count == 2) {
      return invalid(where, "data_offsets: found more than 2 numbers, expected [begin, end]");
    }
    if (item.get_uint64().get(offsets[count])) {
      return invalid(where, fmt::format("data_offsets[{}]: found {}, expected a byte offset", count,
                                        describe(item)));
    }
    ++count;
  }
  if (count != 2) {
    return invalid(where,
                   fmt::format("data_offsets: found {} numbers, expected [begin, end]", count));
  }
  if (offsets[0] > offsets[1] || offsets[1] > data_bytes) {
    return invalid(where, fmt::format("data_offsets: found [{}, {}], expected begin <= end <= {}, "
                                      "the data bytes in the file",
                                      offsets[0], offsets[1], data_bytes));
  }
  entry.begin = offsets[0];
  entry.end = offsets[1];
  return Status();
}

// Bytes the tensor's shape and dtype ask for must be those its offsets span.
Status check_span(const TensorEntry& entry, const std::string& where) {
  int64_t bytes = dtype_bytes(entry.dtype);
  for (int64_t size : entry.shape) {
    if (__builtin_mul_overflow(bytes, size, &bytes)) {
      return invalid(where, fmt::format("shape: found [{}], expected fewer than 2^63 bytes",
                                        fmt::join(entry.shape, ", ")));
    }
  }
  if (static_cast<uint64_t>(bytes) != entry.end - entry.begin) {
    return invalid(where, fmt::format("data_offsets: found a span of {} bytes, expected {} for {} "
                                      "[{}]",
                                      entry.end - entry.begin, bytes, dtype_name(entry.dtype),
                                      fmt::join(entry.shape, ", ")));
  }
  return Status();
}

Result<TensorEntry> parse_tensor(dom::element element, uint64_t data_bytes,
                                 const std::string& where) {
  dom::object object;
  if (element.get_object().get(object)) {
    return invalid(where, fmt::format("found {}, expected an object", describe(element)));
  }
  Complaints complaints;
  const JsonFields fields(object, "", complaints);
  RETURN_IF_ERROR(complaints.status(where));
  for (std::string_view name : {"dtype", "shape", "data_offsets"}) {
    if (!fields.has(name))
      return invalid(where, fmt::format("{}: found nothing, expected it", name));
  }
  TensorEntry entry;
  ASSIGN_OR_RETURN(entry.dtype, parse_dtype(*fields.find("dtype"), where));
  ASSIGN_OR_RETURN(entry.shape, parse_shape(*fields.find("shape"), where));
  RETURN_IF_ERROR(parse_offsets(*fields.find("data_offsets"), data_bytes, where, entry));
  RETURN_IF_ERROR(check_span(entry, where));
  return entry;
}

Status parse_metadata(dom::element element, const std::string& path, SafetensorsHeader& header) {
  dom::object object;
  if (element.get_object().get(object)) {
    return invalid(path,
                   fmt::format("__metadata__: found {}, expected an object", describe(element)));
  }
  for (auto [key, value] : object) {
    std::string_view text;
    if (value.get_string().get(text)) {
      return invalid(path, fmt::format("__metadata__ {}: found {}, expected a string",
                                       in_quotes(key), describe(value)));
    }
    if (!header.metadata.emplace(key, text).second) {
      return invalid(path,
                     fmt::format("__metadata__ {}: found twice, expected once", in_quotes(key)));
    }
  }
  return Status();
}

// The spans, sorted, must follow each other from 0 to the end without holes or overlaps.
Status check_tiling(const SafetensorsHeader& header, uint64_t data_bytes, const std::string& path) {
  using Named = std::pair<const std::string, TensorEntry>;
  std::vector<const Named*> order;
  order.reserve(header.tensors.size());
  for (const Named& named : header.tensors) order.push_back(&named);
  std::sort(order.begin(), order.end(), [](const Named* left, const Named* right) {
    return std::pair(left->second.begin, left->second.end) <
           std::pair(right->second.begin, right->second.end);
  });
  uint64_t cursor = 0;
  for (const Named* named : order) {
    if (named->second.begin != cursor) {
      return invalid(path, fmt::format("tensor {}: data_offsets: found begin {}, expected {}: {}",
                                       in_quotes(named->first), named->second.begin, cursor,
                                       named->second.begin < cursor ? "it overlaps another tensor"
                                                                    : "there is a gap before it"));
    }
    cursor = named->second.end;
  }
  if (cursor != data_bytes) {
    return invalid(path, fmt::format("data: found {} bytes, expected the {} that the tensors cover",
                                     data_bytes, cursor));
  }
  return Status();
}

}  // namespace

Result<SafetensorsHeader> parse_safetensors_header(std::span<const std::byte> bytes,
                                                   uint64_t file_bytes, const std::string& path) {
  ASSIGN_OR_RETURN(const uint64_t length, header_length(bytes, file_bytes, path));
  const char* text = reinterpret_cast<const char*>(bytes.data()) + kLengthBytes;
  if (text[0] != '{') {
    return invalid(path, fmt::format("header: found {} first, expected '{{'",
                                     in_quotes(std::string_view(text, 1))));
  }
  ASSIGN_OR_RETURN(const auto document, parse_json_object({text, static_cast<size_t>(length)},
                                                          path + ": header", kDepthMax));
  SafetensorsHeader header;
  header.data_offset = kLengthBytes + length;
  const uint64_t data_bytes = file_bytes - header.data_offset;
  bool has_metadata = false;
  for (auto [key, value] : document->root) {
    if (key == "__metadata__") {
      if (std::exchange(has_metadata, true)) {
        return invalid(path, "__metadata__: found twice, expected once");
      }
      RETURN_IF_ERROR(parse_metadata(value, path, header));
      continue;
    }
    const std::string where = fmt::format("{}: tensor {}", path, in_quotes(key));
    ASSIGN_OR_RETURN(TensorEntry entry, parse_tensor(value, data_bytes, where));
    if (!header.tensors.emplace(key, std::move(entry)).second) {
      return invalid(where, "found twice, expected once");
    }
  }
  RETURN_IF_ERROR(check_tiling(header, data_bytes, path));
  return header;
}

Result<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  ASSIGN_OR_RETURN(MappedFile file, MappedFile::open(path));
  ASSIGN_OR_RETURN(SafetensorsHeader header,
                   parse_safetensors_header(file.data(), file.data().size(), path));
  return SafetensorsFile(std::move(file), std::move(header));
}

std::span<const std::byte> SafetensorsFile::bytes(const TensorEntry& entry) const {
  CHECK(entry.begin <= entry.end, entry.begin, entry.end);
  return file_.data().subspan(header_.data_offset + entry.begin, entry.end - entry.begin);
}

}  // namespace moray
