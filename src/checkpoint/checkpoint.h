// A Hugging Face checkpoint folder as one validated catalogue of tensors under canonical names.
//
// Canonical names are those of the public BF16 releases: `backbone.*`, per-expert matrices,
// `lm_head.weight`, `mtp.*`. At open, `language_model.` is stripped, `model.` becomes `backbone.`,
// `backbone.embedding.` becomes `backbone.embeddings.`, and merged 3-D experts ([E, out, in]) are
// split into per-expert entries, so that nobody downstream knows more than one layout.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/names.h"
#include "checkpoint/quant_metadata.h"
#include "core/tensor.h"

namespace levin::checkpoint {

struct TensorInfo {
  std::string name;         // canonical
  std::string stored_name;  // as spelled in the file
  DType dtype = DType::kBF16;
  Shape shape;
  std::string file;  // shard file name, or "dummy"
  uint64_t bytes = 0;
};

// A tensor that a dummy checkpoint pretends to hold.
struct TensorSpec {
  std::string name;
  DType dtype = DType::kBF16;
  Shape shape;
  // What values to make, so that activations keep their size and everything is finite.
  enum class Fill : uint8_t {
    kWeight,  // normal with standard deviation 1 / sqrt(fan_in)
    kNorm,    // 1 +- a few per cent
    kZero,
    kALog,    // log of 1..16, as Mamba-2 is initialized
    kDtBias,  // inverse softplus of 0.001..0.1, likewise
    kOne,
    kCodes,       // quantized weights: random U8 or I32, or normal F8_E4M3
    kBlockScale,  // F8_E4M3 from 128 to 448
    kScale,       // all elements are `value`
    kIntegers     // I64: `integers`
  };
  Fill fill = Fill::kWeight;
  int64_t fan_in = 1;
  float value = 1.0F;
  std::vector<int64_t> integers;
};

class Checkpoint {
 public:
  // Opens `folder` with one model.safetensors or with shards and model.safetensors.index.json.
  // Every header is validated (offsets, overlaps, gaps, lengths, dtypes, duplicate names, index
  // against contents) before any byte of data is used. Throws Error naming file and tensor.
  // Costs a memory map per shard and the catalogue; no data is read.
  static std::shared_ptr<const Checkpoint> open(const std::filesystem::path& folder);

  // Reads only the configuration of `folder`; tensors are `specs` with deterministic random values
  // (same name and seed, same bytes), made when first viewed and kept from then on. Large ones are
  // windows of a pool for each kind: all take little more than the largest of each kind.
  static std::shared_ptr<const Checkpoint> dummy(const std::filesystem::path& folder,
                                                 std::vector<TensorSpec> specs, uint64_t seed);

  virtual ~Checkpoint() = default;
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;

  const std::filesystem::path& folder() const { return folder_; }
  // config.json, unmodified but for __float__ objects (core/files.h).
  const nlohmann::json& config() const { return *config_; }
  // Quantization as told by config.json and hf_quant_config.json, names canonical.
  const QuantMetadata& quantization() const { return quantization_; }
  // What is odd but harmless about the folder, one sentence each; printed by `levin inspect`.
  const std::vector<std::string>& warnings() const { return warnings_; }

  // All tensors in file order (dummy: in the order of the specs).
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  // Nothing when the checkpoint has no tensor of that canonical name.
  const TensorInfo* find(std::string_view name) const;
  // The bytes, valid as long as the checkpoint and aligned to the element size (a misaligned tensor
  // is copied on first view). Throws Error when there is no such tensor. Any thread may call it.
  TensorView view(std::string_view name) const;
  // Tells the system that these bytes of a view will not be read again soon, so that streaming
  // through a checkpoint does not keep all of it in memory. They stay readable, but for the copy of
  // a misaligned tensor: that goes with its last byte, and the tensor must be viewed anew.
  virtual void release(std::span<const std::byte> /*bytes*/) const {}
  // Bytes of the largest misaligned tensor, which a view of it copies; 0 when there is none.
  virtual uint64_t largest_copy() const { return 0; }
  // Sum of the tensors' bytes.
  uint64_t total_bytes() const;

 protected:
  // Reads config.json.
  explicit Checkpoint(std::filesystem::path folder);
  virtual TensorView view_at(std::size_t index) const = 0;
  // Appends to the catalogue. Throws Error when the canonical name is taken already.
  void add_tensor(TensorInfo info);
  // Reads the quantization metadata; the catalogue is complete by then.
  void read_quantization();

  std::filesystem::path folder_;
  std::shared_ptr<const nlohmann::json> config_;
  QuantMetadata quantization_;
  std::vector<std::string> warnings_;
  std::vector<TensorInfo> tensors_;
  std::map<std::string, std::size_t, std::less<>> index_;
};

}  // namespace levin::checkpoint
