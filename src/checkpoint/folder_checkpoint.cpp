// Checkpoint::open: a folder of safetensors files.
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>

#include "checkpoint/checkpoint.h"
#include "checkpoint/merged_experts.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/shard_index.h"
#include "core/error.h"
#include "core/files.h"

namespace levin::checkpoint {
namespace {

namespace fs = std::filesystem;

// More experts than any model has; bounds what a lying 3-D shape can make us list.
constexpr int64_t kMaxExperts = 65536;

class FolderCheckpoint final : public Checkpoint {
 public:
  explicit FolderCheckpoint(const fs::path& folder);

  void release(std::span<const std::byte> bytes) const override;
  uint64_t largest_copy() const override;

 private:
  struct Shard {
    std::string name;
    MappedFile file;
    SafetensorsHeader header;
  };

  // Stored name -> shard.
  using Places = std::unordered_map<std::string_view, const Shard*>;

  TensorView view_at(std::size_t index) const override;
  Places locate() const;
  void check_against_index(const ShardIndex& index) const;
  std::map<std::string, int64_t> count_merged_experts() const;
  void list(const Shard& shard, const StoredTensor& tensor,
            const std::map<std::string, int64_t>& merged);
  void list_merged(const Shard& shard, const StoredTensor& tensor, const MergedName& name,
                   int64_t experts);
  void add(const Shard& shard, const StoredTensor& tensor, std::string name, Shape shape,
           std::span<const std::byte> bytes);
  static std::span<const std::byte> bytes_of(const Shard& shard, const StoredTensor& tensor);

