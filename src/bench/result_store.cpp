#include "bench/result_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/error.h"
#include "core/files.h"

namespace levin::bench {
namespace {

namespace fs = std::filesystem;

// Files up to this size are read for the fingerprint: configurations, tokenizers, templates.
constexpr std::uintmax_t kSmallFile = std::uintmax_t{32} << 20;

constexpr const char* kMarker = ".levin-ladder";

bool is_weights(const fs::path& file) {
  return file.extension() == ".safetensors";
}

}  // namespace

void Key::add_bytes(std::string_view bytes) {
  for (const char byte : bytes) {
    hash_ = (hash_ ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
  }
}

Key& Key::add(std::string_view text) {
  add(static_cast<int64_t>(text.size()));  // so that parts cannot run into each other
  add_bytes(text);
  return *this;
}

Key& Key::add(int64_t value) {
  add_bytes({reinterpret_cast<const char*>(&value), sizeof(value)});
  return *this;
}

Key& Key::add(double value) {
  return add(std::bit_cast<int64_t>(value));
}

std::string Key::hex() const {
  return fmt::format("{:016x}", hash_);
}

std::string folder_fingerprint(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  Key key;
  for (const fs::path& file : files) {
    const std::uintmax_t size = fs::file_size(file);
    key.add(file.filename().string()).add(static_cast<int64_t>(size));
    if (is_weights(file) || size > kSmallFile) {
      key.add(static_cast<int64_t>(fs::last_write_time(file).time_since_epoch().count()));
    } else {
      key.add(read_text(file));
    }
  }
  return key.hex();
}

void require_own_folder(const fs::path& folder) {
  std::error_code error;
  const fs::file_status status = fs::status(folder, error);
  if (status.type() == fs::file_type::not_found || fs::exists(folder / kMarker, error)) return;
  if (fs::is_directory(status) && fs::is_empty(folder, error)) return;
  throw Error({.what = "output folder is not a ladder's",
               .where = folder.string(),
               .expected = "a new or empty folder, or one that a ladder was written to before",
               .found = fs::is_directory(status) ? "other files" : "no folder",
               .hint = "choose another folder"});
}

FileLock claim_folder(const fs::path& folder) {
  create_folder(folder);
  return FileLock(folder / kMarker);
}

ResultStore::ResultStore(fs::path folder) : folder_(std::move(folder)) {
  create_folder(folder_);
}

fs::path ResultStore::file_of(const std::string& name) const {
  return folder_ / (name + ".json");
}

std::optional<nlohmann::json> ResultStore::find(const std::string& name,
                                                const std::string& key) const {
  const fs::path file = file_of(name);
  if (!fs::exists(file)) return std::nullopt;
  try {
    nlohmann::json stored = read_json(file);
    if (!stored.is_object() || stored.value("key", "") != key || !stored.contains("result")) {
      return std::nullopt;
    }
    return std::move(stored.at("result"));
  } catch (const Error&) {
    return std::nullopt;
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

bool ResultStore::has(const std::string& name) const {
  std::error_code ignored;
  return fs::exists(file_of(name), ignored);
}

void ResultStore::put(const std::string& name, const std::string& key,
                      const nlohmann::ordered_json& result) {
  const nlohmann::ordered_json stored = {{"key", key}, {"result", result}};
  write_text(file_of(name),
             stored.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

}  // namespace levin::bench
