// The compressed-tensors dialect: int4 "pack-quantized" and "nvfp4-pack-quantized".
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "checkpoint/names.h"
#include "checkpoint/quant_source.h"

namespace levin::checkpoint {
namespace {

using nlohmann::json;
using namespace quant_json;

constexpr const char* kInt4Format = "pack-quantized";
constexpr const char* kNvfp4Format = "nvfp4-pack-quantized";
constexpr const char* kMixedFormat = "mixed-precision";  // each group says its own
constexpr int kNvfp4Block = 16;

[[noreturn]] void refuse(const char* key, const std::string& where, const std::string& expected,
                         const json& found) {
  fail("unsupported compressed-tensors setting", fmt::format("{}, {}", where, key), expected,
       shown(found));
}

void require_value(const json& object, const char* key, const json& expected,
                   const std::string& where) {
  const auto value = object.find(key);
  if (value == object.end() || *value != expected) {
    refuse(key, where, shown(expected), value == object.end() ? json() : *value);
  }
}

void require_absent(const json& object, const char* key, const std::string& where) {
  if (const json* value = find(object, key)) refuse(key, where, "null", *value);
}

ModuleQuant parse_int4(const json& group, const json& weights, const std::string& where) {
  require_value(weights, "num_bits", 4, where);
  require_value(weights, "type", "int", where);
  require_value(weights, "symmetric", true, where);
  require_value(weights, "strategy", "group", where);
  require_absent(weights, "actorder", where);
  require_absent(weights, "block_structure", where);
  require_absent(group, "input_activations", where);
  const int group_size = get_int(weights, "group_size", 0, where);
  if (group_size == 0) refuse("group_size", where, "a positive integer", json());
  return {QuantAlgo::kInt4Packed, group_size};
}

ModuleQuant parse_nvfp4(const json& group, const json& weights, const std::string& where) {
  require_value(weights, "num_bits", 4, where);
  require_value(weights, "type", "float", where);
  require_value(weights, "strategy", "tensor_group", where);
  require_value(weights, "group_size", kNvfp4Block, where);
  const json* inputs = find(group, "input_activations");
  if (inputs == nullptr) return {QuantAlgo::kW4A16Nvfp4, kNvfp4Block};
  const std::string at = where + ", input_activations";
  require_object(*inputs, at);
  require_value(*inputs, "num_bits", 4, at);
  require_value(*inputs, "type", "float", at);
  require_value(*inputs, "strategy", "tensor_group", at);
  require_value(*inputs, "group_size", kNvfp4Block, at);
  require_value(*inputs, "dynamic", "local", at);
  return {QuantAlgo::kNvfp4, kNvfp4Block};
}

ModuleQuant parse_group(const json& group, const std::string& top_format,
                        const std::string& where) {
  const json* weights = find(require_object(group, where), "weights");
  if (weights == nullptr) fail("config group has no weights", where, "weights", "nothing");
  require_object(*weights, where + ", weights");
  require_absent(group, "output_activations", where);
  std::string format = get_string(group, "format", where);
  if (format.empty()) format = top_format;
  if (format != kInt4Format && format != kNvfp4Format) {
    fail("unsupported compressed-tensors format", where,
         fmt::format("{} or {}", kInt4Format, kNvfp4Format),
         fmt::format("\"{}\"", printable(format)));
  }
  if (!top_format.empty() && top_format != kMixedFormat && top_format != format) {
    fail("two formats disagree", where,
         fmt::format("\"{}\", as beside config_groups", printable(top_format)),
         fmt::format("\"{}\"", format), "take out the one that is wrong");
  }
  return format == kInt4Format ? parse_int4(group, *weights, where)
                               : parse_nvfp4(group, *weights, where);
}

void parse_targets(const json& group, const ModuleQuant& quant, const std::string& where,
                   QuantMetadata& told) {
  const json* targets = find(group, "targets");
  if (targets == nullptr) fail("config group has no targets", where, "targets", "nothing");
  for (std::string& target : get_strings(*targets, where + ", targets")) {
    if (target == "Linear") {
      check_claim(told.everywhere_else ? &*told.everywhere_else : nullptr, quant, target, where);
      told.everywhere_else = quant;
      continue;
    }
    const auto claimed =
        std::find_if(told.targets.begin(), told.targets.end(),
                     [&](const auto& entry) { return entry.first.text() == target; });
    check_claim(claimed == told.targets.end() ? nullptr : &claimed->second, quant, target, where);
    told.targets.emplace_back(std::move(target), quant);
  }
}

}  // namespace

QuantSource parse_compressed_tensors(const json& quantization_config) {
  QuantSource source;
  source.place = "config.json quantization_config";
  const std::string& where = source.place;
  source.told.method = "compressed-tensors";
  const std::string status = get_string(quantization_config, "quantization_status", where);
  if (!status.empty() && status != "compressed") {
    refuse("quantization_status", where, "\"compressed\"", json(status));
  }
  for (const char* key : {"transform_config", "sparsity_config"}) {
    const json* value = find(quantization_config, key);
    if (value != nullptr && !value->empty()) refuse(key, where, "null or {}", *value);
  }
  if (const json* kv = find(quantization_config, "kv_cache_scheme")) {
    source.told.kv_cache = parse_kv_cache(*kv, where + ", kv_cache_scheme");
  }
  if (const json* ignore = find(quantization_config, "ignore")) {
    for (std::string& entry : get_strings(*ignore, where + ", ignore")) {
      source.told.ignore.emplace_back(std::move(entry));
    }
  }
  const std::string format = get_string(quantization_config, "format", where);
  const json* groups = find(quantization_config, "config_groups");
  if (groups == nullptr || !groups->is_object() || groups->empty()) {
    fail("compressed-tensors metadata has no config_groups", where, "config_groups", "nothing");
  }
  for (const auto& [name, group] : groups->items()) {
    const std::string at = fmt::format("{}, config_groups, {}", where, printable(name));
    parse_targets(group, parse_group(group, format, at), at, source.told);
  }
  source.told.format_version = get_string(quantization_config, "version", where);
  source.told.producer = producer_of(quantization_config, where);
  return source;
}

}  // namespace levin::checkpoint
