#include "checkpoint/writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <utility>

#include "core/error.h"
#include "core/files.h"

namespace levin::checkpoint {
namespace fs = std::filesystem;
namespace {

constexpr std::size_t kAlignment = 8;
constexpr const char* kConfig = "config.json";
// What else of a folder says how its model is run; another model's would be used silently.
constexpr std::string_view kCompanions[] = {"hf_quant_config.json",
                                            "generation_config.json",
                                            "tokenizer.json",
                                            "tokenizer_config.json",
                                            "chat_template.jinja",
                                            "added_tokens.json",
                                            "special_tokens_map.json",
                                            "vocab.json",
                                            "merges.txt"};

[[noreturn]] void throw_errno(const std::string& what, const fs::path& path, int error) {
  const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  throw Error({.what = fmt::format("{}: {}", what, std::strerror(error)),
               .where = path.string(),
               .expected = {},
               .found = {},
               .hint = full ? "free some space and run the same command again" : "",
               .exit_code = ExitCode::kMachine});
}

// 8 bytes of length, little-endian, as the format begins.
std::string length_prefix(uint64_t length) {
  std::string bytes(kAlignment, '\0');
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<char>((length >> (8 * i)) & 0xff);
  }
  return bytes;
}

// Whether there was such a file.
bool remove_file(const fs::path& path) {
  std::error_code error;
  const bool removed = fs::remove(path, error);
  if (error) throw_errno("cannot remove file", path, error.value());
  return removed;
}

void rename_file(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) throw_errno("cannot rename file", from, errno);
}

}  // namespace

uint64_t OutputTensor::bytes() const {
  const auto count = element_count(shape);
  if (!count || *count > (int64_t{1} << 56)) {
    throw Error({.what = "tensor is too large to write",
                 .where = name,
                 .expected = {},
                 .found = to_string(shape),
                 .hint = {}});
  }
  return static_cast<uint64_t>(*count) * size_of(dtype);
}

ShardWriter::ShardWriter(fs::path path, std::vector<OutputTensor> tensors, Existing existing)
    : path_(path.string()) {
  std::set<std::string_view> names;
  for (OutputTensor& tensor : tensors) tensors_.push_back({std::move(tensor), 0, 0});
  for (const Placed& placed : tensors_) {
    if (names.insert(placed.tensor.name).second) continue;
    throw Error({.what = "two tensors of a shard have the same name",
                 .where = path_,
                 .expected = {},
                 .found = placed.tensor.name,
                 .hint = {}});
  }
  place_tensors();
  const std::string text = header();
  const std::string prefix = length_prefix(text.size());
  const uint64_t data_start = prefix.size() + text.size();
  for (Placed& placed : tensors_) placed.begin += data_start;
  file_bytes_ += data_start;

  file_.emplace(std::move(path), existing);
  file_->reserve(file_bytes_);
  file_->write_at(0, std::as_bytes(std::span(prefix)));
  file_->write_at(prefix.size(), std::as_bytes(std::span(text)));
}

// Offsets relative to the data section; file_bytes_ becomes its size.
void ShardWriter::place_tensors() {
  std::vector<std::size_t> order(tensors_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return size_of(tensors_[a].tensor.dtype) > size_of(tensors_[b].tensor.dtype);
  });
  for (const std::size_t i : order) {
    tensors_[i].begin = file_bytes_;
    file_bytes_ += tensors_[i].tensor.bytes();
  }
}

// The JSON header, padded so that the data section is aligned. Tensors appear by offset, as the
// reference implementation writes them.
std::string ShardWriter::header() const {
  std::vector<const Placed*> by_offset;
  for (const Placed& placed : tensors_) by_offset.push_back(&placed);
  std::stable_sort(by_offset.begin(), by_offset.end(),
                   [](const Placed* a, const Placed* b) { return a->begin < b->begin; });
  nlohmann::ordered_json json;
  json["__metadata__"] = {{"format", "pt"}};
  for (const Placed* placed : by_offset) {
    json[placed->tensor.name] = {
        {"dtype", name_of(placed->tensor.dtype)},
        {"shape", placed->tensor.shape},
        {"data_offsets", {placed->begin, placed->begin + placed->tensor.bytes()}}};
  }
  std::string text = json.dump();
  text.resize((text.size() + kAlignment - 1) / kAlignment * kAlignment, ' ');
  return text;
}

void ShardWriter::write(std::size_t index, uint64_t offset, std::span<const std::byte> bytes) {
  Placed& placed = tensors_.at(index);
  if (offset + bytes.size() > placed.tensor.bytes()) {
    throw Error({.what = "more bytes than the tensor has",
                 .where = placed.tensor.name,
                 .expected = fmt::format("{} bytes", placed.tensor.bytes()),
                 .found = fmt::format("{} bytes at offset {}", bytes.size(), offset),
                 .hint = {}});
  }
  file_->write_at(placed.begin + offset, bytes);
  placed.written += bytes.size();
}

void ShardWriter::commit() {
  for (const Placed& placed : tensors_) {
    if (placed.written == placed.tensor.bytes()) continue;
    throw Error({.what = "tensor was not written completely",
                 .where = fmt::format("{}, tensor \"{}\"", path_, placed.tensor.name),
                 .expected = fmt::format("{} bytes", placed.tensor.bytes()),
                 .found = fmt::format("{} bytes", placed.written),
                 .hint = {}});
  }
  file_->commit();
}

nlohmann::ordered_json shard_index_json(const std::map<std::string, std::string>& weight_map,
                                        uint64_t total_size) {
  nlohmann::ordered_json json;
  json["metadata"] = {{"total_size", total_size}};
  json["weight_map"] = weight_map;
  return json;
}

bool holds_checkpoint(const fs::path& folder) {
  try {
    const nlohmann::json config = read_json(folder / kConfig);
    return config.is_object() &&
           (config.contains("architectures") || config.contains("model_type"));
  } catch (const Error&) {
    return false;
  }
}

std::vector<std::string> retire_checkpoint(const fs::path& folder) {
  if (!fs::exists(folder)) return {};
  std::vector<std::string> removed;
  if (remove_file(folder / kConfig)) removed.emplace_back(kConfig);
  sync_folder(folder);
  std::set<std::string> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    const bool weights = name.starts_with("model") && (name.ends_with(".safetensors") ||
                                                       name.ends_with(".safetensors.index.json"));
    const bool companion =
        std::find(std::begin(kCompanions), std::end(kCompanions), name) != std::end(kCompanions);
    if (weights || companion) files.insert(name);
  }
  for (const std::string& name : files) {
    if (remove_file(folder / name)) removed.push_back(name);
  }
  sync_folder(folder);
  return removed;
}

void publish(const fs::path& staging, const fs::path& folder) {
  const fs::path config = staging / kConfig;
  if (!fs::exists(config)) {
    throw Error(
        {.what = "nothing to publish", .where = config, .expected = {}, .found = {}, .hint = {}});
  }
  std::set<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(staging)) {
    names.insert(entry.path().filename());
  }
  names.erase(kConfig);
  for (const std::string& name : names) rename_file(staging / name, folder / name);
  sync_folder(folder);
  rename_file(config, folder / kConfig);
  sync_folder(folder);
  fs::remove(staging);
}

}  // namespace levin::checkpoint
