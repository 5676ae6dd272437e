// A Hugging Face model folder: config.json, the shards, and one name table over all of them.
//
// Invariant: after open() every shard named by the index (or the single model.safetensors) is mapped
// and checked, each tensor is in exactly the shard the index says, and shard paths stay inside the
// folder. Which tensors a model needs is asked through TensorBinder, which collects every
// disagreement so that one report names them all.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/status.h"
#include "src/formats/model_config.h"
#include "src/formats/safetensors.h"
#include "src/tensor/view.h"

namespace moray {

class Checkpoint {
 public:
  static Result<std::shared_ptr<const Checkpoint>> open(const std::string& folder);

  struct Tensor {
    std::string_view name;
    DType dtype;
    std::span<const int64_t> shape;
    std::span<const std::byte> bytes;
  };

  const std::string& folder() const { return folder_; }
  const ModelConfig& config() const { return config_; }
  const GenerationDefaults& generation() const { return generation_; }
  // nullopt when no shard has it. Names are as stored, prefix included.
  std::optional<Tensor> find(std::string_view name) const;
  // All names, sorted.
  std::vector<std::string_view> names() const;
  // "model." or "model.language_model.": where embed_tokens and the layers live.
  const std::string& text_prefix() const { return text_prefix_; }
  int64_t vision_tensor_count() const { return vision_tensor_count_; }

 private:
  Checkpoint() = default;
  std::string folder_;
  ModelConfig config_;
  GenerationDefaults generation_;
  std::string text_prefix_;
  int64_t vision_tensor_count_ = 0;
  std::vector<SafetensorsFile> shards_;
  struct Place {
    size_t shard;
    const TensorEntry* entry;
  };
  std::unordered_map<std::string_view, Place> places_;
};

// Looks tensors up against what the config promises and remembers every disagreement.
//
// A lookup that fails returns an empty view and adds one line (name, found, expected); finish()
// then gives kInvalidFile with all of them, at most 20 spelled out. Views point into the checkpoint;
// widened scales and vectors live in the binder's `storage()`, which the model must keep.
class TensorBinder {
 public:
  explicit TensorBinder(const Checkpoint& checkpoint);

  // A matrix [rows, cols] in F32, F16, BF16, or F8_E4M3 with `<stem>.weight_scale_inv` (stem = name
  // less ".weight"), whose scales must be finite and of shape [ceil(rows/128), ceil(cols/128)].
  MatrixView matrix(const std::string& name, int64_t rows, int64_t cols);
  // A matrix that official FP8 files keep in 16 or 32 bits (router, a/b projections, head, ...).
  MatrixView matrix_unquantised(const std::string& name, int64_t rows, int64_t cols);
  // Slice `index` of a fused 3-D tensor [count, rows, cols] without ".weight" (BF16/F16/F32).
  MatrixView fused_slice(const std::string& name, int64_t index, int64_t count, int64_t row_begin,
                         int64_t row_count, int64_t rows, int64_t cols);
  // A vector or small tensor widened to FP32; `shape` as stored, for example [8192, 1, 4].
  std::span<const float> widened(const std::string& name, std::vector<int64_t> shape);

  bool has(const std::string& name) const;
  void complain(std::string line);
  // Tensors that nothing asked for, for a report ("ignored: 333 vision tensors").
  std::vector<std::string_view> unused() const;
  Status finish();
  // Owns every widened array handed out; move it into the model.
  std::vector<std::unique_ptr<float[]>> take_storage();

 private:
  const Checkpoint& checkpoint_;
  std::vector<std::string> complaints_;
  std::vector<std::unique_ptr<float[]>> storage_;
  std::unordered_map<std::string, bool> asked_;
};

}  // namespace moray
