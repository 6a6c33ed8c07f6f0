#include "checkpoint/metadata_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.h"
#include "core/files.h"

namespace levin::checkpoint {
namespace {

using Json = nlohmann::ordered_json;

// The release whose layout is written; readers do not depend on it.
constexpr const char* kCompressedTensorsVersion = "0.18.1";

bool is_quantized(const ModuleQuant& quant) {
  return quant.algo != QuantAlgo::kNone;
}

// Distinct formats in first-seen order.
std::vector<ModuleQuant> formats_of(const WrittenQuant& quant) {
  std::vector<ModuleQuant> formats;
  for (const auto& [module, format] : quant.modules) {
    if (!is_quantized(format)) continue;
    if (std::find(formats.begin(), formats.end(), format) == formats.end()) {
      formats.push_back(format);
    }
  }
  return formats;
}

bool is_uniform(const WrittenQuant& quant) {
  return formats_of(quant).size() == 1;
}

// Sorted names of quantized modules, for prefix tests.
std::set<std::string> quantized_names(const WrittenQuant& quant) {
  std::set<std::string> names;
  for (const auto& [module, format] : quant.modules) {
    if (is_quantized(format)) names.insert(module);
  }
  return names;
}

bool is_prefix_of_any(const std::string& prefix, const std::set<std::string>& names) {
  const auto candidate = names.lower_bound(prefix);
  return candidate != names.end() && candidate->starts_with(prefix);
}

// The shortest "prefix*", cut at a dot, that covers `module` and no quantized module; the name
// itself when there is none.
std::string exclusion(const std::string& module, const std::set<std::string>& quantized) {
  for (std::size_t dot = module.find('.'); dot != std::string::npos;
       dot = module.find('.', dot + 1)) {
    const std::string prefix = module.substr(0, dot);
    if (!is_prefix_of_any(prefix, quantized)) return prefix + "*";
  }
  return module;
}

// A uniform checkpoint is a deny list: whatever it does not name counts as quantized. A mixed one
// names what is quantized; there ModelOpt mentions only an MTP head that stays as it is.
std::vector<std::string> exclusions(const WrittenQuant& quant) {
  const std::set<std::string> quantized = quantized_names(quant);
  const bool uniform = is_uniform(quant);
  std::set<std::string> patterns;
  for (const auto& [module, format] : quant.modules) {
    if (is_quantized(format)) continue;
    const std::string pattern = exclusion(module, quantized);
    if (uniform || pattern == "mtp*") patterns.insert(pattern);
  }
  return {patterns.begin(), patterns.end()};
}

Json layer_entry(const ModuleQuant& quant) {
  Json entry = {{"quant_algo", name_of(quant.algo)}};
  if (quant.group_size > 0) entry["group_size"] = quant.group_size;
  return entry;
}

Json quantized_layers(const WrittenQuant& quant) {
  Json layers = Json::object();
  for (const auto& [module, format] : quant.modules) {
    if (is_quantized(format)) layers[module] = layer_entry(format);
  }
  return layers;
}

Json number_format(const ModuleQuant& quant, bool weights) {
  const bool fp8 = quant.group_size == 0;
  Json format = {{"dynamic", false}, {"num_bits", fp8 ? 8 : 4}, {"type", "float"}};
  if (!fp8) format["group_size"] = quant.group_size;
  if (weights && quant.algo == QuantAlgo::kFp8PerChannelPerToken) format["strategy"] = "channel";
  return format;
}

Json group_body(const ModuleQuant& quant) {
  Json group = Json::object();
  if (quant.algo != QuantAlgo::kW4A16Nvfp4) {
    group["input_activations"] = number_format(quant, false);
  }
  group["weights"] = number_format(quant, true);
  return group;
}

Json config_groups(const WrittenQuant& quant) {
  Json groups = Json::object();
  const std::vector<ModuleQuant> formats = formats_of(quant);
  for (std::size_t i = 0; i < formats.size(); ++i) {
    Json group = group_body(formats[i]);
    std::set<std::string> targets;
    for (const auto& [module, format] : quant.modules) {
      if (format == formats[i]) targets.insert(module);
    }
    group["targets"] = formats.size() == 1 ? std::set<std::string>{"Linear"} : targets;
    groups[fmt::format("group_{}", i)] = std::move(group);
  }
  return groups;
}

std::string quant_algo(const WrittenQuant& quant) {
  const std::vector<ModuleQuant> formats = formats_of(quant);
  return formats.size() == 1 ? std::string(name_of(formats[0].algo)) : "MIXED_PRECISION";
}

Json producer(const WrittenQuant& quant) {
  return {{"name", quant.producer_name}, {"version", quant.producer_version}};
}

std::string escape_regex(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '.') escaped += '\\';
    escaped += c;
  }
  return escaped;
}

