// Opening a model folder: text files first, then the shards, then index against headers.
#include "src/formats/checkpoint.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "src/formats/shard_index.h"
#include "src/formats/text_file.h"

namespace moray {
namespace {

constexpr size_t kConfigBytesMax = 16 << 20;
constexpr size_t kIndexBytesMax = 100 << 20;  // 64,196 tensors take about 7 MB
constexpr std::string_view kNestedPrefix = "model.language_model.";
constexpr std::string_view kVisionPrefixes[] = {"model.visual.", "visual."};

Status check_is_folder(const std::string& folder) {
  struct stat info = {};
  if (stat(folder.c_str(), &info) != 0) {
    return Status(
        errno == ENOENT ? StatusCode::kNotFound : StatusCode::kIo,
        fmt::format("{}: found '{}', expected a model folder", folder, std::strerror(errno)));
  }
  if (!S_ISDIR(info.st_mode)) {
    return Status(StatusCode::kInvalidFile,
                  fmt::format("{}: found a file, expected a model folder", folder));
  }
  return Status();
}

bool exists(const std::string& path) {
  struct stat info = {};
  return lstat(path.c_str(), &info) == 0;
}

bool is_vision(std::string_view name) {
  return std::any_of(std::begin(kVisionPrefixes), std::end(kVisionPrefixes),
                     [&](std::string_view prefix) { return name.starts_with(prefix); });
}

Result<GenerationDefaults> read_generation(const std::string& folder, const ModelConfig& config) {
  const std::string path = folder + "/generation_config.json";
  GenerationDefaults defaults;
  if (exists(path)) {
    ASSIGN_OR_RETURN(const std::string text, read_text_file(path, kConfigBytesMax));
    ASSIGN_OR_RETURN(defaults, parse_generation_config(text, path));
  }
  if (defaults.eos_token_ids.empty()) defaults.eos_token_ids = config.eos_token_ids;
  for (int32_t id : defaults.eos_token_ids) {
    if (id >= config.vocab_rows) {
      return Status(StatusCode::kInvalidFile,
                    fmt::format("{}: eos_token_id: found {}, expected less than vocab_size, {}",
                                path, id, config.vocab_rows));
    }
  }
  return defaults;
}

// The index, or one made up for a single model.safetensors (whose placement stays empty).
Result<ShardIndex> read_index(const std::string& folder) {
  const std::string path = folder + "/model.safetensors.index.json";
  if (exists(path)) {
    ASSIGN_OR_RETURN(const std::string text, read_text_file(path, kIndexBytesMax));
    return parse_shard_index(text, path);
  }
  if (!exists(folder + "/model.safetensors")) {
    return Status(
        StatusCode::kNotFound,
        fmt::format("{}: found neither model.safetensors nor model.safetensors.index.json, "
                    "expected one of them",
                    folder));
  }
  return ShardIndex{{"model.safetensors"}, {}};
}

// One report for all shards that are not there: a broken download misses several.
Status check_shards_exist(const std::string& folder, const ShardIndex& index) {
  std::vector<std::string> missing;
  for (const std::string& shard : index.shards) {
    struct stat info = {};  // follows links: a cache entry whose blob is gone counts as missing
    const bool gone = stat((folder + "/" + shard).c_str(), &info) != 0 && errno == ENOENT;
    if (gone) missing.push_back(in_quotes(shard));
  }
  if (missing.empty()) return Status();
  const size_t told = std::min<size_t>(missing.size(), 20);
  return Status(
      StatusCode::kNotFound,
      fmt::format("{}: found {} of {} shards missing ({}{}), expected all", folder, missing.size(),
                  index.shards.size(), fmt::join(missing.begin(), missing.begin() + told, ", "),
                  told < missing.size() ? ", ..." : ""));
}

}  // namespace

Result<ModelConfig> read_model_config(const std::string& folder) {
  RETURN_IF_ERROR(check_is_folder(folder));
  const std::string path = folder + "/config.json";
  if (!exists(path)) {
    return Status(StatusCode::kNotFound,
                  fmt::format("{}: found no config.json, expected a model folder", folder));
  }
  ASSIGN_OR_RETURN(const std::string text, read_text_file(path, kConfigBytesMax));
  return parse_model_config(text, path);
}

Result<std::shared_ptr<const Checkpoint>> Checkpoint::open(const std::string& folder) {
  std::shared_ptr<Checkpoint> checkpoint(new Checkpoint);
  checkpoint->folder_ = folder;
  ASSIGN_OR_RETURN(checkpoint->config_, read_model_config(folder));
  ASSIGN_OR_RETURN(checkpoint->generation_, read_generation(folder, checkpoint->config_));
  RETURN_IF_ERROR(checkpoint->open_shards());
  checkpoint->survey_names();
  return std::shared_ptr<const Checkpoint>(std::move(checkpoint));
}

Status Checkpoint::open_shards() {
  ASSIGN_OR_RETURN(const ShardIndex index, read_index(folder_));
  RETURN_IF_ERROR(check_shards_exist(folder_, index));
  Complaints complaints;
  const bool indexed = !index.placement.empty();
  for (size_t shard = 0; shard < index.shards.size(); ++shard) {
    ASSIGN_OR_RETURN(SafetensorsFile file,
                     SafetensorsFile::open(folder_ + "/" + index.shards[shard]));
    shards_.push_back(std::move(file));
    for (const auto& [name, entry] : shards_.back().header().tensors) {
      const auto said = index.placement.find(name);
      if (indexed && (said == index.placement.end() || said->second != shard)) {
        complaints.add(fmt::format(
            "{}: found in {}, expected {}", in_quotes(name), index.shards[shard],
            said == index.placement.end() ? "it in the index too"
                                          : "it only in " + index.shards[said->second]));
      }
      places_.emplace(name, Place{shard, &entry});
    }
  }
  for (const auto& [name, shard] : index.placement) {
    if (!shards_[shard].header().tensors.contains(name)) {
      complaints.add(fmt::format("{}: found nothing, expected it in {}", in_quotes(name),
                                 index.shards[shard]));
    }
  }
  return complaints.status(folder_);
}

void Checkpoint::survey_names() {
  text_prefix_ = "model.";
  for (const auto& [name, place] : places_) {
    if (name.starts_with(kNestedPrefix)) text_prefix_ = kNestedPrefix;
    if (is_vision(name)) ++vision_tensor_count_;
  }
}

std::optional<Checkpoint::Tensor> Checkpoint::find(std::string_view name) const {
  const auto found = places_.find(name);
  if (found == places_.end()) return std::nullopt;
  const auto& [shard, entry] = found->second;
  return Tensor{found->first, entry->dtype, entry->shape, shards_[shard].bytes(*entry)};
}

std::vector<std::string_view> Checkpoint::names() const {
  std::vector<std::string_view> names;
  names.reserve(places_.size());
  for (const auto& [name, place] : places_) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> Checkpoint::shard_paths() const {
  std::vector<std::string> paths;
  for (const SafetensorsFile& shard : shards_) paths.push_back(shard.path());
  return paths;
}

}  // namespace moray
