#include "checkpoint/shard_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "checkpoint/names.h"
#include "core/error.h"
#include "core/files.h"

namespace levin::checkpoint {
namespace fs = std::filesystem;
namespace {

constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr const char* kSingleName = "model.safetensors";
constexpr std::size_t kMaxIndexBytes = std::size_t{128} << 20;

// A file name and nothing else: no folder, no way out of this one.
bool is_plain_file_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos &&
         name.ends_with(".safetensors");
}

[[noreturn]] void fail(const std::string& what, const std::string& where,
                       const std::string& expected, const std::string& found,
                       const std::string& hint = {}) {
  throw Error({.what = what, .where = where, .expected = expected, .found = found, .hint = hint});
}

std::vector<std::string> safetensors_files(const fs::path& folder) {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".safetensors") names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string list(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < std::min<std::size_t>(names.size(), 4); ++i) {
    text += (i == 0 ? "" : ", ") + printable(names[i]);
  }
  if (names.size() > 4) text += fmt::format(" and {} more", names.size() - 4);
  return text;
}

}  // namespace

ShardIndex parse_shard_index(const nlohmann::json& json, const std::string& where) {
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object()) {
    fail("shard index has no weight_map", where, R"({"weight_map": {tensor: file, ...}})", {});
  }
  ShardIndex index;
  std::set<std::string> shards;
  for (const auto& [tensor, file] : json["weight_map"].items()) {
    if (!file.is_string() || !is_plain_file_name(file.get_ref<const std::string&>())) {
      fail("shard index names something that is not a safetensors file of this folder",
           fmt::format("{}, tensor \"{}\"", where, printable(tensor)),
           "a file name ending in .safetensors, without a path", printable(file.dump()));
    }
    shards.insert(file.get<std::string>());
    index.weight_map.emplace(tensor, file.get<std::string>());
  }
  if (shards.empty()) fail("shard index names no tensor", where, {}, {});
  index.shards.assign(shards.begin(), shards.end());
  const auto metadata = json.find("metadata");
  if (metadata != json.end() && metadata->is_object()) {
    const auto size = metadata->find("total_size");
    if (size != metadata->end()) index.total_size = *size;
  }
  return index;
}

ShardIndex find_shards(const fs::path& folder) {
  const std::vector<std::string> present = safetensors_files(folder);
  const fs::path index_path = folder / kIndexName;
  if (!file_exists(index_path)) {
    if (present.size() == 1 && present.front() == kSingleName) {
      return {.shards = {kSingleName}, .weight_map = {}, .total_size = {}};
    }
    if (present.empty()) {
      fail("folder holds no weights", folder.string(),
           fmt::format("{} or {}", kSingleName, kIndexName), "no safetensors file",
           "for a configuration without weights use --load-format dummy");
    }
    fail("cannot tell which safetensors files belong to the model", folder.string(),
         fmt::format("a single {}, or shards and {}", kSingleName, kIndexName), list(present));
  }
  ShardIndex index = parse_shard_index(read_json(index_path, kMaxIndexBytes), index_path.string());
  std::vector<std::string> missing;
  std::set_difference(index.shards.begin(), index.shards.end(), present.begin(), present.end(),
                      std::back_inserter(missing));
  if (!missing.empty()) {
    fail("shards are missing", index_path.string(), list(missing), "no such file",
         "fetch the files that are missing; the index needs all of them");
  }
  std::vector<std::string> surplus;
  std::set_difference(present.begin(), present.end(), index.shards.begin(), index.shards.end(),
                      std::back_inserter(surplus));
  if (!surplus.empty()) {
    fail("safetensors files that the index does not name", folder.string(), {}, list(surplus),
         "move them out of the folder, or name their tensors in the index");
  }
  return index;
}

}  // namespace levin::checkpoint