  std::vector<Shard> shards_;
  std::vector<std::span<const std::byte>> bytes_;  // by catalogue position
  mutable std::mutex mutex_;
  mutable std::unordered_map<std::size_t, std::vector<std::byte>> aligned_copies_;
};

FolderCheckpoint::FolderCheckpoint(const fs::path& folder) : Checkpoint(folder) {
  const ShardIndex index = find_shards(folder);
  for (const std::string& name : index.shards) {
    const fs::path path = folder / name;
    MappedFile file(path);
    SafetensorsHeader header = parse_safetensors_header(file.bytes(), path.string());
    shards_.push_back({name, std::move(file), std::move(header)});
  }
  check_against_index(index);
  const std::map<std::string, int64_t> merged = count_merged_experts();
  for (const Shard& shard : shards_) {
    for (const StoredTensor& tensor : shard.header.tensors) list(shard, tensor, merged);
  }
  if (!index.total_size.is_null() && index.total_size != total_bytes()) {
    warnings_.push_back(
        fmt::format("model.safetensors.index.json says total_size {}, the tensors have {} bytes",
                    printable(index.total_size.dump()), total_bytes()));
  }
  for (Shard& shard : shards_) shard.header = {};
  read_quantization();
}

// Which shard holds what; no name may be there twice.
FolderCheckpoint::Places FolderCheckpoint::locate() const {
  Places places;
  for (const Shard& shard : shards_) {
    for (const StoredTensor& tensor : shard.header.tensors) {
      const auto [place, inserted] = places.emplace(tensor.name, &shard);
      if (inserted) continue;
      throw Error({.what = "the same tensor is in two shards",
                   .where = folder_.string(),
                   .expected = {},
                   .found = fmt::format("\"{}\" in {} and {}", printable(tensor.name),
                                        place->second->name, shard.name),
                   .hint = {}});
    }
  }
  return places;
}

// Both ways: what the index promises is where it says, and nothing is stored that it does not name.
void FolderCheckpoint::check_against_index(const ShardIndex& index) const {
  const Places places = locate();
  if (index.weight_map.empty()) return;
  for (const auto& [tensor, shard] : index.weight_map) {
    if (places.contains(tensor)) continue;
    throw Error({.what = "shard lacks a tensor that the index promises",
                 .where = (folder_ / shard).string(),
                 .expected = fmt::format("tensor \"{}\"", printable(tensor)),
                 .found = {},
                 .hint = {}});
  }
  for (const auto& [tensor, shard] : places) {
    const auto promised = index.weight_map.find(std::string(tensor));
    if (promised != index.weight_map.end() && promised->second == shard->name) continue;
    throw Error({.what = "tensor is not where the shard index says",
                 .where = (folder_ / shard->name).string(),
                 .expected = promised == index.weight_map.end()
                                 ? "only tensors that model.safetensors.index.json names"
                                 : fmt::format("\"{}\" in {}", printable(tensor), promised->second),
                 .found = fmt::format("\"{}\" in {}", printable(tensor), shard->name),
                 .hint = {}});
  }
}

// Number of experts of every merged projection ("...experts.up_proj" -> E), from its weights.
std::map<std::string, int64_t> FolderCheckpoint::count_merged_experts() const {
  std::map<std::string, int64_t> counts;
  for (const Shard& shard : shards_) {
    for (const StoredTensor& tensor : shard.header.tensors) {
      const auto name = parse_merged_name(canonical_name(tensor.name));
      if (name && tensor.shape.size() == 3) counts.emplace(name->group(), tensor.shape[0]);
    }
  }
  return counts;
}

std::span<const std::byte> FolderCheckpoint::bytes_of(const Shard& shard,
                                                      const StoredTensor& tensor) {
  return shard.file.bytes().subspan(shard.header.data_start + tensor.begin,
                                    tensor.end - tensor.begin);
}

void FolderCheckpoint::add(const Shard& shard, const StoredTensor& tensor, std::string name,
                           Shape shape, std::span<const std::byte> bytes) {
  add_tensor({.name = std::move(name),
              .stored_name = tensor.name,
              .dtype = tensor.dtype,
              .shape = std::move(shape),
              .file = shard.name,
              .bytes = bytes.size()});
  bytes_.push_back(bytes);
}

void FolderCheckpoint::list(const Shard& shard, const StoredTensor& tensor,
                            const std::map<std::string, int64_t>& merged) {
  const std::string name = canonical_name(tensor.name);
  if (const auto merged_name = parse_merged_name(name)) {
    const auto count = merged.find(merged_name->group());
    if (count != merged.end()) return list_merged(shard, tensor, *merged_name, count->second);
  }
  add(shard, tensor, name, tensor.shape, bytes_of(shard, tensor));
}

// Splits along the first dimension. A scalar, or one value for many experts, is shared by all.
void FolderCheckpoint::list_merged(const Shard& shard, const StoredTensor& tensor,
                                   const MergedName& name, int64_t experts) {
  const std::span<const std::byte> bytes = bytes_of(shard, tensor);
  const bool shared = tensor.shape.empty() || tensor.shape == Shape{1};
  const bool split = !tensor.shape.empty() && tensor.shape[0] == experts;
  if (bytes.empty() || experts > kMaxExperts || (!shared && !split)) {
    throw Error({.what = "merged expert tensor has an impossible shape",
                 .where = fmt::format("{}, tensor \"{}\"", (folder_ / shard.name).string(),
                                      printable(tensor.name)),
                 .expected = fmt::format("[{}, ...], at most {} experts", experts, kMaxExperts),
                 .found = to_string(tensor.shape),
                 .hint = {}});
  }
  const std::size_t part = split ? bytes.size() / static_cast<std::size_t>(experts) : 0;
  for (int64_t expert = 0; expert < experts; ++expert) {
    if (split) {
      add(shard, tensor, name.part(expert), Shape(tensor.shape.begin() + 1, tensor.shape.end()),
          bytes.subspan(static_cast<std::size_t>(expert) * part, part));
    } else {
      add(shard, tensor, name.part(expert), {}, bytes);
    }
  }
}

bool is_misaligned(std::span<const std::byte> bytes, DType dtype) {
  return reinterpret_cast<std::uintptr_t>(bytes.data()) % size_of(dtype) != 0;
}

uint64_t FolderCheckpoint::largest_copy() const {
  uint64_t largest = 0;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (is_misaligned(bytes_[i], tensors_[i].dtype)) {
      largest = std::max<uint64_t>(largest, bytes_[i].size());
    }
  }
  return largest;
}

// Only whole pages inside `bytes` of the maps; aligned copies have no file behind them.
void FolderCheckpoint::release(std::span<const std::byte> bytes) const {
  const bool mapped = std::any_of(shards_.begin(), shards_.end(), [&](const Shard& shard) {
    const std::span<const std::byte> all = shard.file.bytes();
    return !all.empty() && bytes.data() >= all.data() &&
           bytes.data() + bytes.size() <= all.data() + all.size();
  });
  if (!mapped) {
    const std::lock_guard lock(mutex_);
    std::erase_if(aligned_copies_, [&](const auto& entry) {
      return entry.second.data() + entry.second.size() == bytes.data() + bytes.size();
    });
    return;
  }
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const auto address = reinterpret_cast<std::uintptr_t>(bytes.data());
  const std::size_t skipped = (page - address % page) % page;
  if (bytes.size() < skipped + page) return;
  ::madvise(const_cast<std::byte*>(bytes.data()) + skipped, (bytes.size() - skipped) / page * page,
            MADV_DONTNEED);
}

TensorView FolderCheckpoint::view_at(std::size_t index) const {
  const TensorInfo& info = tensors_[index];
  std::span<const std::byte> bytes = bytes_[index];
  if (is_misaligned(bytes, info.dtype)) {
    const std::lock_guard lock(mutex_);
    std::vector<std::byte>& copy = aligned_copies_[index];
    if (copy.empty()) copy.assign(bytes.begin(), bytes.end());
    bytes = copy;
  }
  return {info.dtype, info.shape, bytes};
}

}  // namespace

std::shared_ptr<const Checkpoint> Checkpoint::open(const fs::path& folder) {
  return std::make_shared<const FolderCheckpoint>(folder);
}

}  // namespace levin::checkpoint
