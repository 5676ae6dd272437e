// Bisection over the state's size; see context_plan.h.
#include "src/generate/context_plan.h"

#include <fmt/core.h>

#include <algorithm>

namespace moray {
namespace {

// Without a wish, fewer tokens than this are refused rather than served: no useful prompt fits.
constexpr int64_t kUsefulTokensMin = 256;

double mebibytes(int64_t bytes) {
  return static_cast<double>(bytes) / (1 << 20);
}

int64_t largest_fitting(const ContextQuestion& question, int64_t budget_bytes) {
  int64_t fits = 0;
  int64_t too_many = question.max_positions + 1;
  while (too_many - fits > 1) {
    const int64_t middle = fits + (too_many - fits) / 2;
    (question.state_bytes(middle) <= budget_bytes ? fits : too_many) = middle;
  }
  return fits;
}

Status refusal(const ContextQuestion& question, int64_t wanted, int64_t room_bytes) {
  const int64_t fitting = room_bytes > 0 ? largest_fitting(question, room_bytes) : 0;
  const std::string advice =
      fitting > 0 ? fmt::format("a context of {} would fit", fitting) : "no context would fit";
  return Status(
      StatusCode::kExhausted,
      fmt::format(
          "memory: found {:.1f} MiB available, expected {:.1f} MiB for a context "
          "of {} tokens ({:.1f} weights, {:.1f} workspace, {:.1f} state); {}",
          mebibytes(question.available_bytes),
          mebibytes(question.weight_bytes + question.fixed_bytes + question.state_bytes(wanted)),
          wanted, mebibytes(question.weight_bytes), mebibytes(question.fixed_bytes),
          mebibytes(question.state_bytes(wanted)), advice));
}

}  // namespace

Result<int64_t> plan_context(const ContextQuestion& question) {
  if (question.requested < 0 || question.requested > question.max_positions) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("context: found {} tokens, expected 1 to {} (the model's "
                              "max_position_embeddings)",
                              question.requested, question.max_positions));
  }
  const int64_t room = question.available_bytes - question.weight_bytes - question.fixed_bytes;
  if (question.requested > 0) {
    if (question.state_bytes(question.requested) <= room) return question.requested;
    return refusal(question, question.requested, room);
  }
  const int64_t fitting = room > 0 ? largest_fitting(question, room / question.share_divisor) : 0;
  const int64_t needed = std::min(kUsefulTokensMin, question.max_positions);
  if (fitting < needed) return refusal(question, needed, room);
  return fitting;
}

}  // namespace moray
