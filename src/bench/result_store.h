// Finished results of a long climb as files, so that a killed one goes on where it was.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "core/files.h"

namespace levin::bench {

// Everything a result depends on, folded into one key (FNV-1a, 64 bits).
class Key {
 public:
  Key& add(std::string_view text);
  Key& add(int64_t value);
  Key& add(double value);
  std::string hex() const;

 private:
  void add_bytes(std::string_view bytes);
  uint64_t hash_ = 0xcbf29ce484222325;
};

// What identifies the files of a checkpoint without reading its weights: names, sizes and times of
// all files, and the content of the small ones.
std::string folder_fingerprint(const std::filesystem::path& folder);

// Throws Error unless `folder` is new, empty or one that claim_folder() has marked: what a user
// keeps in it would be lost.
void require_own_folder(const std::filesystem::path& folder);
// Marks `folder`, which is created, as written by a ladder, and keeps other ladders out.
FileLock claim_folder(const std::filesystem::path& folder);

class ResultStore {
 public:
  // Creates the folder when it does not exist.
  explicit ResultStore(std::filesystem::path folder);

  // The result stored under `name` if it was stored with the same key. A damaged file counts as no
  // result.
  std::optional<nlohmann::json> find(const std::string& name, const std::string& key) const;
  // Whether anything was ever stored under `name`.
  bool has(const std::string& name) const;
  // Replaces what was stored under `name`; a reader sees the old result or the new one.
  void put(const std::string& name, const std::string& key, const nlohmann::ordered_json& result);

  std::filesystem::path file_of(const std::string& name) const;

 private:
  std::filesystem::path folder_;
};

}  // namespace levin::bench
