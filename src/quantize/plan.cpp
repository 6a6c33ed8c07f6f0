#include "quantize/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "core/error.h"
#include "core/plural.h"
#include "quantize/formats.h"
#include "quantize/quantizers.h"

namespace levin::quantize {
namespace {

using checkpoint::ModuleQuant;
using checkpoint::QuantAlgo;
using model::Role;
using model::TensorKind;
using model::TensorPlan;

// Faults of many linears, said once per kind of fault.
class Faults {
 public:
  explicit Faults(const Plan& plan) : plan_(plan) {}

  void add(const Refusal& refusal, const std::string& module, int rule) {
    Fault& fault = faults_[refusal.what];
    fault.hint = refusal.hint;
    fault.rule = rule;
    ++fault.count;
    fault.modules.insert(collapse_numbers(module));
  }

  // Throws for the first fault, mentioning how many others there are.
  void throw_if_any() const {
    if (faults_.empty()) return;
    const auto& [what, fault] = *faults_.begin();
    const Rule* rule =
        fault.rule >= 0 ? &plan_.recipe.rules[static_cast<std::size_t>(fault.rule)] : nullptr;
    std::string found = fmt::format("{} x {}", fault.count, fmt::join(fault.modules, ", "));
    if (faults_.size() > 1) found += fmt::format(" (and {} other faults)", faults_.size() - 1);
    throw Error({.what = "recipe asks for what levin cannot write: " + what,
                 .where = rule == nullptr
                              ? plan_.recipe.name
                              : fmt::format("{} ('{}')", rule->where, rule->quantizer_name),
                 .expected = {},
                 .found = std::move(found),
                 .hint = fault.hint});
  }

