// TensorBinder: the config's promises against the tensors, one line for each that is broken.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "src/formats/checkpoint.h"

namespace moray {

// What a lookup asks of a tensor.
struct TensorBinder::Demand {
  std::vector<int64_t> shape;
  bool may_be_fp8 = false;
};

namespace {

bool is_float_dtype(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
}

int64_t element_count(std::span<const int64_t> shape) {
  int64_t count = 1;
  for (int64_t size : shape) count *= size;
  return count;
}

// Element `index` of unaligned bytes, exactly.
float element(const std::byte* bytes, DType dtype, int64_t index) {
  if (dtype == DType::kF32) {
    float value;
    std::memcpy(&value, bytes + 4 * index, 4);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, bytes + 2 * index, 2);
  return dtype == DType::kBF16 ? bf16_to_float(bits) : f16_to_float(bits);
}

int64_t block_count(int64_t size) {
  return (size + kScaleBlock - 1) / kScaleBlock;
}

}  // namespace

TensorBinder::TensorBinder(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

std::optional<Checkpoint::Tensor> TensorBinder::demand(const std::string& name,
                                                       const Demand& demand) {
  const bool complain_now = asked_.insert(name).second;
  const auto fail = [&](const std::string& found, const std::string& expected) {
    if (complain_now) {
      complaints_.add(fmt::format("{}: found {}, expected {}", name, found, expected));
    }
    return std::nullopt;
  };
  const std::string shape = fmt::format("[{}]", fmt::join(demand.shape, ", "));
  const auto tensor = checkpoint_.find(name);
  if (!tensor) return fail("nothing", "a tensor of shape " + shape);
  if (!std::equal(demand.shape.begin(), demand.shape.end(), tensor->shape.begin(),
                  tensor->shape.end())) {
    return fail(fmt::format("shape [{}]", fmt::join(tensor->shape, ", ")), shape);
  }
  const bool fits =
      is_float_dtype(tensor->dtype) || (demand.may_be_fp8 && tensor->dtype == DType::kF8E4M3);
  if (!fits) {
    return fail(fmt::format("dtype {}", dtype_name(tensor->dtype)),
                demand.may_be_fp8 ? "F32, BF16, F16 or F8_E4M3" : "F32, BF16 or F16");
  }
  return tensor;
}

// Copies as FP32 into storage_; null, with a complaint, when a value is not finite.
const float* TensorBinder::widen(const Checkpoint::Tensor& tensor, bool complain_now) {
  const int64_t count = element_count(tensor.shape);
  auto values = std::make_unique_for_overwrite<float[]>(static_cast<size_t>(count));
  for (int64_t index = 0; index < count; ++index) {
    values[index] = element(tensor.bytes.data(), tensor.dtype, index);
    if (std::isfinite(values[index])) continue;
    if (complain_now) {
      complaints_.add(fmt::format("{}: found {} at element {}, expected finite values", tensor.name,
                                  values[index], index));
    }
    return nullptr;
  }
  storage_.push_back(std::move(values));
  return storage_.back().get();
}

void TensorBinder::read_scales(const std::string& name, MatrixView& matrix) {
  const std::string scale_name = name + "_scale_inv";
  if (matrix.dtype != DType::kF8E4M3) {
    if (has(scale_name) && asked_.insert(scale_name).second) {
      complaints_.add(fmt::format("{}: found beside a weight of dtype {}, expected F8_E4M3",
                                  scale_name, dtype_name(matrix.dtype)));
    }
    return;
  }
  const bool complain_now = !asked_.contains(scale_name);
  const auto scales =
      demand(scale_name, {{block_count(matrix.rows), block_count(matrix.cols)}, false});
  matrix.scales = scales ? widen(*scales, complain_now) : nullptr;
  if (matrix.scales != nullptr) {
    const auto values = std::span(matrix.scales, element_count(scales->shape));
    const auto bad = std::find_if(values.begin(), values.end(), [](float v) { return v < 0; });
    if (bad != values.end() && complain_now) {
      complaints_.add(fmt::format("{}: found {} at element {}, expected scales of at least 0",
                                  scale_name, *bad, bad - values.begin()));
    }
    if (bad != values.end()) matrix.scales = nullptr;
  }
  if (matrix.scales == nullptr) matrix = MatrixView();
}

MatrixView TensorBinder::matrix(const std::string& name, int64_t rows, int64_t cols) {
  const auto tensor = demand(name, {{rows, cols}, true});
  if (!tensor) return MatrixView();
  MatrixView view{tensor->bytes.data(), nullptr, rows, cols, tensor->dtype};
  read_scales(name, view);
  return view;
}

MatrixView TensorBinder::matrix_unquantised(const std::string& name, int64_t rows, int64_t cols) {
  const auto tensor = demand(name, {{rows, cols}, false});
  if (!tensor) return MatrixView();
  return MatrixView{tensor->bytes.data(), nullptr, rows, cols, tensor->dtype};
}

MatrixView TensorBinder::fused_slice(const std::string& name, int64_t index, int64_t count,
                                     int64_t row_begin, int64_t row_count, int64_t rows,
                                     int64_t cols) {
  CHECK(index >= 0 && index < count, index, count);
  CHECK(row_begin >= 0 && row_count >= 0 && row_begin + row_count <= rows, row_begin, row_count);
  const auto tensor = demand(name, {{count, rows, cols}, false});
  if (!tensor) return MatrixView();
  const int64_t first = (index * rows + row_begin) * cols * dtype_bytes(tensor->dtype);
  return MatrixView{tensor->bytes.data() + first, nullptr, row_count, cols, tensor->dtype};
}

std::span<const float> TensorBinder::widened(const std::string& name, std::vector<int64_t> shape) {
  const bool complain_now = !asked_.contains(name);
  const size_t count = static_cast<size_t>(element_count(shape));
  const auto tensor = demand(name, {std::move(shape), false});
  const float* values = tensor ? widen(*tensor, complain_now) : nullptr;
  return values ? std::span(values, count) : std::span<const float>();
}

std::vector<std::string_view> TensorBinder::unused() const {
  std::vector<std::string_view> names = checkpoint_.names();
  std::erase_if(names, [&](std::string_view name) { return asked_.contains(std::string(name)); });
  return names;
}

Status TensorBinder::finish() const {
  return complaints_.status(checkpoint_.folder() + ": tensors disagree with config.json");
}

}  // namespace moray
