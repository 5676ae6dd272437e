// The forward pass of one sequence on a GPU: blocks of a prompt, decode steps, greedy decoding.
//
// Invariant: everything is allocated and captured in create(); afterwards no call allocates device
// or pinned memory, and a step makes no heap allocation. A step of 1..16 tokens is one captured
// graph that reads its tokens and position from device memory; its bits do not depend on how a
// sequence was cut into steps. Blocks (more than 16 tokens) sum in another order and, with W8A8,
// quantise activations. One GpuForward is used by one thread at a time.
#pragma once

#include <array>
#include <functional>

#include "src/model/gpu_block.h"

namespace moray {

struct GpuForwardOptions {
  int64_t capacity = 0;
  int64_t block_tokens = 0;                  // a multiple of 64, at most cuda::kPrefillTokensMax
  bool use_w8a8 = true;                      // where the model has it; false: BF16 activations
  std::span<const int32_t> sampleable = {};  // ascending ids that greedy decoding may pick
};

// One kernel of a step, timed alone.
struct GpuStageTime {
  const char* name;
  int64_t launches;  // a step
  double seconds;    // of one launch
  int64_t bytes;     // that one launch must move
  double operations;
};

class GpuForward {
 public:
  // Device memory of state and buffers.
  static int64_t bytes_needed(const ModelConfig& config, const GpuKernels& kernels,
                              int64_t capacity, int64_t block_tokens);
  // Errors: kExhausted, kIo.
  static Result<std::unique_ptr<GpuForward>> create(std::shared_ptr<const GpuModel> model,
                                                    const GpuForwardOptions& options);
  ~GpuForward();

  GpuState& state() { return state_; }
  gpu::Stream& stream() { return *stream_; }
  int64_t block_tokens() const { return workspace_.block_tokens; }
  // Whether blocks quantise activations to FP8; only where the model has the kernels.
  bool uses_w8a8() const { return use_w8a8_; }
  void use_w8a8(bool use) { use_w8a8_ = use && model_->kernels.has_w8a8; }

  // As forward() in model.h, for 1..block_tokens tokens. An error (kIo: the device was lost) leaves
  // the state without meaning.
  Status forward(std::span<const int32_t> tokens, int64_t logit_rows, float* logits);

  // As StepModel::decode_greedily (src/generate/step_model.h). The device picks each next token and
  // goes on; the host reads the picks from pinned memory and is up to two steps behind. Steps that
  // ran past a refused pick are undone.
  Status decode_greedily(int32_t first, int64_t count, float* logits,
                         const std::function<bool(int32_t)>& take);

  // Times each kernel of a one-token step at the state's position, the layers in turn. The state
  // has no meaning afterwards.
  Result<std::vector<GpuStageTime>> measure_stages();
  // Seconds of a kernel that reads `bytes` of the weights and does nothing else.
  Result<double> measure_read_seconds(int64_t bytes);

 private:
  explicit GpuForward(std::shared_ptr<const GpuModel> model) : model_(std::move(model)) {}
  Status prepare(const GpuForwardOptions& options);
  Status capture_steps();
  Status upload_sampleable(std::span<const int32_t> sampleable);
  void upload_step(std::span<const int32_t> tokens);
  Status run_step(std::span<const int32_t> tokens, int64_t logit_rows, float* logits);
  Status run_block(std::span<const int32_t> tokens, int64_t logit_rows, float* logits);
  Status read_logits(int64_t rows, float* logits);
  bool may_run_ahead(int64_t position) const;
  Result<int32_t> wait_for_pick(int64_t position);
  Result<double> time_graph(int64_t launches, const std::function<void()>& enqueue);

  std::shared_ptr<const GpuModel> model_;
  std::unique_ptr<gpu::Stream> stream_;
  std::unique_ptr<gpu::Event> start_, stop_;
  GpuState state_;
  GpuWorkspace workspace_;
  cuda::Sampleable sampleable_{};
  bool use_w8a8_ = true;
  std::optional<GpuStep> step_;
  // Pinned: what the host hands over or reads.
  gpu::PinnedMemory pinned_;
  cuda::Step* next_step_ = nullptr;
  int32_t* block_ids_ = nullptr;        // [block_tokens]
  float* logits_ = nullptr;             // [16, V]
  unsigned long long* ring_ = nullptr;  // of picks, by position
  std::array<std::unique_ptr<gpu::Graph>, cuda::kStepTokensMax + 1> steps_;  // by token count
  std::unique_ptr<gpu::Graph> greedy_step_;
};

}  // namespace moray