 private:
  struct Fault {
    std::string hint;
    int rule = -1;
    int64_t count = 0;
    std::set<std::string> modules;
  };
  const Plan& plan_;
  std::map<std::string, Fault> faults_;
};

// config.json says one thing about the whole cache.
void check_kv(Plan& plan) {
  std::set<bool> backbone;
  std::set<bool> mtp;
  for (const KvPlan& block : plan.kv) {
    (block.mtp ? mtp : backbone).insert(block.scale != KvScale::kNone);
  }
  if (backbone.size() > 1) {
    throw Error({.what = "recipe quantizes the KV cache of some attention layers only",
                 .where = plan.recipe.name,
                 .expected = "all attention layers of the backbone, or none",
                 .found = {},
                 .hint = "match all of them with '*[kv]_bmm_quantizer'"});
  }
  if (mtp.empty() || backbone.empty() || mtp == backbone) return;
  plan.notes.push_back(
      "the recipe gives the MTP head's KV cache another format than the backbone's; engines use "
      "the backbone's for both");
  if (backbone.contains(true)) return;
  for (KvPlan& block : plan.kv) block.scale = KvScale::kNone;
}

// Every linear's decision and the KV cache's, from decided quantizers.
void decide(const std::vector<Quantizer>& quantizers, Plan& plan) {
  Faults faults(plan);
  std::map<std::size_t, const Quantizer*> weights;
  for (const Quantizer& entry : quantizers) {
    const TensorPlan& tensor = plan.tensors[entry.tensor];
    if (entry.kind == QuantizerKind::kWeight) {
      weights[entry.tensor] = &entry;
    } else if (entry.kind == QuantizerKind::kInput) {
      LinearPlan linear;
      linear.tensor = entry.tensor;
      const Quantizer& weight = *weights.at(entry.tensor);
      const auto refusal = choose_format(weight, entry, plan.recipe.algorithm, linear);
      const int rule = weight.enabled ? weight.rule : entry.rule;
      if (refusal) faults.add(*refusal, std::string(tensor.module()), rule);
      plan.linears.push_back(linear);
    } else if (entry.kind == QuantizerKind::kKeys || entry.kind == QuantizerKind::kValues) {
      KvScale scale = KvScale::kNone;
      if (const auto refusal = choose_kv(entry, scale)) {
        faults.add(*refusal, entry.name, entry.rule);
      }
      std::string attention = entry.name.substr(0, entry.name.rfind('.'));
      if (entry.kind == QuantizerKind::kKeys) {
        plan.kv.push_back({std::move(attention), tensor.mtp, scale});
      } else if (plan.kv.back().scale != scale) {
        faults.add({"keys and values of different formats", "use '*[kv]_bmm_quantizer'"}, attention,
                   entry.rule);
      }
    } else if (entry.enabled) {
      const std::size_t dot = entry.name.rfind('.');
      faults.add({fmt::format("a {}", entry.name.substr(dot + 1)),
                  "only weights, inputs and the KV cache are quantized: turn it off"},
                 entry.name.substr(0, dot), entry.rule);
    }
  }
  faults.throw_if_any();
  check_kv(plan);
}

// Group sizes that fit every width, as text.
std::string legal_sizes(const std::set<int64_t>& widths) {
  int64_t common = 0;
  for (const int64_t width : widths) common = std::gcd(common, width);
  std::vector<int64_t> sizes;
  for (int64_t size = 8; size <= common; size += 8) {
    if (common % size == 0) sizes.push_back(size);
  }
  return sizes.empty() ? "none" : fmt::format("{}", fmt::join(sizes, ", "));
}

void check_group_sizes(const Plan& plan) {
  int64_t misfits = 0;
  int group = 0;
  int rule = -1;
  std::map<std::string, int64_t> names;
  std::set<int64_t> widths;
  for (const LinearPlan& linear : plan.linears) {
    if (linear.quant.group_size == 0) continue;
    const TensorPlan& tensor = plan.tensor(linear);
    const int64_t width = tensor.shape[1];
    if (linear.quant.algo == QuantAlgo::kInt4Packed) widths.insert(width);
    if (width % linear.quant.group_size == 0) continue;
    ++misfits;
    group = linear.quant.group_size;
    rule = linear.weight_rule;
    ++names[fmt::format("{} (input width {})", collapse_numbers(tensor.module()), width)];
  }
  if (misfits == 0) return;
  std::string found;
  for (const auto& [name, count] : names) {
    found += fmt::format("{}{} x {}", found.empty() ? "" : ", ", count, name);
  }
  const Rule& decider = plan.recipe.rules[static_cast<std::size_t>(rule)];
  const bool int4 = !widths.empty();
  throw Error(
      {.what = fmt::format("group size {} does not divide the input width of {}", group,
                           counted(misfits, "matrix", "matrices")),
       .where = fmt::format("{} ('{}')", decider.where, decider.quantizer_name),
       .expected = int4 ? "a group size that divides every input width: " + legal_sizes(widths)
                        : "input widths that are multiples of 16",
       .found = std::move(found),
       .hint = int4 ? std::string()
                    : "leave these matrices out of the rule; NVFP4 has no other block size"});
}

// One checkpoint has one layout, and so one family of formats.
void choose_dialect(Plan& plan) {
  std::map<ModuleQuant, int64_t, bool (*)(const ModuleQuant&, const ModuleQuant&)> int4(
      [](const ModuleQuant& a, const ModuleQuant& b) { return a.group_size < b.group_size; });
  int64_t others = 0;
  for (const LinearPlan& linear : plan.linears) {
    if (linear.quant.algo == QuantAlgo::kInt4Packed) {
      ++int4[linear.quant];
    } else if (linear.quant.algo != QuantAlgo::kNone) {
      ++others;
    }
  }
  if (int4.empty()) return;
  plan.dialect = model::Dialect::kCompressedTensors;
  const bool fp8_cache = plan.kv_cache() != checkpoint::KvCacheQuant::kNone;
  if (others > 0 || fp8_cache) {
    throw Error({.what = "INT4 cannot be mixed with NVFP4, FP8 or an FP8 KV cache",
                 .where = plan.recipe.name,
                 .expected = "INT4 alone, or none",
                 .found = fmt::format("{} other matrices{}", others,
                                      fp8_cache ? " and an FP8 KV cache" : ""),
                 .hint = "INT4 is written in compressed-tensors' layout, the others in ModelOpt's; "
                         "config.json can name only one of them as quant_method"});
  }
  if (int4.size() > 1) {
    throw Error({.what = "INT4 matrices have different group sizes",
                 .where = plan.recipe.name,
                 .expected = "one group size in a checkpoint",
                 .found = counted(int4.size(), "size"),
                 .hint = {}});
  }
}

// No metadata says that a checkpoint's KV cache is FP8 and nothing else.
void require_quantized_linears(const Plan& plan) {
  const bool any = std::any_of(plan.linears.begin(), plan.linears.end(), [](const auto& linear) {
    return linear.quant.algo != QuantAlgo::kNone;
  });
  if (any) return;
  const bool fp8_cache = plan.kv_cache() != checkpoint::KvCacheQuant::kNone;
  throw Error({.what = "the recipe quantizes no linear",
               .where = plan.recipe.name,
               .expected = "a rule that turns weight quantizers on",
               .found = fp8_cache ? "an FP8 KV cache alone" : "everything off",
               .hint = fp8_cache ? "--kv-cache-dtype fp8 gives every checkpoint an FP8 KV cache, "
                                   "without a conversion"
                                 : ""});
}

std::string rule_pattern(const Plan& plan, int rule) {
  return plan.recipe.rules[static_cast<std::size_t>(rule)].quantizer_name;
}

// What other engines cannot load, and what surprises users of ModelOpt, which never sees the MTP
// head of a Hugging Face checkpoint.
void add_notes(Plan& plan) {
  std::map<std::string, std::set<int>> expert_algos;
  std::map<std::string, std::set<int>> qkv_algos;
  std::map<int, int64_t> mtp_by_broad_rule;
  for (const LinearPlan& linear : plan.linears) {
    const TensorPlan& tensor = plan.tensor(linear);
    const std::string module(tensor.module());
    const int algo = static_cast<int>(linear.quant.algo);
    const std::string block = module.substr(0, module.find(".mixer"));
    if (tensor.role == Role::kRoutedExperts) expert_algos[block].insert(algo);
    if (tensor.role == Role::kAttention && !module.ends_with(".o_proj")) {
      qkv_algos[block].insert(algo);
    }
    if (tensor.mtp && linear.quant.algo != QuantAlgo::kNone &&
        rule_pattern(plan, linear.weight_rule).find("mtp") == std::string::npos) {
      ++mtp_by_broad_rule[linear.weight_rule];
    }
  }
  const auto mixed = [](const std::map<std::string, std::set<int>>& blocks) {
    return std::count_if(blocks.begin(), blocks.end(),
                         [](const auto& block) { return block.second.size() > 1; });
  };
  if (const auto count = mixed(expert_algos); count > 0) {
    plan.notes.push_back(fmt::format(
        "the routed experts of {} have more than one format; vLLM gives all experts of a layer the "
        "format of the first",
        counted(count, "layer")));
  }
  if (const auto count = mixed(qkv_algos); count > 0) {
    plan.notes.push_back(
        fmt::format("q, k and v of {} have more than one format; vLLM fuses them and refuses that",
                    counted(count, "layer")));
  }
  for (const auto& [rule, count] : mtp_by_broad_rule) {
    plan.notes.push_back(fmt::format(
        "rule '{}' also quantizes {} of the MTP draft head; to keep it, end quant_cfg with "
        "{{quantizer_name: 'mtp.*', enable: false}}",
        rule_pattern(plan, rule), counted(int64_t{count}, "linear")));
  }
}

}  // namespace

checkpoint::KvCacheQuant Plan::kv_cache() const {
  const bool fp8 = std::any_of(kv.begin(), kv.end(), [](const KvPlan& block) {
    return !block.mtp && block.scale != KvScale::kNone;
  });
  return fp8 ? checkpoint::KvCacheQuant::kFp8 : checkpoint::KvCacheQuant::kNone;
}

bool Plan::needs_calibration() const {
  return std::any_of(linears.begin(), linears.end(),
                     [](const LinearPlan& linear) { return linear.calibrated(); }) ||
         std::any_of(kv.begin(), kv.end(),
                     [](const KvPlan& block) { return block.scale == KvScale::kCalibrated; });
}

Plan make_plan(const model::Config& config, const Recipe& recipe) {
  Plan plan;
  plan.config = config;
  plan.recipe = recipe;
  plan.tensors = model::plan_tensors(config);
  std::vector<Quantizer> quantizers = list_quantizers(plan.tensors);
  plan.notes = apply_rules(plan.recipe, plan.tensors, quantizers);
  decide(quantizers, plan);
  require_quantized_linears(plan);
  choose_dialect(plan);
  check_group_sizes(plan);
  add_notes(plan);
  return plan;
}

std::string class_name(const TensorPlan& tensor) {
  return fmt::format("{}{}", tensor.mtp ? "mtp " : "", model::name_of(tensor.role));
}

}  // namespace levin::quantize
