// Questions about models on disk: where one is, which there are, what one holds.
//
// Nothing here loads weights or reads the environment: folders to search come from the caller, and
// model_info() reads config.json, the shard headers and the model card only; device_fits() asks the
// GPU driver besides.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/base/status.h"

namespace moray {

// Where models are looked for by name.
struct ModelPlaces {
  std::vector<std::string> model_folders;  // "models": each folder in them is a model
  std::vector<std::string> hub_folders;    // Hugging Face hub caches ("~/.cache/huggingface/hub")
};

// The model folder that `name` means: an existing folder, else a folder below one of
// `model_folders`, else an id "org/name" (or "org/name@revision") of a hub cache, whose refs/main
// (or revision) leads to the snapshot. kNotFound lists where it was looked for; kInvalidFile says
// what the thing found is not. Order of the lists is order of preference.
Result<std::string> resolve_model(const std::string& name, const ModelPlaces& places);

struct FoundModel {
  std::string name;    // what resolve_model() takes
  std::string folder;  // what it gives
};
// Every folder with a config.json in the places, sorted by name within each place.
std::vector<FoundModel> list_models(const ModelPlaces& places);

// Tensors of one part of the model and one dtype. Block scales count as bytes and tensors of the
// part they scale, not as parameters.
struct ModelPart {
  std::string part;   // "embedding", "attention", "delta net", "routed experts", "mtp", ...
  std::string dtype;  // as safetensors writes it
  int64_t tensors = 0;
  int64_t parameters = 0;
  int64_t bytes = 0;
};

struct ModelInfo {
  std::string folder;
  std::string model_type;
  std::string licence;  // from the card's front matter; empty when it says none

  int64_t layers = 0;
  int64_t delta_layers = 0;  // the rest attends fully
  int64_t hidden = 0;
  int64_t vocab_rows = 0;
  int64_t context = 0;
  int64_t heads = 0, kv_heads = 0, head_dim = 0, rotary_dim = 0;
  int64_t delta_key_heads = 0, delta_value_heads = 0, delta_key_dim = 0, delta_value_dim = 0;
  int64_t experts = 0, top_k = 0, expert_dim = 0, shared_expert_dim = 0;
  bool block_fp8 = false;
  bool tied_embeddings = false;

  // By the config: trunk with embedding and head, MTP and vision not counted. Active is what a
  // token's decode step multiplies with: top-k experts, no embedding, the head included.
  int64_t parameters_total = 0;
  int64_t parameters_active = 0;
  int64_t parameters_mtp = 0;  // 0 when the config promises no MTP layer
  // By the headers, in the same senses; different from the config's when tensors are missing.
  int64_t parameters_stored = 0;
  int64_t parameters_stored_mtp = 0;

  int64_t shards = 0;
  int64_t tensors = 0;
  int64_t bytes = 0;             // of all tensors
  std::vector<ModelPart> parts;  // in the order of a forward pass, then by dtype
};

// Errors as opening the checkpoint gives them: not a model folder, unknown architecture, bad
// header.
Result<ModelInfo> model_info(const std::string& folder);

// A GPU of this machine and what it would have to hold.
struct DeviceFit {
  std::string name;          // "cuda:0 NVIDIA H200 (sm_90)"
  int64_t memory_bytes = 0;  // of the device
  int64_t free_bytes = 0;    // at this moment; 0 when it cannot be asked
  int64_t weight_bytes = 0;  // the model's, as laid out on a GPU, by config.json alone
  std::string refusal;       // why the model does not run there; empty when it does
};
// Errors: config.json's; no driver, a driver too old, no GPU (kUnsupported, in one sentence).
Result<std::vector<DeviceFit>> device_fits(const std::string& folder);

}  // namespace moray
