// ModelOpt's dialect (modelopt/torch/export/quant_utils.py, convert_hf_config.py).
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "checkpoint/names.h"
#include "checkpoint/quant_source.h"

namespace levin::checkpoint {
namespace {

using nlohmann::json;
using namespace quant_json;

constexpr int kNvfp4Block = 16;

// `group_size` is 0 when it is not told.
ModuleQuant parse_algo(const std::string& name, int group_size, const std::string& where) {
  if (name.empty()) return {};
  if (name == "FP8") return {QuantAlgo::kFp8, 0};
  if (name == "FP8_PER_CHANNEL_PER_TOKEN") return {QuantAlgo::kFp8PerChannelPerToken, 0};
  if (name == "NVFP4" || name == "W4A16_NVFP4") {
    if (group_size != 0 && group_size != kNvfp4Block) {
      fail("unsupported NVFP4 group size", where, std::to_string(kNvfp4Block),
           std::to_string(group_size));
    }
    return {name == "NVFP4" ? QuantAlgo::kNvfp4 : QuantAlgo::kW4A16Nvfp4, kNvfp4Block};
  }
  fail("unsupported quant_algo", where,
       "FP8, FP8_PER_CHANNEL_PER_TOKEN, NVFP4, W4A16_NVFP4 or MIXED_PRECISION",
       fmt::format("\"{}\"", printable(name)));
}

// Adds an entry; two spellings of one module must agree.
void add_module(QuantSource& source, const std::string& stored, const ModuleQuant& quant) {
  const auto [place, inserted] = source.told.modules.emplace(canonical_name(stored), quant);
  if (inserted || place->second == quant) return;
  fail("quantization metadata names a module twice", source.place,
       fmt::format("one entry for {}", printable(place->first)),
       fmt::format("{} and {}", name_of(place->second.algo), name_of(quant.algo)));
}

void parse_quantized_layers(const json& layers, QuantSource& source) {
  const std::string where = source.place + ", quantized_layers";
  source.lists_modules = true;
  for (const auto& [module, entry] : require_object(layers, where).items()) {
    const std::string at = fmt::format("{}, \"{}\"", where, printable(module));
    require_object(entry, at);
    add_module(
        source, module,
        parse_algo(get_string(entry, "quant_algo", at), get_int(entry, "group_size", 0, at), at));
  }
}

// Methods that change the weights in ways this program does not undo.
void refuse_flag(const json& object, const char* key, const std::string& where) {
  const json* value = find(object, key);
  if (value == nullptr || *value == false) return;
  fail("unsupported quantization option", fmt::format("{}, {}", where, key), "false",
       shown(*value));
}

void refuse_content(const json& object, const char* key, const std::string& where) {
  const json* value = find(object, key);
  if (value == nullptr || value->empty()) return;
  fail("unsupported quantization option", fmt::format("{}, {}", where, key), "nothing in it",
       shown(*value));
}

void parse_ignore(const json& object, const char* key, QuantSource& source) {
  const json* value = find(object, key);
  if (value == nullptr) return;
  for (std::string& entry : get_strings(*value, fmt::format("{}, {}", source.place, key))) {
    source.told.ignore.emplace_back(std::move(entry));
  }
}

void parse_kv(const json& object, const char* key, QuantSource& source) {
  const auto value = object.find(key);
  if (value == object.end()) return;
  const KvCacheQuant kv = parse_kv_cache(*value, fmt::format("{}, {}", source.place, key));
  if (source.tells_kv_cache && kv != source.told.kv_cache) {
    fail("two keys disagree about the KV cache", source.place,
         "kv_cache_scheme and kv_cache_quant_algo that agree", shown(*value));
  }
  source.told.kv_cache = kv;
  source.tells_kv_cache = true;
}

// The keys that both files have, under either of their names.
QuantSource parse_body(const json& body, std::string place) {
  QuantSource source;
  source.place = std::move(place);
  require_object(body, source.place);
  source.told.method = "modelopt";
  refuse_flag(body, "has_zero_point", source.place);
  refuse_flag(body, "pre_quant_scale", source.place);
  refuse_content(body, "sparsity_config", source.place);
  refuse_content(body, "transform_config", source.place);
  parse_kv(body, "kv_cache_scheme", source);
  parse_kv(body, "kv_cache_quant_algo", source);
  parse_ignore(body, "ignore", source);
  parse_ignore(body, "exclude_modules", source);
  source.told.producer = producer_of(body, source.place);
  if (const json* layers = find(body, "quantized_layers")) parse_quantized_layers(*layers, source);
  source.quant_algo = get_string(body, "quant_algo", source.place);
  if (source.quant_algo == "MIXED_PRECISION" || source.quant_algo.empty()) return source;
  const ModuleQuant uniform =
      parse_algo(source.quant_algo, get_int(body, "group_size", 0, source.place), source.place);
  // A uniform checkpoint may still list its layers; then the list is the more exact statement.
  source.uniform = uniform;
  if (!source.lists_modules) source.told.everywhere_else = uniform;
  return source;
}

// A group's body tells the algorithm by its bits and by whether inputs are quantized.
ModuleQuant parse_group_body(const json& group, const std::string& where) {
  const json* weights = find(group, "weights");
  if (weights == nullptr) fail("config group has no weights", where, "weights", "nothing");
  require_object(*weights, where + ", weights");
  const std::string at = where + ", weights";
  const std::string type = get_string(*weights, "type", at);
  const int bits = get_int(*weights, "num_bits", 0, at);
  const bool inputs = find(group, "input_activations") != nullptr;
  if (type == "float" && bits == 8 && inputs) return {QuantAlgo::kFp8, 0};
  if (type == "float" && bits == 4) {
    return parse_algo(inputs ? "NVFP4" : "W4A16_NVFP4", get_int(*weights, "group_size", 0, at), at);
  }
  fail("unsupported config group", at, "float weights with 8 bits (and inputs) or 4 bits",
       shown(*weights));
}

// Nothing when the groups name no modules ("Linear" is every module, which quant_algo says too).
std::optional<QuantSource> parse_groups(const json& groups) {
  QuantSource source;
  source.place = "config.json quantization_config.config_groups";
  source.told.method = "modelopt";
  source.groups_only = true;
  for (const auto& [name, group] : require_object(groups, source.place).items()) {
    const std::string where = fmt::format("{}, {}", source.place, printable(name));
    const json* targets = find(require_object(group, where), "targets");
    if (targets == nullptr) continue;
    const ModuleQuant quant = parse_group_body(group, where);
    for (const std::string& target : get_strings(*targets, where + ", targets")) {
      if (target == "Linear") {
        std::optional<ModuleQuant>& all = source.told.everywhere_else;
        check_claim(all ? &*all : nullptr, quant, target, where);
        all = quant;
      } else {
        source.lists_modules = true;
        add_module(source, target, quant);
      }
    }
  }
  if (!source.lists_modules && !source.told.everywhere_else) return std::nullopt;
  return source;
}

}  // namespace

bool same_promise(const ModuleQuant& a, const ModuleQuant& b, bool from_groups) {
  const auto is_fp8 = [](const ModuleQuant& quant) {
    return quant.algo == QuantAlgo::kFp8 || quant.algo == QuantAlgo::kFp8PerChannelPerToken;
  };
  return a == b || (from_groups && is_fp8(a) && is_fp8(b));
}

std::vector<QuantSource> parse_modelopt_config(const json& quantization_config) {
  std::vector<QuantSource> sources;
  sources.push_back(parse_body(quantization_config, "config.json quantization_config"));
  QuantSource& body = sources.front();
  if (const json* groups = find(quantization_config, "config_groups")) {
    if (auto source = parse_groups(*groups)) {
      const bool mixed = body.quant_algo == "MIXED_PRECISION";
      if (mixed && !body.lists_modules && source->lists_modules) {
        // Nothing but the groups says which module is what.
        body.told.modules = source->told.modules;
        body.lists_modules = true;
      } else {
        sources.push_back(std::move(*source));
      }
    }
  }
  if (sources.front().quant_algo == "MIXED_PRECISION" && sources.front().told.modules.empty()) {
    fail("MIXED_PRECISION without a list of layers", sources.front().place, "quantized_layers",
         "nothing");
  }
  return sources;
}

QuantSource parse_hf_quant_config(const json& json) {
  const std::string place = "hf_quant_config.json";
  require_object(json, place);
  const auto* nested = find(json, "quantization");
  QuantSource source = parse_body(nested != nullptr ? *nested : json, place);
  if (find(json, "producer") != nullptr) source.told.producer = producer_of(json, source.place);
  if (source.quant_algo == "MIXED_PRECISION" && source.told.modules.empty()) {
    fail("MIXED_PRECISION without a list of layers", place, "quantized_layers", "nothing");
  }
  return source;
}

}  // namespace levin::checkpoint
