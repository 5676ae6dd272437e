#include "src/model/gpu_check.h"

#include <algorithm>
#include <cmath>

namespace moray {
namespace {

constexpr int64_t kTokens = 64;
constexpr int64_t kRows = 16;  // whose logits are compared
constexpr int64_t kStepTokens = 16;

// Log of the sum of exponentials, or NaN.
double log_sum(const float* row, int64_t count) {
  const double largest = *std::max_element(row, row + count);
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += std::exp(row[i] - largest);
  return largest + std::log(sum);
}

double median_kl(const std::vector<float>& p, const std::vector<float>& q, int64_t rows) {
  const auto width = static_cast<int64_t>(p.size()) / rows;
  std::vector<double> all;
  for (int64_t r = 0; r < rows; ++r) {
    const float* a = p.data() + r * width;
    const float* b = q.data() + r * width;
    const double a_sum = log_sum(a, width);
    const double b_sum = log_sum(b, width);
    double kl = 0;
    for (int64_t i = 0; i < width; ++i) {
      kl += std::exp(a[i] - a_sum) * ((a[i] - a_sum) - (b[i] - b_sum));
    }
    all.push_back(std::isfinite(kl) ? kl : INFINITY);
  }
  std::nth_element(all.begin(), all.begin() + rows / 2, all.end());
  return all[static_cast<size_t>(rows / 2)];
}

// Logits of the last `rows` of `tokens`, fed at most `call_tokens` at a time.
Result<std::vector<float>> run(GpuForward& forward, std::span<const int32_t> tokens,
                               int64_t call_tokens, int64_t rows, int64_t vocab_rows) {
  std::vector<float> logits(static_cast<size_t>(rows * vocab_rows));
  forward.state().rewind(0);
  const auto count = static_cast<int64_t>(tokens.size());
  for (int64_t at = 0; at < count; at += call_tokens) {
    const int64_t size = std::min(call_tokens, count - at);
    const bool is_last = at + size == count;
    RETURN_IF_ERROR(
        forward.forward(tokens.subspan(static_cast<size_t>(at), static_cast<size_t>(size)),
                        is_last ? rows : 0, logits.data()));
  }
  forward.state().rewind(0);
  return logits;
}

}  // namespace

Result<GpuCheck> check_paths(GpuForward& forward, int64_t vocab_rows) {
  const int64_t count = std::min(kTokens, forward.state().capacity());
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i) {
    tokens.push_back(static_cast<int32_t>((i * 7919 + 13) % vocab_rows));
  }
  // The last call of steps is whole, so that its rows are there to compare.
  const int64_t rows = std::min(kRows, (count - 1) % kStepTokens + 1);
  const bool used_w8a8 = forward.uses_w8a8();
  ASSIGN_OR_RETURN(const auto steps, run(forward, tokens, kStepTokens, rows, vocab_rows));
  forward.use_w8a8(false);
  ASSIGN_OR_RETURN(const auto blocks, run(forward, tokens, count, rows, vocab_rows));
  GpuCheck check;
  check.block_kl = median_kl(steps, blocks, rows);
  forward.use_w8a8(used_w8a8);
  if (!used_w8a8) return check;
  ASSIGN_OR_RETURN(const auto quantised, run(forward, tokens, count, rows, vocab_rows));
  check.w8a8_kl = median_kl(steps, quantised, rows);
  return check;
}

}  // namespace moray
