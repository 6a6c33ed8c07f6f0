// Quantization metadata for a checkpoint that is being written. Every place that repeats it is made
// from the same value, so that a reader of any one of them sees the same truth:
//   - config.json quantization_config: config_groups, quantized_layers, ignore, quant_algo
//   - hf_quant_config.json (ModelOpt only)
// Forms: NVIDIA ModelOpt modelopt/torch/export (quant_utils.py, convert_hf_config.py);
// compressed-tensors "pack-quantized" as llm-compressor writes it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/quant_metadata.h"

namespace levin::checkpoint {

struct WrittenQuant {
  // Modules with a weight matrix as the tensors spell them, in the order of the model. Those that
  // stay float (embeddings, routers and convolutions included) have QuantAlgo::kNone.
  std::vector<std::pair<std::string, ModuleQuant>> modules;
  KvCacheQuant kv_cache = KvCacheQuant::kNone;
  std::string producer_name;
  std::string producer_version;
};

// ModelOpt's two files. With one algorithm in the whole checkpoint the uniform form (quant_algo and
// a list of exceptions), otherwise MIXED_PRECISION with a list of layers. At least one module is
// quantized, none of them to int4.
nlohmann::ordered_json modelopt_quantization_config(const WrittenQuant& quant);
nlohmann::ordered_json modelopt_hf_quant_config(const WrittenQuant& quant);

// config.json's quantization_config for int4. Every quantized module has the same group size.
nlohmann::ordered_json compressed_tensors_quantization_config(const WrittenQuant& quant);

// The text of config.json with `quantization_config` added as the last key; everything else stays
// byte for byte, bare Infinity included. Throws Error when `config` has a quantization_config
// already or is not an object. `where` names the file.
std::string with_quantization_config(std::string_view config,
                                     const nlohmann::ordered_json& quantization_config,
                                     const std::string& where);

}  // namespace levin::checkpoint
