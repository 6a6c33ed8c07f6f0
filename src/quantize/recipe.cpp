#include "quantize/recipe.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

#include "core/error.h"
#include "core/files.h"
#include "quantize/recipe_scope.h"
#include "quantize/shipped.h"
#include "quantize/yaml_tree.h"

namespace levin::quantize {
namespace fs = std::filesystem;
namespace {

constexpr std::size_t kMaxRecipeBytes = std::size_t{1} << 20;
constexpr std::size_t kMaxRules = 100'000;
// ModelOpt: rho stays below the dynamic range of normal E4M3 numbers, 448 / 2^-6.
constexpr double kMaxRho = 28672.0;

const ScopedNode* find(const Entries& entries, std::string_view key) {
  const auto entry = std::find_if(entries.begin(), entries.end(),
                                  [&](const auto& candidate) { return candidate.first == key; });
  return entry == entries.end() ? nullptr : &entry->second;
}

bool is_null(const ScopedNode& node) {
  return node.yaml.is_null();
}

[[noreturn]] void refuse(const ScopedNode& node, std::string_view key, const std::string& found,
                         const std::string& hint = {}) {
  fail(node.yaml, fmt::format("\"{}\" asks for what levin does not do", key), {}, found, hint);
}

// Numbers, ExMy text, or a list [x, y].
NumBits num_bits_of(const ScopedNode& node, std::string_view key) {
  static const std::map<std::string, NumBits, std::less<>> kNames = {
      {"e4m3", {4, 3}}, {"e5m2", {5, 2}}, {"e2m1", {2, 1}}, {"e3m2", {3, 2}},
      {"e2m3", {2, 3}}, {"e8m0", {8, 0}}, {"e1m2", {1, 2}}, {"e3m0", {3, 0}}};
  const YamlNode& yaml = node.yaml;
  if (yaml.is_list()) {
    if (yaml.size() != 2) {
      fail(yaml, fmt::format("\"{}\" has the wrong form", key), "[exponent, mantissa]",
           fmt::format("a list of {}", yaml.size()));
    }
    const int64_t exponent = as_integer(yaml.item(0), key);
    const int64_t mantissa = as_integer(yaml.item(1), key);
    if (exponent < 1 || exponent > 8 || mantissa < 0 || mantissa > 7) {
      fail(yaml, fmt::format("\"{}\" is out of range", key), "[1..8, 0..7]",
           fmt::format("[{}, {}]", exponent, mantissa));
    }
    return {static_cast<int>(exponent), static_cast<int>(mantissa)};
  }
  std::string text = as_string(yaml, key);
  std::transform(text.begin(), text.end(), text.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  const auto name = kNames.find(text);
  if (name != kNames.end()) return name->second;
  const int64_t bits = as_integer(yaml, key);
  if (bits < 1 || bits > 16) {
    fail(yaml, fmt::format("\"{}\" is out of range", key), "1..16, or a name like e4m3",
         fmt::format("{}", bits));
  }
  return {0, static_cast<int>(bits)};
}

bool dynamic_of(const ScopedNode& node) {
  const std::string text = as_string(node.yaml, "type");
  if (text == "dynamic") return true;
  if (text == "static") return false;
  fail(node.yaml, "\"type\" is unknown", "static or dynamic", text);
}

BlockSizes block_sizes_of(const ScopedNode& node) {
  BlockSizes blocks;
  bool has_axis = false;
  for (const auto& [key, value] : merged_mapping(
           node, "block_sizes",
           {"-1", "-2", "0", "1", "type", "scale_bits", "scale_block_sizes", "four_over_six"})) {
    if (key == "-1" || key == "1") {
      has_axis = true;
      blocks.size = is_null(value) ? 0 : as_integer(value.yaml, "block size");
      if (!is_null(value) && blocks.size < 1) {
        fail(value.yaml, "block size is out of range", "at least 1",
             fmt::format("{}", blocks.size));
      }
    } else if (key == "type") {
      blocks.dynamic = dynamic_of(value);
    } else if (key == "scale_bits") {
      blocks.scale_bits = num_bits_of(value, key);
    } else if (key == "four_over_six") {
      blocks.four_over_six = as_bool(value.yaml, key);
    } else if (!is_null(value)) {
      refuse(value, "block_sizes", fmt::format("\"{}\"", key),
             "blocks run along the input (-1) only");
    }
  }
  if (!has_axis) fail(node.yaml, "block_sizes names no axis", "-1: size", {});
  return blocks;
}

// Attributes that change nothing about the bytes written.
bool is_without_effect(std::string_view key) {
  return key == "fake_quant" || key == "effective_bits" || key == "pass_through_bwd" ||
         key == "trt_high_precision_dtype" || key == "learn_amax";
}

// Attributes that are fine at their default only.
void check_default(const std::string& key, const ScopedNode& value) {
  if (is_null(value)) return;
  const std::string text = value.yaml.is_scalar() ? value.yaml.tree->scalar : "a structure";
  const bool harmless = key == "calibrator" ? text == "max" : text == "false" || text == "False";
  if (!harmless) refuse(value, key, text);
}

QuantizerAttributes attributes_of(const ScopedNode& node) {
  QuantizerAttributes attributes;
  const Entries entries =
      merged_mapping(node, "cfg",
                     {"num_bits", "axis", "block_sizes", "type", "use_constant_amax",
                      "constant_amax", "fake_quant", "effective_bits", "pass_through_bwd",
                      "trt_high_precision_dtype", "learn_amax", "calibrator", "unsigned",
                      "narrow_range", "bias", "rotate", "backend", "backend_extra_args"});
  for (const auto& [key, value] : entries) {
    if (is_without_effect(key)) continue;
    if (key == "num_bits") {
      attributes.num_bits = num_bits_of(value, key);
    } else if (key == "axis") {
      if (is_null(value)) continue;
      const int64_t axis = as_integer(value.yaml, key);
      if (axis != 0 && axis != -2) refuse(value, key, fmt::format("{}", axis), "use 0 or null");
      attributes.axis = 0;
    } else if (key == "block_sizes") {
      if (!is_null(value)) attributes.block_sizes = block_sizes_of(value);
    } else if (key == "type") {
      attributes.dynamic = dynamic_of(value);
    } else if (key == "use_constant_amax") {
      attributes.use_constant_amax = as_bool(value.yaml, key);
    } else if (key == "constant_amax") {
      if (is_null(value)) continue;
      attributes.constant_amax = as_number(value.yaml, key);
      if (!(*attributes.constant_amax > 0)) {
        fail(value.yaml, "constant_amax is out of range", "above 0",
             fmt::format("{}", *attributes.constant_amax));
      }
    } else {
      check_default(key, value);
    }
  }
  if (attributes.axis && attributes.block_sizes) {
    fail(node.yaml, "cfg has both axis and block_sizes", "one of them", {});
  }
  if (attributes.use_constant_amax && attributes.constant_amax) {
    fail(node.yaml, "cfg has both use_constant_amax and constant_amax", "one of them", {});
  }
  return attributes;
}

Rule rule_of(const ScopedNode& node) {
  const Entries entries =
      merged_mapping(node, "a rule", {"quantizer_name", "parent_class", "cfg", "enable"});
  const ScopedNode* name = find(entries, "quantizer_name");
  const ScopedNode* cfg = find(entries, "cfg");
  const ScopedNode* enable = find(entries, "enable");
  const ScopedNode* parent = find(entries, "parent_class");
  if (name == nullptr) fail(node.yaml, "rule has no quantizer_name", "a pattern", {});
  if (cfg == nullptr && enable == nullptr) {
    fail(node.yaml, "rule says nothing", "cfg, enable, or both", "only quantizer_name");
  }
  Rule rule;
  rule.where = node.yaml.where();
  rule.quantizer_name = as_string(name->yaml, "quantizer_name");
  if (parent != nullptr && !is_null(*parent)) {
    rule.parent_class = as_string(parent->yaml, "parent_class");
  }
  if (enable != nullptr) rule.enable = as_bool(enable->yaml, "enable");
  if (cfg == nullptr || is_null(*cfg)) return rule;
  if (cfg->yaml.is_list()) {
    refuse(*cfg, "cfg", "a list (sequential quantizers)", "give one format");
  }
  if (cfg->yaml.is_mapping() && cfg->yaml.size() == 0) {
    if (!rule.enable) return rule;
    fail(cfg->yaml, "cfg is empty", "at least one attribute", "{}",
         "to keep the attributes leave cfg out and write enable: true");
  }
  rule.attributes = attributes_of(*cfg);
  return rule;
}

void check_percentile(const ScopedNode& node, std::string_view key, double value) {
  if (value > 0 && value <= 100) return;
  fail(node.yaml, fmt::format("\"{}\" is out of range", key), "above 0, at most 100",
       fmt::format("{}", value));
}

// Settings of an algorithm that do not matter to a single process that converts weights one by one.
bool is_machinery(std::string_view key) {
  return key == "distributed_sync" || key == "layerwise" ||
         key == "skip_forward_without_activation_calib";
}

void apply_mse(const ScopedNode& node, const Entries& entries, Algorithm& algorithm) {
  const auto number = [&](std::string_view key, double otherwise) {
    const ScopedNode* value = find(entries, key);
    return value == nullptr || is_null(*value) ? otherwise : as_number(value->yaml, key);
  };
  const ScopedNode* sweep = find(entries, "fp8_scale_sweep");
  if (sweep != nullptr && !is_null(*sweep) && as_bool(sweep->yaml, "fp8_scale_sweep")) {
    algorithm.weight_scales = Algorithm::WeightScales::kMseSweep;
    return;
  }
  const double start = number("start_multiplier", 0.25);
  const double stop = number("stop_multiplier", 4.0);
  const double step = number("step_size", 0.1);
  if (start != 1.0 || stop != 1.5 || step != 0.5) {
    fail(node.yaml, "method mse with these multipliers is not supported",
         "fp8_scale_sweep: true, or start_multiplier 1.0, stop_multiplier 1.5, step_size 0.5",
         fmt::format("start_multiplier {}, stop_multiplier {}, step_size {}", start, stop, step));
  }
  algorithm.weight_scales = Algorithm::WeightScales::kFourOverSix;
}

void apply_algorithm(const ScopedNode& node, Algorithm& algorithm);

void apply_headroom(const Entries& entries, Algorithm& algorithm) {
  algorithm.act_headroom = true;
  for (const auto& [key, value] : entries) {
    if (key == "weight_scale_algorithm") {
      if (!is_null(value)) apply_algorithm(value, algorithm);
    } else if (key == "rho") {
      algorithm.headroom.rho = as_number(value.yaml, key);
      if (algorithm.headroom.rho > 0 && algorithm.headroom.rho < kMaxRho) continue;
      fail(value.yaml, "\"rho\" is out of range", fmt::format("above 0, below {}", kMaxRho),
           fmt::format("{}", algorithm.headroom.rho));
    } else if (key == "anchor_percentile") {
      algorithm.headroom.anchor_percentile = as_number(value.yaml, key);
      check_percentile(value, key, algorithm.headroom.anchor_percentile);
    } else if (key == "upper_percentile") {
      algorithm.headroom.upper_percentile = as_number(value.yaml, key);
      check_percentile(value, key, algorithm.headroom.upper_percentile);
    }
  }
}

void apply_algorithm(const ScopedNode& node, Algorithm& algorithm) {
  if (is_null(node)) return;
  if (node.yaml.is_list()) {
    for (const ScopedNode& item : spliced_list(node, "algorithm")) {
      if (item.yaml.is_list()) fail(item.yaml, "algorithm is a list of lists", {}, {});
      apply_algorithm(item, algorithm);
    }
    return;
  }
  Entries entries;
  std::string method;
  if (node.yaml.is_scalar()) {
    method = as_string(node.yaml, "algorithm");
  } else {
    entries = merged_mapping(
        node, "algorithm",
        {"method", "distributed_sync", "layerwise", "skip_forward_without_activation_calib",
         "moe_calib_experts_ratio", "shared_states", "sync_expert_weight_amax", "step_size",
         "start_multiplier", "stop_multiplier", "fp8_scale_sweep", "anchor_percentile",
         "upper_percentile", "rho", "weight_scale_algorithm"});
    const ScopedNode* name = find(entries, "method");
    if (name == nullptr) fail(node.yaml, "algorithm has no method", "method: max", {});
    if (is_null(*name)) return;
    method = as_string(name->yaml, "method");
  }
  for (const auto& [key, value] : entries) {
    const bool for_mse = key == "step_size" || key == "start_multiplier" ||
                         key == "stop_multiplier" || key == "fp8_scale_sweep";
    const bool for_headroom = key == "anchor_percentile" || key == "upper_percentile" ||
                              key == "rho" || key == "weight_scale_algorithm";
    if ((for_mse && method != "mse") || (for_headroom && method != "nvfp4_act_headroom")) {
      fail(value.yaml, fmt::format("method {} has no setting \"{}\"", method, key), {}, {});
    }
    if (for_mse || for_headroom || key == "method" || is_machinery(key)) continue;
    check_default(key, value);
  }
  if (method == "max") return;
  if (method == "mse") return apply_mse(node, entries, algorithm);
  if (method == "nvfp4_act_headroom") {
    if (algorithm.act_headroom) fail(node.yaml, "nvfp4_act_headroom appears twice", "once", {});
    return apply_headroom(entries, algorithm);
  }
  fail(node.yaml, "calibration method is not supported", "max, mse or nvfp4_act_headroom", method);
}

void read_metadata(const ScopedNode& node, Recipe& recipe) {
  for (const auto& [key, value] :
       merged_mapping(node, "metadata", {"recipe_type", "description"})) {
    const std::string text = as_string(value.yaml, key);
    if (key == "description") {
      recipe.description = text;
    } else if (text != "ptq") {
      fail(value.yaml, "recipe type is not supported", "ptq", text);
    }
  }
}

void read_quantize(const ScopedNode& node, Recipe& recipe) {
  const Entries entries =
      merged_mapping(node, "quantize", {"algorithm", "quant_cfg", "effective_bits"});
  const ScopedNode* algorithm = find(entries, "algorithm");
  const ScopedNode* rules = find(entries, "quant_cfg");
  if (algorithm != nullptr) apply_algorithm(*algorithm, recipe.algorithm);
  if (rules == nullptr) fail(node.yaml, "quantize has no quant_cfg", "a list of rules", {});
  for (const ScopedNode& item : spliced_list(*rules, "quant_cfg")) {
    recipe.rules.push_back(rule_of(item));
  }
  if (recipe.rules.empty() || recipe.rules.size() > kMaxRules) {
    fail(rules->yaml, "quant_cfg has an impossible number of rules",
         fmt::format("1 to {}", kMaxRules), fmt::format("{}", recipe.rules.size()));
  }
}

std::string text_of(const QuantizerAttributes& attributes) {
  std::string text = "bits=" + to_string(attributes.num_bits);
  if (attributes.axis) text += fmt::format(" axis={}", *attributes.axis);
  if (attributes.dynamic) text += " dynamic";
  if (attributes.block_sizes) {
    const BlockSizes& blocks = *attributes.block_sizes;
    text += fmt::format(" block={} {}{}", blocks.size, blocks.dynamic ? "dynamic" : "static",
                        blocks.four_over_six ? " four_over_six" : "");
    if (blocks.scale_bits) text += " scale=" + to_string(*blocks.scale_bits);
  }
  if (attributes.use_constant_amax) text += " use_constant_amax";
  if (attributes.constant_amax) text += fmt::format(" constant_amax={}", *attributes.constant_amax);
  return text;
}

}  // namespace

std::string to_string(NumBits bits) {
  if (bits.exponent == 0) return fmt::format("int{}", bits.mantissa);
  return fmt::format("e{}m{}", bits.exponent, bits.mantissa);
}

Recipe parse_recipe(std::string_view yaml, const std::string& where, const fs::path& folder) {
  Recipe recipe;
  recipe.name = fs::path(where).stem();
  const ScopedNode body = body_of(yaml, where, folder, {where});
  const Entries entries = merged_mapping(body, "a recipe", {"metadata", "quantize"});
  const ScopedNode* metadata = find(entries, "metadata");
  const ScopedNode* quantize = find(entries, "quantize");
  if (metadata != nullptr) read_metadata(*metadata, recipe);
  if (quantize == nullptr) fail(body.yaml, "recipe has no \"quantize\"", "a mapping", {});
  read_quantize(*quantize, recipe);
  body.scope->require_all_used();
  return recipe;
}

Recipe load_recipe(const std::string& recipe) {
  std::error_code ignored;
  if (fs::is_regular_file(recipe, ignored)) {
    const fs::path path(recipe);
    return parse_recipe(read_text(path, kMaxRecipeBytes), recipe,
                        path.has_parent_path() ? path.parent_path() : fs::path("."));
  }
  const ShippedFile* shipped = find_shipped(recipe);
  if (shipped == nullptr || recipe.find('/') != std::string::npos) {
    throw Error(
        {.what = "no such recipe",
         .where = recipe,
         .expected = fmt::format("a YAML file or one of {}", fmt::join(shipped_recipes(), ", ")),
         .found = {},
         .hint = {}});
  }
  return parse_recipe(shipped->text, std::string(shipped->path) + ".yaml");
}

std::vector<std::string> shipped_recipes() {
  std::vector<std::string> names;
  for (const ShippedFile& file : shipped_files()) {
    // Gates and other settings are shipped beside the recipes.
    const bool is_recipe = file.text.find("\nquantize:") != std::string_view::npos;
    if (is_recipe && file.path.find('/') == std::string_view::npos) names.emplace_back(file.path);
  }
  return names;
}

std::string canonical_text(const Recipe& recipe) {
  const Algorithm& algorithm = recipe.algorithm;
  std::string text = fmt::format("weights={}\n", static_cast<int>(algorithm.weight_scales));
  if (algorithm.act_headroom) {
    text +=
        fmt::format("act_headroom upper={} anchor={} rho={}\n", algorithm.headroom.upper_percentile,
                    algorithm.headroom.anchor_percentile, algorithm.headroom.rho);
  }
  for (const Rule& rule : recipe.rules) {
    text += fmt::format("{} [{}] {} {}\n", rule.quantizer_name, rule.parent_class,
                        rule.enable ? "on" : "off",
                        rule.attributes ? text_of(*rule.attributes) : std::string());
  }
  return text;
}

}  // namespace levin::quantize
