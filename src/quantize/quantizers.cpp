#include "quantize/quantizers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <numeric>
#include <set>
#include <string_view>

#include "checkpoint/name_pattern.h"
#include "core/error.h"
#include "core/plural.h"

namespace levin::quantize {
namespace {

using checkpoint::glob_matches;
using model::Role;
using model::TensorKind;
using model::TensorPlan;

constexpr std::size_t kShownNames = 3;
// Expert modules of other model families in ModelOpt's generic recipes (Mixtral).
constexpr std::string_view kOtherFamilies[] = {"block_sparse_moe"};

bool replace(std::string& text, std::string_view from, std::string_view to) {
  const std::size_t at = text.find(from);
  if (at == std::string::npos) return false;
  text.replace(at, from.size(), to);
  return true;
}

// Megatron-Core's name of a module (megatron/core/models/mamba; ModelOpt's NemotronH recipes list
// the pairs). Names of layers keep their Hugging Face prefix: patterns begin with '*'.
std::string megatron_module(std::string_view module, Role role) {
  std::string name(module);
  switch (role) {
    case Role::kRoutedExperts:
      replace(name, ".mixer.experts.", ".mlp.experts.local_experts.");
      break;
    case Role::kSharedExperts:
    case Role::kLatent:
    case Role::kMlp:
      replace(name, ".mixer.", ".mlp.");
      break;
    case Role::kAttention:
      replace(name, ".mixer.", ".self_attention.");
      replace(name, ".o_proj", ".linear_proj");
      for (const char* part : {".q_proj", ".k_proj", ".v_proj"}) replace(name, part, ".linear_qkv");
      break;
    case Role::kLmHead:
      return "output_layer";
    default:
      break;
  }
  if (role != Role::kAttention && role != Role::kLatent) {
    replace(name, ".up_proj", ".linear_fc1");
    replace(name, ".down_proj", ".linear_fc2");
  }
  return name;
}

Quantizer quantizer(const std::string& module, const std::string& megatron, const char* suffix,
                    QuantizerKind kind, std::size_t tensor) {
  Quantizer result;
  result.name = fmt::format("{}.{}", module, suffix);
  if (megatron != module) result.megatron_name = fmt::format("{}.{}", megatron, suffix);
  result.kind = kind;
  result.tensor = tensor;
  return result;
}

// The literal end of a pattern. A name that ends otherwise cannot match, which is quick to see and
// decides most of the hundreds of thousands of comparisons of a large model.
std::string_view literal_tail(std::string_view pattern) {
  return pattern.substr(pattern.find_last_of("*?]") + 1);
}

bool matches(const Rule& rule, const Quantizer& quantizer) {
  if (!rule.parent_class.empty()) {
    const bool of_linear = quantizer.kind == QuantizerKind::kWeight ||
                           quantizer.kind == QuantizerKind::kInput ||
                           quantizer.kind == QuantizerKind::kOutput;
    if (rule.parent_class != "nn.Linear" || !of_linear) return false;
  }
  return glob_matches(rule.quantizer_name, quantizer.name) ||
         (!quantizer.megatron_name.empty() &&
          glob_matches(rule.quantizer_name, quantizer.megatron_name));
}

// Edits that turn `pattern` into a pattern matching `text`; a '*' stands for anything at no cost.
std::size_t edit_distance(std::string_view pattern, std::string_view text) {
  std::vector<std::size_t> row(text.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (const char c : pattern) {
    const std::size_t unmatched = c == '*' ? 0 : 1;
    std::size_t diagonal = row[0];
    row[0] += unmatched;
    for (std::size_t j = 1; j <= text.size(); ++j) {
      const std::size_t substitution = diagonal + (c == text[j - 1] ? 0 : unmatched);
      diagonal = row[j];
      row[j] = std::min({row[j] + unmatched, row[j - 1] + unmatched, substitution});
    }
  }
  return row.back();
}

// The collapsed names most like the pattern.
std::string nearest(const std::string& pattern, const std::vector<Quantizer>& quantizers) {
  constexpr std::size_t kComparable = 200;  // edit distance is quadratic
  std::set<std::string> names;
  for (const Quantizer& entry : quantizers) names.insert(collapse_numbers(entry.name));
  std::vector<std::pair<std::size_t, std::string>> ranked;
  for (const std::string& name : names) {
    ranked.emplace_back(edit_distance(std::string_view(pattern).substr(0, kComparable), name),
                        name);
  }
  std::sort(ranked.begin(), ranked.end());
  std::string text;
  for (std::size_t i = 0; i < std::min(kShownNames, ranked.size()); ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : ", ", ranked[i].second);
  }
  return text;
}

// Modules that no recipe quantizes, for telling the user why a rule found nothing.
const TensorPlan* float_only_match(const Rule& rule, const std::vector<TensorPlan>& tensors) {
  for (const TensorPlan& tensor : tensors) {
    if (tensor.kind == TensorKind::kLinear) continue;
    for (const char* suffix : {"weight_quantizer", "input_quantizer", "output_quantizer"}) {
      const std::string name = fmt::format("{}.{}", tensor.module(), suffix);
      if (glob_matches(rule.quantizer_name, name)) return &tensor;
    }
  }
  return nullptr;
}

bool is_for_another_family(const Rule& rule) {
  return std::any_of(
      std::begin(kOtherFamilies), std::end(kOtherFamilies),
      [&](std::string_view name) { return rule.quantizer_name.find(name) != std::string::npos; });
}

// Returns remarks about those that are excused.
std::vector<std::string> refuse_idle_rules(const Recipe& recipe, const std::vector<bool>& used,
                                           const std::vector<TensorPlan>& tensors,
                                           const std::vector<Quantizer>& quantizers) {
  std::vector<std::string> remarks;
  std::string found;
  std::string hint;
  std::string where;
  for (std::size_t i = 0; i < recipe.rules.size(); ++i) {
    const Rule& rule = recipe.rules[i];
    if (used[i] || !rule.enable) continue;
    if (is_for_another_family(rule)) {
      remarks.push_back(fmt::format("rule '{}' is for another model family and matches nothing",
                                    rule.quantizer_name));
      continue;
    }
    if (!where.empty()) {
      found += fmt::format(", '{}' ({})", rule.quantizer_name, rule.where);
      continue;
    }
    where = rule.where;
    found = fmt::format("'{}'", rule.quantizer_name);
    const TensorPlan* kept = float_only_match(rule, tensors);
    hint = kept != nullptr
               ? fmt::format(
                     "{} stays as it is: embeddings, routers, convolutions and norms are "
                     "not quantized",
                     kept->module())
               : fmt::format("nearest names: {}", nearest(rule.quantizer_name, quantizers));
  }
  if (where.empty()) return remarks;
  throw Error({.what = "a rule that turns quantizers on matches nothing in this model",
               .where = where,
               .expected = "a pattern over <module>.weight_quantizer, <module>.input_quantizer or "
                           "<attention>.[kv]_bmm_quantizer",
               .found = found,
               .hint = hint});
}

void refuse_undecided(const Recipe& recipe, const std::vector<TensorPlan>& tensors,
                      const std::vector<Quantizer>& quantizers) {
  std::set<std::size_t> undecided;
  std::set<std::string> names;
  for (const Quantizer& entry : quantizers) {
    const bool counts = entry.kind == QuantizerKind::kWeight || entry.kind == QuantizerKind::kInput;
    if (!counts || entry.rule >= 0) continue;
    undecided.insert(entry.tensor);
    names.insert(collapse_numbers(tensors[entry.tensor].module()));
  }
  if (undecided.empty()) return;
  throw Error({.what = "no rule of the recipe decides " + counted(undecided.size(), "linear"),
               .where = fmt::format("recipe {}", recipe.name),
               .expected = "every weight_quantizer and input_quantizer matched by a rule",
               .found = fmt::format("{}", fmt::join(names, ", ")),
               .hint = "begin quant_cfg with {quantizer_name: '*', enable: false}"});
}

}  // namespace

std::string collapse_numbers(std::string_view name) {
  std::string text;
  for (std::size_t i = 0; i < name.size(); ++i) {
    const bool number_starts =
        std::isdigit(static_cast<unsigned char>(name[i])) != 0 && (i == 0 || name[i - 1] == '.');
    std::size_t end = i;
    while (end < name.size() && std::isdigit(static_cast<unsigned char>(name[end])) != 0) ++end;
    if (number_starts && (end == name.size() || name[end] == '.')) {
      text += '*';
      i = end - 1;
    } else {
      text += name[i];
    }
  }
  return text;
}

std::vector<Quantizer> list_quantizers(const std::vector<TensorPlan>& tensors) {
  std::vector<Quantizer> result;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const TensorPlan& tensor = tensors[i];
    if (tensor.kind != TensorKind::kLinear) continue;
    const std::string module(tensor.module());
    const std::string megatron = megatron_module(module, tensor.role);
    result.push_back(quantizer(module, megatron, "weight_quantizer", QuantizerKind::kWeight, i));
    result.push_back(quantizer(module, megatron, "input_quantizer", QuantizerKind::kInput, i));
    result.push_back(quantizer(module, megatron, "output_quantizer", QuantizerKind::kOutput, i));
    // The q projection stands for its attention block.
    if (tensor.role != Role::kAttention || !module.ends_with(".q_proj")) continue;
    const std::string block = module.substr(0, module.rfind('.'));
    const std::string core = megatron.substr(0, megatron.rfind('.')) + ".core_attention";
    result.push_back(quantizer(block, core, "k_bmm_quantizer", QuantizerKind::kKeys, i));
    result.push_back(quantizer(block, core, "v_bmm_quantizer", QuantizerKind::kValues, i));
    for (const char* other : {"q_bmm_quantizer", "p_bmm_quantizer", "softmax_quantizer"}) {
      result.push_back(quantizer(block, core, other, QuantizerKind::kOther, i));
    }
  }
  return result;
}

std::vector<std::string> apply_rules(const Recipe& recipe, const std::vector<TensorPlan>& tensors,
                                     std::vector<Quantizer>& quantizers) {
  std::vector<bool> used(recipe.rules.size(), false);
  for (std::size_t i = 0; i < recipe.rules.size(); ++i) {
    const Rule& rule = recipe.rules[i];
    const std::string_view tail = literal_tail(rule.quantizer_name);
    for (Quantizer& entry : quantizers) {
      if (!entry.name.ends_with(tail) && !entry.megatron_name.ends_with(tail)) continue;
      if (!matches(rule, entry)) continue;
      used[i] = true;
      entry.rule = static_cast<int>(i);
      entry.enabled = rule.enable;
      if (rule.attributes) entry.attributes = &*rule.attributes;
    }
  }
  std::vector<std::string> remarks = refuse_idle_rules(recipe, used, tensors, quantizers);
  refuse_undecided(recipe, tensors, quantizers);
  return remarks;
}

}  // namespace levin::quantize
