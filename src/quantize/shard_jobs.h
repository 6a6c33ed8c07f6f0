// Which output tensors every source shard turns into.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/writer.h"
#include "quantize/plan.h"

namespace levin::quantize {

// What an output tensor holds.
enum class Content : uint8_t {
  kCopy,         // the source tensor
  kCodes,        // weight, weight_packed
  kScales,       // weight_scale with one entry per block, group or row
  kGlobalScale,  // weight_scale_2, or weight_scale of FP8 per tensor
  kInputScale,
  kShape,  // weight_shape of compressed-tensors
  kKeyScale,
  kValueScale
};

struct OutputPart {
  Content content = Content::kCopy;
  checkpoint::OutputTensor tensor;
};

// One source tensor and what becomes of it.
struct Item {
  std::string source;                 // canonical name
  std::optional<std::size_t> linear;  // index into Plan::linears when it is quantized
  std::vector<OutputPart> parts;
};

struct ShardJob {
  std::string file;
  std::vector<Item> items;

  std::vector<checkpoint::OutputTensor> outputs() const;
};

// In the order of the source files.
std::vector<ShardJob> shard_jobs(const checkpoint::Checkpoint& source, const Plan& plan);

// The name under which the output spells canonical names: unchanged, except that a multimodal
// wrapper's "language_model." prefix comes back.
std::string output_prefix(const checkpoint::Checkpoint& source, const Plan& plan);

}  // namespace levin::quantize
