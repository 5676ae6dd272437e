// From what a person types to a model folder: a path, a name below models/, a hub cache id.
//
// Layout of a hub cache (huggingface_hub): HUB/models--org--name/refs/<revision> holds a commit,
// HUB/models--org--name/snapshots/<commit>/ the files. Ids and revisions are checked to be plain
// names before they are joined to a path.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "moray/tools.h"
#include "src/formats/complaints.h"
#include "src/formats/text_file.h"

namespace moray {
namespace {

namespace fs = std::filesystem;

constexpr size_t kRefBytesMax = 4096;
constexpr std::string_view kRepositoryPrefix = "models--";

bool is_folder(const std::string& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

bool exists(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

bool is_model_folder(const std::string& path) {
  return exists(path + "/config.json");
}

// One path component that cannot lead elsewhere.
bool is_plain_name(std::string_view name) {
  const auto plain = [](unsigned char c) {
    return std::isalnum(c) || c == '-' || c == '_' || c == '.';
  };
  return !name.empty() && name.size() < 256 && name.front() != '.' &&
         std::all_of(name.begin(), name.end(), plain);
}

struct HubId {
  std::string repository;  // "models--org--name"
  std::string revision;    // "main" unless given
};

std::optional<HubId> parse_hub_id(const std::string& name) {
  const size_t at = name.find('@');
  const std::string id = name.substr(0, at);
  const std::string revision = at == std::string::npos ? "main" : name.substr(at + 1);
  const size_t slash = id.find('/');
  if (slash == std::string::npos) return std::nullopt;
  const std::string organisation = id.substr(0, slash);
  const std::string model = id.substr(slash + 1);
  if (!is_plain_name(organisation) || !is_plain_name(model) || !is_plain_name(revision)) {
    return std::nullopt;
  }
  return HubId{fmt::format("{}{}--{}", kRepositoryPrefix, organisation, model), revision};
}

// The snapshot folder a cached repository's revision leads to; kNotFound when not cached.
Result<std::string> hub_snapshot(const std::string& hub, const HubId& id) {
  const std::string repository = hub + "/" + id.repository;
  std::string commit = id.revision;  // a full commit may be given directly
  if (const auto ref = read_text_file(repository + "/refs/" + id.revision, kRefBytesMax);
      ref.ok()) {
    commit = ref->substr(0, ref->find_last_not_of(" \r\n") + 1);
    if (!is_plain_name(commit)) {
      return Status(StatusCode::kInvalidFile,
                    fmt::format("{}/refs/{}: found {}, expected a commit", repository, id.revision,
                                in_quotes(commit)));
    }
  }
  const std::string snapshot = repository + "/snapshots/" + commit;
  if (is_model_folder(snapshot)) return snapshot;
  return Status(StatusCode::kNotFound, snapshot);
}

std::vector<std::string> sorted_entries(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator entry(folder, fs::directory_options::skip_permission_denied, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// "models--org--name" -> "org/name"; only the first "--" after the prefix separates.
std::optional<std::string> hub_name(const std::string& entry) {
  if (!entry.starts_with(kRepositoryPrefix)) return std::nullopt;
  const std::string rest = entry.substr(kRepositoryPrefix.size());
  const size_t separator = rest.find("--");
  if (separator == std::string::npos) return std::nullopt;
  return rest.substr(0, separator) + "/" + rest.substr(separator + 2);
}

Status not_found(const std::string& name, const ModelPlaces& places) {
  std::vector<std::string> looked = {"a folder of that name"};
  for (const std::string& folder : places.model_folders) looked.push_back(folder);
  for (const std::string& hub : places.hub_folders) looked.push_back(hub);
  return Status(StatusCode::kNotFound,
                fmt::format("model {}: found nothing, expected it in one of: {}", in_quotes(name),
                            fmt::join(looked, ", ")));
}

}  // namespace

Result<std::string> resolve_model(const std::string& name, const ModelPlaces& places) {
  if (name.empty()) {
    return Status(StatusCode::kInvalidArgument,
                  "model: found an empty name, expected a folder, "
                  "an id org/name or a name");
  }
  if (is_folder(name)) {
    // Without trailing slashes, so that the last component is the model's name.
    if (is_model_folder(name)) return name.substr(0, name.find_last_not_of('/') + 1);
    return Status(StatusCode::kInvalidFile,
                  fmt::format("{}: found no config.json, expected a model folder", name));
  }
  if (is_plain_name(name)) {
    for (const std::string& folder : places.model_folders) {
      if (is_model_folder(folder + "/" + name)) return folder + "/" + name;
    }
  }
  if (const auto id = parse_hub_id(name)) {
    for (const std::string& hub : places.hub_folders) {
      Result<std::string> snapshot = hub_snapshot(hub, *id);
      if (snapshot.ok() || snapshot.status().code() != StatusCode::kNotFound) return snapshot;
    }
  }
  if (exists(name)) {
    return Status(StatusCode::kInvalidFile,
                  fmt::format("{}: found a file, expected a model folder", name));
  }
  return not_found(name, places);
}

std::vector<FoundModel> list_models(const ModelPlaces& places) {
  std::vector<FoundModel> models;
  for (const std::string& folder : places.model_folders) {
    for (const std::string& name : sorted_entries(folder)) {
      if (is_model_folder(folder + "/" + name)) models.push_back({name, folder + "/" + name});
    }
  }
  for (const std::string& hub : places.hub_folders) {
    for (const std::string& entry : sorted_entries(hub)) {
      const auto name = hub_name(entry);
      if (!name) continue;
      const auto id = parse_hub_id(*name);
      if (!id) continue;
      const auto snapshot = hub_snapshot(hub, *id);
      if (snapshot.ok()) models.push_back({*name, *snapshot});
    }
  }
  return models;
}

}  // namespace moray
