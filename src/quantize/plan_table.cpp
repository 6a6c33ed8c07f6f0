// Sizes and tables of quantize/plan.h.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "quantize/plan.h"
#include "quantize/quantizers.h"

namespace levin::quantize {
namespace {

using checkpoint::ModuleQuant;
using checkpoint::QuantAlgo;
using model::TensorKind;
using model::TensorPlan;

constexpr double kGigabyte = 1e9;
constexpr double kMegabyte = 1e6;

// Type and bytes of a tensor as it is in the source; nothing when an optional one is absent.
struct Stored {
  DType dtype = DType::kBF16;
  int64_t bytes = 0;
};

Stored stored(const TensorPlan& tensor, const checkpoint::Checkpoint* source) {
  if (source == nullptr) {
    if (!tensor.required) return {};
    return {tensor.dtype, tensor.elements() * static_cast<int64_t>(size_of(tensor.dtype))};
  }
  const checkpoint::TensorInfo* info = source->find(tensor.name);
  if (info == nullptr) return {};
  return {info->dtype, static_cast<int64_t>(info->bytes)};
}

int64_t quantized_bytes(const TensorPlan& tensor, const ModuleQuant& quant,
                        model::Dialect dialect) {
  return static_cast<int64_t>(model::sized_tensor(tensor, quant, dialect).bytes);
}

// By index into Plan::tensors; nullptr for what is no linear.
std::vector<const LinearPlan*> linears_by_tensor(const Plan& plan) {
  std::vector<const LinearPlan*> linears(plan.tensors.size(), nullptr);
  for (const LinearPlan& linear : plan.linears) linears[linear.tensor] = &linear;
  return linears;
}

bool is_quantized(const LinearPlan* linear) {
  return linear != nullptr && linear->quant.algo != QuantAlgo::kNone;
}

// "a.*.b.{x,y}" for names that differ in their last part only; joined by commas otherwise.
std::string join_names(const std::set<std::string>& names) {
  std::map<std::string, std::set<std::string>> by_parent;
  for (const std::string& name : names) {
    const std::size_t dot = name.rfind('.');
    const bool nested = dot != std::string::npos;
    by_parent[nested ? name.substr(0, dot + 1) : ""].insert(nested ? name.substr(dot + 1) : name);
  }
  std::string text;
  for (const auto& [parent, parts] : by_parent) {
    if (!text.empty()) text += ", ";
    text += parent;
    text += parts.size() == 1 ? *parts.begin() : fmt::format("{{{}}}", fmt::join(parts, ","));
  }
  return text;
}

std::string rule_text(const Plan& plan, int index) {
  const Rule& rule = plan.recipe.rules[static_cast<std::size_t>(index)];
  return fmt::format("{} '{}'", rule.where, rule.quantizer_name);
}

}  // namespace

std::vector<ClassSize> class_sizes(const Plan& plan, const checkpoint::Checkpoint* checkpoint) {
  const std::vector<const LinearPlan*> linear_of = linears_by_tensor(plan);
  std::vector<ClassSize> classes;
  std::map<std::pair<std::string, std::string>, std::size_t> index;
  for (std::size_t i = 0; i < plan.tensors.size(); ++i) {
    const TensorPlan& tensor = plan.tensors[i];
    const Stored before = stored(tensor, checkpoint);
    if (before.bytes == 0) continue;
    const bool quantized = is_quantized(linear_of[i]);
    std::string format =
        quantized ? model::format_name(linear_of[i]->quant) : std::string(name_of(before.dtype));
    const auto key = std::pair(class_name(tensor), format);
    const auto [place, inserted] = index.emplace(key, classes.size());
    if (inserted) {
      ClassSize fresh;
      fresh.name = key.first;
      fresh.format = std::move(format);
      classes.push_back(std::move(fresh));
    }
    ClassSize& entry = classes[place->second];
    if (tensor.kind != TensorKind::kVector) ++entry.matrices;
    entry.elements += tensor.elements();
    entry.bytes_before += before.bytes;
    entry.bytes_after +=
        quantized ? quantized_bytes(tensor, linear_of[i]->quant, plan.dialect) : before.bytes;
  }
  const auto blocks = std::count_if(plan.kv.begin(), plan.kv.end(), [](const KvPlan& block) {
    return block.scale == KvScale::kCalibrated;
  });
  if (blocks > 0) {
    ClassSize scales;
    scales.name = "KV cache scales";
    scales.format = "F32";
    scales.elements = 2 * blocks;
    scales.bytes_after = scales.elements * static_cast<int64_t>(sizeof(float));
    classes.push_back(std::move(scales));
  }
  return classes;
}

std::vector<model::SizedTensor> planned_tensors(const Plan& plan,
                                                const checkpoint::Checkpoint* checkpoint) {
  const std::vector<const LinearPlan*> linear_of = linears_by_tensor(plan);
  std::vector<model::SizedTensor> tensors;
  for (std::size_t i = 0; i < plan.tensors.size(); ++i) {
    const TensorPlan& tensor = plan.tensors[i];
    const Stored before = stored(tensor, checkpoint);
    if (before.bytes == 0) continue;
    if (is_quantized(linear_of[i])) {
      tensors.push_back(model::sized_tensor(tensor, linear_of[i]->quant, plan.dialect));
    } else {
      tensors.push_back({.plan = tensor,
                         .format = std::string(name_of(before.dtype)),
                         .bytes = static_cast<double>(before.bytes)});
    }
  }
  return tensors;
}

std::vector<LinearGroup> linear_groups(const Plan& plan, const checkpoint::Checkpoint* checkpoint) {
  using Key = std::tuple<std::string, std::string, int, int>;
  std::map<Key, std::size_t> index;
  std::vector<LinearGroup> groups;
  std::vector<std::set<std::string>> names;
  for (const LinearPlan& linear : plan.linears) {
    const TensorPlan& tensor = plan.tensor(linear);
    const auto [place, inserted] =
        index.emplace(Key(class_name(tensor), model::format_name(linear.quant), linear.weight_rule,
                          linear.input_rule),
                      groups.size());
    if (inserted) {
      LinearGroup fresh;
      fresh.class_name = class_name(tensor);
      fresh.format = model::format_name(linear.quant);
      fresh.weight_rule = rule_text(plan, linear.weight_rule);
      fresh.input_rule = rule_text(plan, linear.input_rule);
      groups.push_back(std::move(fresh));
      names.emplace_back();
    }
    LinearGroup& group = groups[place->second];
    names[place->second].insert(collapse_numbers(tensor.module()));
    const int64_t before = stored(tensor, checkpoint).bytes;
    ++group.matrices;
    group.bytes_before += before;
    group.bytes_after += linear.quant.algo == QuantAlgo::kNone
                             ? before
                             : quantized_bytes(tensor, linear.quant, plan.dialect);
  }
  for (std::size_t i = 0; i < groups.size(); ++i) groups[i].names = join_names(names[i]);
  return groups;
}

std::string plan_table(const Plan& plan, const checkpoint::Checkpoint* checkpoint) {
  int64_t before = 0;
  int64_t after = 0;
  for (const ClassSize& entry : class_sizes(plan, checkpoint)) {
    before += entry.bytes_before;
    after += entry.bytes_after;
  }
  const bool large = before >= static_cast<int64_t>(kGigabyte);
  const double unit = large ? kGigabyte : kMegabyte;
  const std::string unit_name = large ? "GB" : "MB";
  std::string text =
      fmt::format("{:<15} {:>8} {:>9} {:>9}  {}\n", "format", "matrices", unit_name + " before",
                  unit_name + " after", "linears, and the rule that decided");
  const auto line = [&](const std::string& format, const std::string& matrices, int64_t old_bytes,
                        int64_t new_bytes, const std::string& what) {
    text += fmt::format("{:<15} {:>8} {:>9.3f} {:>9.3f}  {}\n", format, matrices,
                        static_cast<double>(old_bytes) / unit,
                        static_cast<double>(new_bytes) / unit, what);
  };
  for (const LinearGroup& group : linear_groups(plan, checkpoint)) {
    line(group.format, fmt::format("{}", group.matrices), group.bytes_before, group.bytes_after,
         group.names);
    text += fmt::format("{:>45} by {}\n", "", group.weight_rule);
    if (group.input_rule != group.weight_rule) {
      text += fmt::format("{:>45} inputs by {}\n", "", group.input_rule);
    }
  }
  line("in all", "", before, after,
       "with what is never quantized: embeddings, routers, convolutions, norms");
  for (const std::string& note : plan.notes) text += fmt::format("note: {}\n", note);
  return text;
}

}  // namespace levin::quantize
