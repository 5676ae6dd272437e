#include "src/model/gpu_forward.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

namespace moray {
namespace {

constexpr int64_t kLogitRows = cuda::kStepTokensMax;
constexpr int kRingEntries = 64;
constexpr int64_t kStepsAhead = 2;
// A pick that takes longer than this has been lost with its device, or never will come.
constexpr std::chrono::seconds kPickPatience{10};

int to_int(int64_t value) {
  return static_cast<int>(value);
}

int64_t aligned(int64_t bytes) {
  return (bytes + 255) / 256 * 256;
}

}  // namespace

int64_t GpuForward::bytes_needed(const ModelConfig& config, const GpuKernels& kernels,
                                 int64_t capacity, int64_t block_tokens) {
  return GpuState::bytes_needed(config, kernels.kv(), capacity) +
         GpuWorkspace::bytes_needed(config, kernels, block_tokens);
}

Result<std::unique_ptr<GpuForward>> GpuForward::create(std::shared_ptr<const GpuModel> model,
                                                       const GpuForwardOptions& options) {
  std::unique_ptr<GpuForward> forward(new GpuForward(std::move(model)));
  RETURN_IF_ERROR(forward->prepare(options));
  return forward;
}

GpuForward::~GpuForward() {
  if (stream_ != nullptr) (void)stream_->synchronize();  // nothing may use what is freed now
}

Status GpuForward::prepare(const GpuForwardOptions& options) {
  CHECK(options.block_tokens > 0 && options.block_tokens % kDeltaChunk == 0 &&
            options.block_tokens <= cuda::kPrefillTokensMax,
        options.block_tokens);
  const ModelConfig& c = model_->config;
  const std::shared_ptr<gpu::Device>& device = model_->device;
  use_w8a8(options.use_w8a8);
  ASSIGN_OR_RETURN(stream_, gpu::Stream::create(device));
  ASSIGN_OR_RETURN(start_, gpu::Event::create(device));
  ASSIGN_OR_RETURN(stop_, gpu::Event::create(device));
  ASSIGN_OR_RETURN(state_, GpuState::create(device, c, model_->kernels.kv(), options.capacity));
  ASSIGN_OR_RETURN(
      workspace_, GpuWorkspace::create(device, *stream_, c, model_->kernels, options.block_tokens));
  const int64_t step_bytes = aligned(sizeof(cuda::Step));
  const int64_t id_bytes = aligned(options.block_tokens * 4);
  const int64_t logit_bytes = aligned(kLogitRows * c.vocab_rows * 4);
  ASSIGN_OR_RETURN(pinned_, gpu::PinnedMemory::allocate(
                                device, step_bytes + id_bytes + logit_bytes + 8 * kRingEntries));
  char* next = pinned_.data();
  next_step_ = reinterpret_cast<cuda::Step*>(next);
  block_ids_ = reinterpret_cast<int32_t*>(next += step_bytes);
  logits_ = reinterpret_cast<float*>(next += id_bytes);
  ring_ = reinterpret_cast<unsigned long long*>(next += logit_bytes);
  step_.emplace(*model_, *stream_, workspace_.step, state_);
  RETURN_IF_ERROR(upload_sampleable(options.sampleable));
  return capture_steps();
}

Status GpuForward::upload_sampleable(std::span<const int32_t> sampleable) {
  const int64_t rows = model_->config.vocab_rows;
  std::vector<unsigned> banned(static_cast<size_t>((rows + 31) / 32), ~0u);
  for (const int32_t id : sampleable) banned[static_cast<size_t>(id) / 32] &= ~(1u << (id % 32));
  sampleable_.limit = sampleable.empty() ? 0 : sampleable.back() + 1;
  sampleable_.banned = workspace_.step.banned;
  gpu::copy_to_device(*stream_, workspace_.step.banned, banned.data(),
                      static_cast<int64_t>(banned.size() * sizeof(unsigned)));
  return stream_->synchronize();
}

Status GpuForward::capture_steps() {
  for (int tokens = 1; tokens <= cuda::kStepTokensMax; ++tokens) {
    ASSIGN_OR_RETURN(steps_[static_cast<size_t>(tokens)], gpu::Graph::capture(*stream_, [&] {
                       step_->embed(tokens);
                       step_->layers(tokens);
                     }));
  }
  ASSIGN_OR_RETURN(greedy_step_, gpu::Graph::capture(*stream_, [&] {
                     step_->embed(1);
                     step_->layers(1);
                     step_->head(workspace_.step.residual, 1, 1, sampleable_);
                     step_->pick(sampleable_, ring_, kRingEntries);
                   }));
  return Status();
}

void GpuForward::upload_step(std::span<const int32_t> tokens) {
  next_step_->position = to_int(state_.position());
  next_step_->count = to_int(static_cast<int64_t>(tokens.size()));
  std::copy(tokens.begin(), tokens.end(), next_step_->tokens);
  gpu::copy_to_device(*stream_, workspace_.step.step, next_step_, sizeof(cuda::Step));
}

Status GpuForward::read_logits(int64_t rows, float* logits) {
  const int64_t count = rows * model_->config.vocab_rows;
  gpu::copy_to_host(*stream_, logits_, workspace_.step.logits, count * 4);
  RETURN_IF_ERROR(stream_->synchronize());
  std::copy_n(logits_, count, logits);
  return Status();
}

Status GpuForward::forward(std::span<const int32_t> tokens, int64_t logit_rows, float* logits) {
  const auto count = static_cast<int64_t>(tokens.size());
  CHECK(count > 0 && count <= block_tokens(), count, block_tokens());
  CHECK(state_.position() + count <= state_.capacity(), state_.position(), count);
  CHECK(logit_rows >= 0 && logit_rows <= count, logit_rows, count);
  const bool is_step = count <= cuda::kStepTokensMax;
  RETURN_IF_ERROR(is_step ? run_step(tokens, logit_rows, logits)
                          : run_block(tokens, logit_rows, logits));
  state_.advance(count);
  return Status();
}

Status GpuForward::run_step(std::span<const int32_t> tokens, int64_t logit_rows, float* logits) {
  const int count = to_int(static_cast<int64_t>(tokens.size()));
  upload_step(tokens);
  steps_[tokens.size()]->launch(*stream_);
  if (logit_rows == 0) return stream_->synchronize();
  step_->head(workspace_.step.residual, count, to_int(logit_rows), sampleable_);
  return read_logits(logit_rows, logits);
}

Status GpuForward::run_block(std::span<const int32_t> tokens, int64_t logit_rows, float* logits) {
  const ModelConfig& c = model_->config;
  const auto count = static_cast<int64_t>(tokens.size());
  const GpuBlockBuffers& buffers = workspace_.block;
  std::copy(tokens.begin(), tokens.end(), block_ids_);
  gpu::copy_to_device(*stream_, buffers.tokens, block_ids_, count * 4);
  const GpuBlock block(*model_, *stream_, buffers, *step_, state_, use_w8a8_);
  block.run(to_int(count), to_int(logit_rows));
  for (int64_t row = 0; row < logit_rows; row += kLogitRows) {
    const int rows = to_int(std::min(kLogitRows, logit_rows - row));
    step_->head(buffers.residual + (count - logit_rows + row) * c.hidden, rows, rows, sampleable_);
    RETURN_IF_ERROR(read_logits(rows, logits + row * c.vocab_rows));
  }
  return stream_->synchronize();
}

// Whether a step at `position` may run before anyone has agreed to its token: it, and the one
// before it (whose logits are asked for in the end), must leave a state that can be set back.
bool GpuForward::may_run_ahead(int64_t position) const {
  const bool has_delta = model_->config.count_layers(LayerKind::kGatedDelta) > 0;
  return !has_delta || position % kDeltaChunk >= 2;
}

Result<int32_t> GpuForward::wait_for_pick(int64_t position) {
  auto* entry = ring_ + position % kRingEntries;
  const auto start = std::chrono::steady_clock::now();
  for (int64_t spins = 0;; ++spins) {
    const unsigned long long value = std::atomic_ref(*entry).load(std::memory_order_acquire);
    if (value >> 32 == static_cast<unsigned long long>(position)) {
      return static_cast<int32_t>(value & 0xffffffffu);
    }
    if (spins % 4096 != 4095) continue;
    if (std::chrono::steady_clock::now() - start < kPickPatience) continue;
    RETURN_IF_ERROR(stream_->synchronize());
    const unsigned long long last = std::atomic_ref(*entry).load(std::memory_order_acquire);
    CHECK(last >> 32 == static_cast<unsigned long long>(position), last, position);
  }
}

Status GpuForward::decode_greedily(int32_t first, int64_t count, float* logits,
                                   const std::function<bool(int32_t)>& take) {
  const int64_t start = state_.position();
  CHECK(count >= 1 && start + count <= state_.capacity(), start, count, state_.capacity());
  std::fill_n(ring_, kRingEntries, ~0ull);  // picks of another answer at the same positions
  upload_step({&first, 1});
  int32_t last_consumed = first;
  int64_t launched = 0;
  int64_t taken = 0;
  for (bool goes_on = true; goes_on;) {
    while (launched < count && launched <= taken + kStepsAhead &&
           (launched == taken || may_run_ahead(start + launched))) {
      greedy_step_->launch(*stream_);
      ++launched;
    }
    ASSIGN_OR_RETURN(const int32_t token, wait_for_pick(start + taken + 1));
    ++taken;
    goes_on = take(token) && taken < count;
    if (goes_on) last_consumed = token;
  }
  state_.advance(taken);
  if (launched == taken) return read_logits(1, logits);
  RETURN_IF_ERROR(stream_->synchronize());
  state_.rewind(start + taken - 1);
  return forward({&last_consumed, 1}, 1, logits);
}

}  // namespace moray