// Exceptions in a form that survives the renaming of `backbone.` to `model.` in engines: by the
// last part of the name where that tells enough, the whole MTP head at once.
std::vector<std::string> compressed_tensors_ignore(const WrittenQuant& quant) {
  const std::set<std::string> quantized = quantized_names(quant);
  const bool keeps_mtp = !is_prefix_of_any("mtp.", quantized);
  std::set<std::string> last_parts;
  for (const std::string& name : quantized) last_parts.insert(name.substr(name.rfind('.') + 1));
  std::vector<std::string> entries;
  std::set<std::string> seen;
  for (const auto& [module, format] : quant.modules) {
    if (is_quantized(format)) continue;
    const std::size_t dot = module.rfind('.');
    std::string entry = module;
    if (keeps_mtp && module.starts_with("mtp.")) {
      entry = "re:.*mtp\\..*";
    } else if (dot != std::string::npos && !last_parts.contains(module.substr(dot + 1))) {
      entry = fmt::format("re:.*{}$", escape_regex(module.substr(dot)));
    }
    if (seen.insert(entry).second) entries.push_back(std::move(entry));
  }
  return entries;
}

}  // namespace

Json modelopt_quantization_config(const WrittenQuant& quant) {
  Json config;
  config["config_groups"] = config_groups(quant);
  if (!is_uniform(quant)) config["quantized_layers"] = quantized_layers(quant);
  config["ignore"] = exclusions(quant);
  config["quant_algo"] = quant_algo(quant);
  if (quant.kv_cache == KvCacheQuant::kFp8) {
    config["kv_cache_scheme"] = {{"dynamic", false}, {"num_bits", 8}, {"type", "float"}};
  }
  config["producer"] = producer(quant);
  config["quant_method"] = "modelopt";
  return config;
}

Json modelopt_hf_quant_config(const WrittenQuant& quant) {
  Json body;
  body["quant_algo"] = quant_algo(quant);
  body["kv_cache_quant_algo"] = quant.kv_cache == KvCacheQuant::kFp8 ? Json("FP8") : Json(nullptr);
  const std::vector<ModuleQuant> formats = formats_of(quant);
  if (formats.size() == 1) {
    if (formats[0].group_size > 0) body["group_size"] = formats[0].group_size;
  } else {
    body["quantized_layers"] = quantized_layers(quant);
  }
  body["exclude_modules"] = exclusions(quant);
  Json config;
  config["producer"] = producer(quant);
  config["quantization"] = std::move(body);
  return config;
}

Json compressed_tensors_quantization_config(const WrittenQuant& quant) {
  const int group_size = formats_of(quant).at(0).group_size;
  Json weights = {{"num_bits", 4},
                  {"type", "int"},
                  {"symmetric", true},
                  {"strategy", "group"},
                  {"group_size", group_size},
                  {"block_structure", nullptr},
                  {"dynamic", false},
                  {"actorder", nullptr},
                  {"observer", "memoryless_minmax"},
                  {"observer_kwargs", Json::object()},
                  {"scale_dtype", nullptr},
                  {"zp_dtype", nullptr}};
  Json group = {{"format", "pack-quantized"},
                {"targets", Json::array({"Linear"})},
                {"input_activations", nullptr},
                {"output_activations", nullptr},
                {"weights", std::move(weights)}};
  Json config;
  config["quant_method"] = "compressed-tensors";
  config["version"] = kCompressedTensorsVersion;
  config["format"] = "pack-quantized";
  config["quantization_status"] = "compressed";
  config["global_compression_ratio"] = nullptr;
  config["kv_cache_scheme"] = nullptr;
  config["transform_config"] = Json::object();
  config["config_groups"] = {{"config_group_0", std::move(group)}};
  config["ignore"] = compressed_tensors_ignore(quant);
  return config;
}

std::string with_quantization_config(std::string_view config, const Json& quantization_config,
                                     const std::string& where) {
  constexpr const char* kKey = "quantization_config";
  const nlohmann::json parsed = parse_json(config, where);
  if (!parsed.is_object() || parsed.empty() || parsed.contains(kKey)) {
    throw Error({.what = "config.json cannot take a quantization_config",
                 .where = where,
                 .expected = "an object without that key",
                 .found = parsed.contains(kKey) ? "one that has it already" : "something else",
                 .hint = parsed.contains(kKey) ? "start from the unquantized checkpoint" : ""});
  }
  const std::size_t brace = config.rfind('}');
  std::size_t end = brace;
  while (end > 0 && std::string_view(" \t\r\n").find(config[end - 1]) != std::string_view::npos) {
    --end;
  }
  // Indented by one level, as the keys around it.
  std::string body = quantization_config.dump(2);
  for (std::size_t at = body.find('\n'); at != std::string::npos; at = body.find('\n', at + 3)) {
    body.insert(at + 1, "  ");
  }
  std::string text = fmt::format("{},\n  \"{}\": {}\n}}\n", config.substr(0, end), kKey, body);
  parse_json(text, where);
  return text;
}

}  // namespace levin::checkpoint
