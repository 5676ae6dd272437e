// model.safetensors.index.json: which shard of the folder holds which tensor.
//
// Invariant: every shard name in a ShardIndex is a plain file name ending in ".safetensors", so
// that joining it to the folder cannot leave the folder. Whether the shards hold what the index
// says is checked in checkpoint.cpp.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "src/base/status.h"

namespace moray {

struct ShardIndex {
  std::vector<std::string> shards;                    // sorted, each once
  std::unordered_map<std::string, size_t> placement;  // tensor name -> index into shards
};

// Parses the text of an index; `path` is for messages only. kInvalidFile names each bad entry.
Result<ShardIndex> parse_shard_index(std::string_view json, const std::string& path);

}  // namespace moray
