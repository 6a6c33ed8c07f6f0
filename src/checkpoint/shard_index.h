// Which safetensors files make up a folder, and which tensors the index says they hold.
#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <unordered_map>
#include <vector>

namespace levin::checkpoint {

struct ShardIndex {
  std::vector<std::string> shards;                          // file names, sorted
  std::unordered_map<std::string, std::string> weight_map;  // stored tensor name -> file name
  nlohmann::json total_size;  // metadata.total_size as it stands there; null when it does not
};

// Checks and takes apart the contents of model.safetensors.index.json. Shard names must be plain
// file names: a path that leaves the folder is an Error.
ShardIndex parse_shard_index(const nlohmann::json& json, const std::string& where);

// The index of `folder`; for a folder with a single model.safetensors an index with that shard and
// an empty weight_map. Throws Error when neither is there, when a named shard is missing, or when
// the folder holds safetensors files that the index does not name.
ShardIndex find_shards(const std::filesystem::path& folder);

}  // namespace levin::checkpoint
