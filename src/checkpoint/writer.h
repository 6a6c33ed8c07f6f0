// Writing a checkpoint folder: shards of the safetensors format whose tensors arrive in pieces and
// in any order, the shard index, and the last step that makes a folder visible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/files.h"
#include "core/tensor.h"

namespace levin::checkpoint {

struct OutputTensor {
  std::string name;
  DType dtype = DType::kBF16;
  Shape shape;

  uint64_t bytes() const;
};

// One safetensors file. It has its full size from the start, so that a full disk shows at once, and
// appears under its name only when commit() has found every byte written. Destroyed without
// commit(), it leaves nothing behind. Throws Error (ExitCode::kMachine) when the disk does not
// cooperate.
class ShardWriter {
 public:
  // Tensors are laid out by falling element size, so that each is aligned, and in the order given
  // otherwise. Throws Error for shapes that overflow, for names that repeat, and as AtomicFile.
  ShardWriter(std::filesystem::path path, std::vector<OutputTensor> tensors,
              Existing existing = Existing::kReplace);

  // Writes part of the tensor at `index` (as given to the constructor), starting `offset` bytes
  // into it. Parts must not overlap; commit() counts them.
  void write(std::size_t index, uint64_t offset, std::span<const std::byte> bytes);

  // Throws Error when a tensor is incomplete; otherwise flushes and renames into place.
  void commit();

  // Bytes of the whole file.
  uint64_t file_bytes() const { return file_bytes_; }

 private:
  struct Placed {
    OutputTensor tensor;
    uint64_t begin = 0;  // in the file
    uint64_t written = 0;
  };
  void place_tensors();
  std::string header() const;

  std::string path_;
  std::vector<Placed> tensors_;
  uint64_t file_bytes_ = 0;
  std::optional<AtomicFile> file_;
};

// model.safetensors.index.json: where each tensor is, and the tensors' bytes in all.
nlohmann::ordered_json shard_index_json(const std::map<std::string, std::string>& weight_map,
                                        uint64_t total_size);

// Whether the config.json of `folder` is a model's.
bool holds_checkpoint(const std::filesystem::path& folder);

// Takes the checkpoint in `folder` apart, config.json first: weights (model*.safetensors), index,
// metadata, tokenizer and template are removed, other files stay. Returns the names of what was
// removed: none when there was none.
std::vector<std::string> retire_checkpoint(const std::filesystem::path& folder);

// Moves everything in `staging` into `folder`, config.json last, and removes `staging`: until the
// last rename a reader of `folder` finds no config.json, and so no checkpoint. Can be repeated
// after an interruption. Both must be on one file system.
void publish(const std::filesystem::path& staging, const std::filesystem::path& folder);

}  // namespace levin::checkpoint
