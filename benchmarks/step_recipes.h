// What the benchmarks of whole steps have in common: recipes by rule, without tensors, and the
// bytes that the cost model gives a step.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "model/cost.h"

namespace levin::benchmarks {

using checkpoint::ModuleQuant;
using checkpoint::QuantAlgo;
using model::Role;
using model::TensorPlan;

inline constexpr ModuleQuant kNvfp4 = {QuantAlgo::kW4A16Nvfp4, 16};
inline constexpr ModuleQuant kFp8 = {QuantAlgo::kFp8, 0};

struct Recipe {
  std::string name;
  ModuleQuant (*quant_of)(const TensorPlan&);
  bool half_state = false;
};

inline ModuleQuant bf16(const TensorPlan&) {
  return {};
}

// Routed experts and lm_head NVFP4, shared expert and Mamba FP8, attention BF16; drafter NVFP4.
inline ModuleQuant coverage(const TensorPlan& plan) {
  switch (plan.role) {
    case Role::kRoutedExperts:
    case Role::kLmHead:
      return kNvfp4;
    case Role::kSharedExperts:
    case Role::kMamba:
      return plan.mtp ? kNvfp4 : kFp8;
    default:
      return plan.mtp && plan.role == Role::kMtpInput ? kNvfp4 : ModuleQuant{};
  }
}

inline ModuleQuant all_4bit(const TensorPlan&) {
  return kNvfp4;
}
inline ModuleQuant all_int4(const TensorPlan&) {
  return {QuantAlgo::kInt4Packed, 64};
}

inline const std::vector<Recipe> kRecipes = {
    {"bf16", bf16}, {"coverage", coverage}, {"4bit", all_4bit, true}, {"int4", all_int4, true}};

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

inline double bytes_per_step(const model::Config& config, const Recipe& recipe, int rows,
                             int context) {
  std::vector<model::SizedTensor> tensors;
  for (const TensorPlan& plan : model::plan_tensors(config)) {
    const bool linear = plan.kind == model::TensorKind::kLinear;
    tensors.push_back(model::sized_tensor(plan, linear ? recipe.quant_of(plan) : ModuleQuant{}));
  }
  model::StepOptions options;
  options.tokens_per_sequence = rows;
  options.context = context;
  options.types.ssm = recipe.half_state ? 2 : 4;
  return model::total(model::step_operations(config, tensors, options)).memory_bytes();
}

}  // namespace levin::benchmarks
