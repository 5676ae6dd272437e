#include "src/formats/shard_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "src/formats/json_fields.h"

namespace moray {
namespace {

namespace dom = simdjson::dom;

constexpr size_t kDepthMax = 16;
constexpr std::string_view kSuffix = ".safetensors";

// A plain name cannot climb out of the folder, and only safetensors files are ever opened by it.
// Printable ASCII, because the name goes into messages as it is.
bool is_plain_shard_name(std::string_view name) {
  const auto is_plain = [](char c) { return c > ' ' && c < 0x7f && c != '/' && c != '\\'; };
  return name.size() > kSuffix.size() && name.ends_with(kSuffix) && name.front() != '.' &&
         std::all_of(name.begin(), name.end(), is_plain);
}

}  // namespace

Result<ShardIndex> parse_shard_index(std::string_view json, const std::string& path) {
  ASSIGN_OR_RETURN(const auto document, parse_json_object(json, path, kDepthMax));
  Complaints complaints;
  dom::element weight_map;
  dom::object entries;
  if (document->root["weight_map"].get(weight_map) || weight_map.get_object().get(entries)) {
    return Status(
        StatusCode::kInvalidFile,
        fmt::format("{}: weight_map: found no object, expected tensor names and shards", path));
  }
  ShardIndex index;
  std::map<std::string, size_t, std::less<>> numbers;
  for (auto [tensor, element] : entries) {
    std::string_view shard;
    if (element.get_string().get(shard) || !is_plain_shard_name(shard)) {
      complaints.add(
          fmt::format("weight_map {}: found {}, expected the name of a .safetensors file "
                      "in the folder",
                      in_quotes(tensor), describe(element)));
      continue;
    }
    const size_t number = numbers.try_emplace(std::string(shard), numbers.size()).first->second;
    if (!index.placement.try_emplace(std::string(tensor), number).second) {
      complaints.add(fmt::format("weight_map {}: found twice, expected once", in_quotes(tensor)));
    }
  }
  if (entries.size() == 0) complaints.add("weight_map: found no entries, expected at least one");
  RETURN_IF_ERROR(complaints.status(path));

  // Renumber in name order, so that shards open and complain in the order a person lists them.
  std::vector<size_t> sorted_number(numbers.size());
  for (const auto& [shard, number] : numbers) {
    sorted_number[number] = index.shards.size();
    index.shards.push_back(shard);
  }
  for (auto& [tensor, number] : index.placement) number = sorted_number[number];
  return index;
}

}  // namespace moray
