// Oracles of embed and rms_norm, and the scalar helpers the other oracles share.
#include <cmath>
#include <cstring>

#include "src/base/check.h"
#include "src/kernels/ref/ref.h"

namespace moray::ref {

namespace {

// Element `index` of an array that may be unaligned.
template <typename T>
T load(const void* data, int64_t index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(data) + index * int64_t{sizeof(T)}, sizeof(T));
  return value;
}

}  // namespace

double weight_at(const MatrixView& weight, int64_t row, int64_t col) {
  const int64_t index = row * weight.cols + col;
  switch (weight.dtype) {
    case DType::kF32:
      return load<float>(weight.data, index);
    case DType::kF16:
      return f16_to_float(load<uint16_t>(weight.data, index));
    case DType::kBF16:
      return bf16_to_float(load<uint16_t>(weight.data, index));
    case DType::kF8E4M3: {
      const int64_t block = row / kScaleBlock * weight.scale_cols() + col / kScaleBlock;
      return double{f8e4m3_to_float(load<uint8_t>(weight.data, index))} * weight.scales[block];
    }
    default:
      break;
  }
  CHECK(false, "no weight has dtype", dtype_name(weight.dtype));
  return 0;
}

float round_to(Precision precision, double value) {
  const auto single = static_cast<float>(value);
  return precision == Precision::kBfloat16 ? round_to_bf16(single) : single;
}

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}
double silu(double x) {
  return x / (1 + std::exp(-x));
}

void embed(const EmbedArgs& args) {
  const int64_t hidden = args.table.cols;
  for (size_t t = 0; t < args.tokens.size(); ++t) {
    const int64_t row = args.tokens[t];
    CHECK(row >= 0 && row < args.table.rows, row, args.table.rows);
    for (int64_t i = 0; i < hidden; ++i) {
      args.out[int64_t(t) * hidden + i] = static_cast<float>(weight_at(args.table, row, i));
    }
  }
}

void rms_norm(const RmsNormArgs& args) {
  for (int64_t r = 0; r < args.rows; ++r) {
    const float* x = args.x + r * args.dim;
    float* out = args.out + r * args.dim;
    double squares = 0;
    for (int64_t i = 0; i < args.dim; ++i) squares += double{x[i]} * x[i];
    const double factor = 1 / std::sqrt(squares / double(args.dim) + args.eps);
    for (int64_t i = 0; i < args.dim; ++i) {
      out[i] = args.kind == NormKind::kZeroCentred
                   ? round_to(args.precision, x[i] * factor * (1.0 + args.weight[i]))
                   : round_to(args.precision,
                              double{args.weight[i]} * round_to(args.precision, x[i] * factor));
    }
  }
}

}  // namespace moray::ref
