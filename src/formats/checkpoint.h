// A Hugging Face model folder: config.json, the shards, and one name table over all of them.
//
// Invariant: after open() every shard named by the index (or the single model.safetensors) is
// mapped and checked, each tensor is in exactly the shard the index says, and shard paths stay
// inside the folder. Which tensors a model needs is asked through TensorBinder, which collects
// every disagreement so that one report names them all.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "src/base/status.h"
#include "src/formats/complaints.h"
#include "src/formats/model_config.h"
#include "src/formats/safetensors.h"
#include "src/tensor/view.h"

namespace moray {

class Checkpoint {
 public:
  // Reads and checks config.json, generation_config.json if there, the index and every header; maps
  // every shard; reads no tensor. kNotFound when `folder` or a shard is absent, kInvalidFile and
  // kUnsupported with file, thing, found and expected otherwise; disagreements between the index
  // and the shards are collected into one report.
  static Result<std::shared_ptr<const Checkpoint>> open(const std::string& folder);

  struct Tensor {
    std::string_view name;
    DType dtype;
    std::span<const int64_t> shape;
    std::span<const std::byte> bytes;
  };

  const std::string& folder() const { return folder_; }
  const ModelConfig& config() const { return config_; }
  // Without a generation_config.json: config.json's own eos, nothing else.
  const GenerationDefaults& generation() const { return generation_; }
  // nullopt when no shard has it. Names are as stored, prefix included.
  std::optional<Tensor> find(std::string_view name) const;
  // All names, sorted.
  std::vector<std::string_view> names() const;
  // "model." or "model.language_model.": where embed_tokens and the layers live.
  const std::string& text_prefix() const { return text_prefix_; }
  int64_t vision_tensor_count() const { return vision_tensor_count_; }
  // Paths of the shards, in name order.
  std::vector<std::string> shard_paths() const;

 private:
  Checkpoint() = default;
  Status open_shards();
  void survey_names();

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

// The config.json of a folder, without the shards. Errors as Checkpoint::open gives them.
Result<ModelConfig> read_model_config(const std::string& folder);

// Looks tensors up against what the config promises and remembers every disagreement.
//
// A lookup that fails returns an empty view and adds one line (name, found, expected) the first
// time a name is asked for; finish() then gives kInvalidFile with all of them, at most 20 spelled
// out. Views point into the checkpoint; widened scales and vectors are owned by the binder until
// take_storage(), and the model must keep both.
class TensorBinder {
 public:
  explicit TensorBinder(const Checkpoint& checkpoint);

  // A matrix [rows, cols] in F32, F16, BF16, or F8_E4M3 with `<name>_scale_inv` (so that
  // "x.weight" pairs with "x.weight_scale_inv"), whose scales must be finite, of dtype F32, BF16 or
  // F16 and of shape [ceil(rows/128), ceil(cols/128)]; they come widened to FP32. Scales beside a
  // weight of another dtype are a disagreement too.
  MatrixView matrix(const std::string& name, int64_t rows, int64_t cols);
  // A matrix that official FP8 files keep in 16 or 32 bits (router, a/b projections, head, ...).
  MatrixView matrix_unquantised(const std::string& name, int64_t rows, int64_t cols);
  // Rows [row_begin, row_begin + row_count) of slice `index` of a fused 3-D tensor
  // [count, rows, cols] without ".weight" (BF16/F16/F32).
  MatrixView fused_slice(const std::string& name, int64_t index, int64_t count, int64_t row_begin,
                         int64_t row_count, int64_t rows, int64_t cols);
  // A vector or small tensor of finite F32/BF16/F16 values, widened to FP32; `shape` as stored, for
  // example [8192, 1, 4].
  std::span<const float> widened(const std::string& name, std::vector<int64_t> shape);

  bool has(const std::string& name) const { return checkpoint_.find(name).has_value(); }
  // Adds a disagreement of the caller's own; same form: "NAME: found ..., expected ...".
  void complain(std::string line) { complaints_.add(std::move(line)); }
  // Tensors that nothing asked for, for a report ("ignored: 333 vision tensors"); sorted.
  std::vector<std::string_view> unused() const;
  // OK, or kInvalidFile naming the folder and every disagreement.
  Status finish() const;
  // Owns every widened array handed out; move it into the model.
  std::vector<std::unique_ptr<float[]>> take_storage() { return std::move(storage_); }

 private:
  struct Demand;
  std::optional<Checkpoint::Tensor> demand(const std::string& name, const Demand& demand);
  const float* widen(const Checkpoint::Tensor& tensor, bool complain_now);
  void read_scales(const std::string& name, MatrixView& matrix);

  const Checkpoint& checkpoint_;
  Complaints complaints_;
  std::vector<std::unique_ptr<float[]>> storage_;
  std::unordered_set<std::string> asked_;
};

}  // namespace moray
