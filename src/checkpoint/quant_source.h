// One place that tells how a checkpoint is quantized, taken apart; quant_metadata.cpp compares the
// places and merges them.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/quant_metadata.h"

namespace levin::checkpoint {

struct QuantSource {
  std::string place;       // "config.json quantization_config"
  QuantMetadata told;      // modules, targets, everywhere_else, ignore, producer, kv_cache
  std::string quant_algo;  // as spelled, "" when there is none
  std::optional<ModuleQuant> uniform;  // what quant_algo means, unless it is MIXED_PRECISION
  bool lists_modules = false;  // it has a per-module list, so silence about a module means BF16
  // The key for the KV cache is there (null included).
  bool tells_kv_cache = false;
  bool groups_only = false;  // config_groups: formats without ignore list and without KV cache
};

// The same promise about the bytes, whatever the spelling: config_groups cannot tell the two FP8
// algorithms apart.
bool same_promise(const ModuleQuant& a, const ModuleQuant& b, bool from_groups);
// "NVFP4 (group 16)".
std::string told_as(const ModuleQuant& quant);

// ModelOpt: config.json's quantization_config, and its config_groups as a place of its own when
// they name modules.
std::vector<QuantSource> parse_modelopt_config(const nlohmann::json& quantization_config);
// ModelOpt: hf_quant_config.json, nested or flat.
QuantSource parse_hf_quant_config(const nlohmann::json& json);
// compressed-tensors: config.json's quantization_config.
QuantSource parse_compressed_tensors(const nlohmann::json& quantization_config);

// Shared by the dialects. `where` names file and key in errors.
namespace quant_json {

[[noreturn]] void fail(const std::string& what, const std::string& where,
                       const std::string& expected, const std::string& found,
                       const std::string& hint = {});
// The value of `key`, nullptr when absent or null.
const nlohmann::json* find(const nlohmann::json& object, const char* key);
const nlohmann::json& require_object(const nlohmann::json& value, const std::string& where);
std::string get_string(const nlohmann::json& object, const char* key, const std::string& where);
int get_int(const nlohmann::json& object, const char* key, int otherwise, const std::string& where);
std::vector<std::string> get_strings(const nlohmann::json& value, const std::string& where);
std::string shown(const nlohmann::json& value);
// "modelopt 0.44.0" out of {"producer": {"name", "version"}}; "" when there is none.
std::string producer_of(const nlohmann::json& object, const std::string& where);
// A target that two config groups claim must mean one format: some engines take the first, some the
// last. `before` is what an earlier group said, nullptr when none did.
void check_claim(const ModuleQuant* before, const ModuleQuant& now, const std::string& target,
                 const std::string& where);
// null, "FP8", or {"type": "float", "num_bits": 8, "dynamic": false}.
KvCacheQuant parse_kv_cache(const nlohmann::json& value, const std::string& where);

}  // namespace quant_json
}  // namespace levin::checkpoint
