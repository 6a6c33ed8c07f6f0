// What a checkpoint's metadata says about quantization, in either dialect (ModelOpt,
// compressed-tensors), merged from every place that repeats it, with the contradictions found.
#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/name_pattern.h"

namespace levin::checkpoint {

// Per-module algorithms levin knows. Spellings are ModelOpt's quant_algo, except for int4, which is
// compressed-tensors' pack-quantized format.
enum class QuantAlgo {
  kNone,
  kFp8,                    // "FP8": per-tensor weight, static per-tensor input
  kFp8PerChannelPerToken,  // "FP8_PER_CHANNEL_PER_TOKEN"
  kNvfp4,                  // "NVFP4": W4A4
  kW4A16Nvfp4,             // "W4A16_NVFP4"
  kInt4Packed              // compressed-tensors pack-quantized, symmetric, group along the input
};
std::string_view name_of(QuantAlgo algo);

struct ModuleQuant {
  QuantAlgo algo = QuantAlgo::kNone;
  int group_size = 0;  // 0 for formats without groups
  bool operator==(const ModuleQuant&) const = default;
};

enum class KvCacheQuant { kNone, kFp8 };

struct QuantMetadata {
  std::string method;  // "" (not quantized), "modelopt" or "compressed-tensors"
  KvCacheQuant kv_cache = KvCacheQuant::kNone;
  std::string format_version;  // of compressed-tensors, "0.18.1"; or ""
  std::string producer;        // who wrote it, "modelopt 0.44.0"; or ""

  // Explicit entries by canonical module name (MIXED_PRECISION's quantized_layers).
  std::map<std::string, ModuleQuant, std::less<>> modules;
  // compressed-tensors targets by name or regular expression, the first match wins.
  std::vector<std::pair<NamePattern, ModuleQuant>> targets;
  // Uniform checkpoints: what every linear gets that no ignore entry matches.
  std::optional<ModuleQuant> everywhere_else;
  // Names, globs (ModelOpt) or "re:" patterns (compressed-tensors), in any public spelling.
  std::vector<NamePattern> ignore;

  // Every way in which the places disagree, one sentence each with file names and both values.
  // `levin inspect` prints them and exits 1; loading for execution refuses.
  std::vector<std::string> contradictions;
  // What is stale but harmless: entries that match no module, settings told in one place only.
  std::vector<std::string> warnings;

  // What the metadata promises for a linear module ("backbone.layers.1.mixer.experts.0.up_proj").
  // Exact entries first (one for merged experts, "...experts.up_proj", counts for each of them),
  // then, unless ignored, `targets` and `everywhere_else`. Excluding is by exact name, glob or
  // regex; never by substring (see docs/architecture.md).
  ModuleQuant for_module(std::string_view module) const;
};

// Reads config.json's quantization_config and hf_quant_config.json of `folder` (either may be
// absent). Unknown quant_method, quant_algo or format is an Error that names it. With `modules`
// (canonical names of all modules of the checkpoint) the places are compared on each of them, and
// entries that match none are warned about; without, only on the modules they name.
//
// Dialects: ModelOpt modelopt/torch/export (quant_utils.py, convert_hf_config.py);
// compressed-tensors formats "pack-quantized" (int4) and "nvfp4-pack-quantized".
QuantMetadata read_quant_metadata(const std::filesystem::path& folder, const nlohmann::json& config,
                                  const std::vector<std::string>& modules = {});

// The same from parsed files: `hf_quant_config` is null when there is no such file.
QuantMetadata merge_quant_metadata(const nlohmann::json& config,
                                   const nlohmann::json& hf_quant_config,
                                   const std::vector<std::string>& modules = {});

}  // namespace levin::checkpoint
