#include "src/cli/compare.h"

#include <algorithm>
#include <cmath>

namespace moray {
namespace {

// Logits that are kept of either engine at a time.
constexpr int64_t kLogitBytes = int64_t{32} << 20;
constexpr int64_t kChunkMax = 1024;

struct Softmax {
  std::span<const float> logits;
  size_t best = 0;
  double log_sum = 0;  // ln of the sum of exponentials; not finite if a logit is not

  explicit Softmax(std::span<const float> row) : logits(row) {
    best = static_cast<size_t>(std::max_element(row.begin(), row.end()) - row.begin());
    double sum = 0;
    for (const float logit : row) sum += std::exp(double{logit} - double{row[best]});
    log_sum = row[best] + std::log(sum);
  }
  double log_probability(size_t id) const { return logits[id] - log_sum; }
};

double kl(const Softmax& p, const Softmax& q) {
  double sum = 0;
  for (size_t id = 0; id < p.logits.size(); ++id) {
    const double log_p = p.log_probability(id);
    sum += std::exp(log_p) * (log_p - q.log_probability(id));
  }
  return sum;
}

}  // namespace

void Divergence::add(const Divergence& other) {
  tokens += other.tokens;
  bits += other.bits;
  reference_bits += other.reference_bits;
  kl += other.kl;
  top_1 += other.top_1;
}

Result<Divergence> compare(Session& reference, Session& option, int64_t vocab_rows,
                           const std::vector<TokenId>& tokens,
                           const std::function<bool(int64_t, int64_t)>& progress) {
  const auto width = static_cast<size_t>(vocab_rows);
  const auto chunk = static_cast<size_t>(
      std::clamp<int64_t>(kLogitBytes / (vocab_rows * 4) / 64 * 64, 64, kChunkMax));
  Divergence sums;
  for (size_t begin = 0; begin + 1 < tokens.size(); begin += chunk) {
    const size_t end = std::min(begin + chunk, tokens.size());
    const std::vector<TokenId> part(tokens.begin() + static_cast<std::ptrdiff_t>(begin),
                                    tokens.begin() + static_cast<std::ptrdiff_t>(end));
    ASSIGN_OR_RETURN(const std::vector<float> p_rows, reference.logits(part));
    ASSIGN_OR_RETURN(const std::vector<float> q_rows, option.logits(part));
    for (size_t i = 0; i < part.size() && begin + i + 1 < tokens.size(); ++i) {
      const Softmax p({p_rows.data() + i * width, width});
      const Softmax q({q_rows.data() + i * width, width});
      const auto next = static_cast<size_t>(tokens[begin + i + 1]);
      sums.add({1, -q.log_probability(next) / std::log(2.0),
                -p.log_probability(next) / std::log(2.0), kl(p, q), p.best == q.best});
    }
    if (!std::isfinite(sums.kl)) {
      return Status(StatusCode::kInvalidFile,
                    "logits: found NaN or infinity, expected finite numbers (damaged weights or a "
                    "numeric overflow)");
    }
    if (progress && !progress(static_cast<int64_t>(end), static_cast<int64_t>(tokens.size()))) {
      return Status(StatusCode::kCancelled, "score: cancelled");
    }
  }
  return sums;
}

}  // namespace moray
