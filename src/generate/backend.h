// Where a model computes: the one thing that differs between the CPU and a GPU, as data and a few
// functions.
//
// Invariant: a Backend that was opened holds everything its sessions need (weights, buffers,
// device) alive through its functions, and has refused whatever it cannot run; what may fail
// afterwards is a device that is lost. Text, sampling and sessions are the same for all
// (engine.cpp, session.cpp).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "moray/engine.h"
#include "src/formats/checkpoint.h"
#include "src/generate/step_model.h"
#include "src/model/model.h"
#include "src/model/weights.h"

namespace moray {

// What is to be run. Random weights have no checkpoint.
struct ModelSource {
  std::string folder;
  ModelConfig config;
  std::shared_ptr<const Checkpoint> checkpoint;
};

struct Backend {
  std::string line;  // Engine::backend_line
  HeadFormat head = HeadFormat::kPublished;
  KvFormat kv = KvFormat::kBf16;
  std::string prompt_activations;  // Engine::prompt_activations
  int64_t context = 0;
  std::vector<std::string> notes;
  std::function<int64_t(int64_t depth)> decode_bytes;
  std::function<Result<std::unique_ptr<StepReader>>(int64_t depth)> step_reader;
  std::function<Result<StepModel>()> new_model;  // of one session
  // Null on the CPU.
  std::function<DeviceFacts()> device_facts;
  std::function<Result<std::vector<StageTime>>(int64_t depth)> measure_stages;
};

// Errors as Engine::open gives them. `tokens_sampleable`: ids a greedy pick may return.
Result<Backend> open_cpu_backend(const ModelSource& source, const EngineOptions& options);
Result<Backend> open_gpu_backend(const ModelSource& source, const EngineOptions& options,
                                 int ordinal, std::span<const TokenId> sampleable);

// Tokens a prefill pass may have at most, on any device.
inline constexpr int64_t kBlockTokensMax = 8192;

inline HeadFormat wanted_head(const EngineOptions& options) {
  return options.fp8_head || options.fast ? HeadFormat::kFp8 : HeadFormat::kPublished;
}

}  // namespace moray
