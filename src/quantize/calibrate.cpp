#include "quantize/calibrate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>

#include "codec/matrix.h"
#include "core/error.h"
#include "core/plural.h"
#include "core/progress.h"
#include "quantize/calibration_text.h"

namespace levin::quantize {
namespace {

// Draft passes come behind this many tokens of text: at every distance to the last draft the head
// has caught up by real tokens, as in service.
constexpr int kTokensPerDraft = 32;
constexpr int kDraftDepth = 3;
// ModelOpt's amax for a quantizer that saw nothing (modelopt/torch/export/layer_utils.py).
constexpr double kNeutralAmax = 0.5;

// Watches the inputs of linears, and what key and value projections make of them.
class Watcher {
 public:
  Watcher(const Plan& plan, Observations& observations) {
    for (const LinearPlan& linear : plan.linears) {
      if (!linear.calibrated()) continue;
      const std::string module(plan.tensor(linear).module());
      inputs_[module] = &observations.inputs[module];
    }
    for (const KvPlan& block : plan.kv) {
      if (block.scale != KvScale::kCalibrated) continue;
      outputs_[block.attention + ".k_proj"] = {&observations.keys[block.attention], {}};
      outputs_[block.attention + ".v_proj"] = {&observations.values[block.attention], {}};
    }
  }

  void see(const model::Linear& linear, std::span<const float> input, int rows) {
    const auto width = static_cast<std::size_t>(linear.in);
    const auto watched = inputs_.find(linear.name);
    const auto output = outputs_.find(linear.name);
    if (watched == inputs_.end() && output == outputs_.end()) return;
    for (int row = 0; row < rows; ++row) {
      const auto values = input.subspan(static_cast<std::size_t>(row) * width, width);
      if (!std::isfinite(codec::absolute_max(values))) {
        throw Error({.what = "the model computed a value that is not finite",
                     .where = fmt::format("input of {}", linear.name),
                     .expected = {},
                     .found = {},
                     .hint = "the checkpoint is damaged, or the text is not what it was made for"});
      }
      if (watched != inputs_.end()) watched->second->add(values);
      if (output != outputs_.end()) add_product(linear, values, output->second);
    }
  }

 private:
  struct Output {
    codec::ActivationStats* stats = nullptr;
    std::vector<float> weights;  // [out, in], made when first needed
  };

  // NemotronH has no rotary embedding: what the cache holds is the projection itself.
  static void add_product(const model::Linear& linear, std::span<const float> input,
                          Output& output) {
    if (output.weights.empty()) output.weights = model::dequantize(linear);
    const auto width = static_cast<std::size_t>(linear.in);
    std::vector<float> product(static_cast<std::size_t>(linear.out));
    for (std::size_t i = 0; i < product.size(); ++i) {
      float sum = linear.bias.empty() ? 0.0F : linear.bias[i];
      for (std::size_t j = 0; j < width; ++j) sum += output.weights[i * width + j] * input[j];
      product[i] = sum;
    }
    output.stats->add(product);
  }

  std::unordered_map<std::string, codec::ActivationStats*> inputs_;
  std::unordered_map<std::string, Output> outputs_;
};

bool calibrates_lm_head(const Plan& plan) {
  return std::any_of(plan.linears.begin(), plan.linears.end(), [&](const LinearPlan& linear) {
    return linear.calibrated() && plan.tensor(linear).role == model::Role::kLmHead;
  });
}

bool calibrates_mtp(const Plan& plan) {
  return std::any_of(plan.linears.begin(), plan.linears.end(),
                     [&](const LinearPlan& linear) {
                       return linear.calibrated() && plan.tensor(linear).mtp;
                     }) ||
         std::any_of(plan.kv.begin(), plan.kv.end(), [](const KvPlan& block) {
           return block.mtp && block.scale == KvScale::kCalibrated;
         });
}

// Reads one sequence. With `logits` lm_head sees every token; with `drafts` the draft head runs
// behind every kTokensPerDraft tokens.
void read_sequence(runtime::Runtime& runtime, std::span<const int32_t> tokens, bool logits,
                   bool drafts, Progress& bar) {
  const auto step = static_cast<std::size_t>(
      drafts ? std::min(kTokensPerDraft, runtime.options().max_extend_tokens)
             : runtime.options().max_extend_tokens);
  const int depth = std::min(kDraftDepth, runtime.options().max_rewind);
  runtime.reset(0);
  for (std::size_t begin = 0; begin < tokens.size(); begin += step) {
    const auto piece = tokens.subspan(begin, std::min(step, tokens.size() - begin));
    const runtime::Extend extend{
        .slot = 0, .tokens = piece, .logits_rows = logits ? static_cast<int>(piece.size()) : 0};
    runtime.extend({&extend, 1});
    const std::size_t end = begin + piece.size();
    if (drafts && end < tokens.size()) {
      const runtime::Draft draft{.slot = 0, .next_token = tokens[end], .k = depth};
      runtime.draft({&draft, 1});
    }
    bar.advance(static_cast<int64_t>(piece.size()));
  }
}

// Takes the observer off the runtime again, whatever happens.
class ObserverGuard {
 public:
  ObserverGuard(runtime::Runtime& runtime, runtime::Observer observer) : runtime_(runtime) {
    runtime_.set_observer(std::move(observer));
  }
  ~ObserverGuard() { runtime_.set_observer({}); }
  ObserverGuard(const ObserverGuard&) = delete;
  ObserverGuard& operator=(const ObserverGuard&) = delete;

 private:
  runtime::Runtime& runtime_;
};

double amax_of(const LinearPlan& linear, const codec::ActivationStats& stats,
               const codec::HeadroomOptions& headroom) {
  return linear.input_scale == InputScale::kActHeadroom ? stats.headroom(headroom).amax
                                                        : stats.amax();
}

// Linears that share their input scale: the experts of a layer by projection; q, k and v of a
// block.
std::string sharing_group(const model::TensorPlan& tensor) {
  const std::string module(tensor.module());
  const std::size_t dot = module.rfind('.');
  const std::string block = module.substr(0, module.find(".mixer."));
  if (tensor.role == model::Role::kRoutedExperts) return block + module.substr(dot);
  const bool qkv = tensor.role == model::Role::kAttention && !module.ends_with(".o_proj");
  return qkv ? block + ".qkv" : module;
}

const codec::ActivationStats& stats_of(const std::map<std::string, codec::ActivationStats>& all,
                                       const std::string& name) {
  static const codec::ActivationStats kNothing;
  const auto entry = all.find(name);
  return entry == all.end() ? kNothing : entry->second;
}

// Experts that no token reached, and the least use of the others.
void report_coverage(const Plan& plan, const Observations& observations, Calibration& result) {
  int64_t fewest = std::numeric_limits<int64_t>::max();
  for (const LinearPlan& linear : plan.linears) {
    const model::TensorPlan& tensor = plan.tensor(linear);
    if (!linear.calibrated() || tensor.role != model::Role::kRoutedExperts) continue;
    ++result.experts;
    const std::string module(tensor.module());
    const int64_t rows = stats_of(observations.inputs, module).rows();
    if (rows == 0) {
      result.unseen.push_back(module);
    } else {
      fewest = std::min(fewest, rows);
    }
  }
  if (result.experts > static_cast<int64_t>(result.unseen.size())) result.fewest_tokens = fewest;
  if (!result.unseen.empty()) {
    result.warnings.push_back(fmt::format(
        "no token of the calibration text reached {} of {}; what was not reached has the "
        "scale of its layer's other experts",
        result.unseen.size(), counted(result.experts, "expert matrix", "expert matrices")));
  }
}

void measure_kv(const Plan& plan, const Observations& observations, Calibration& result) {
  const auto measured = [&](const auto& stats, const std::string& block, const char* what) {
    const double amax = stats_of(stats, block).amax();
    if (amax > 0) return amax;
    result.warnings.push_back(
        fmt::format("{} of {} were never seen; their scale is 1", what, block));
    return 448.0;
  };
  for (const KvPlan& block : plan.kv) {
    if (block.scale != KvScale::kCalibrated) continue;
    result.scales.key_amax[block.attention] = measured(observations.keys, block.attention, "keys");
    result.scales.value_amax[block.attention] =
        measured(observations.values, block.attention, "values");
  }
}

}  // namespace

Observations observe(runtime::Runtime& runtime, const Plan& plan, std::span<const int32_t> tokens,
                     int window) {
  Observations observations;
  observations.tokens = static_cast<int64_t>(tokens.size());
  Watcher watcher(plan, observations);
  const ObserverGuard guard(
      runtime, {.hidden = {},
                .linear_input = [&](const model::Linear& linear, std::span<const float> input,
                                    int rows) { watcher.see(linear, input, rows); }});
  const bool logits = calibrates_lm_head(plan);
  const bool drafts = calibrates_mtp(plan);
  const auto length = static_cast<std::size_t>(window);
  Progress bar("calibrating", observations.tokens, "tokens");
  for (std::size_t begin = 0; begin < tokens.size(); begin += length) {
    read_sequence(runtime, tokens.subspan(begin, std::min(length, tokens.size() - begin)), logits,
                  drafts, bar);
  }
  return observations;
}

Calibration derive_scales(const Plan& plan, const Observations& observations) {
  Calibration result;
  result.tokens = observations.tokens;
  std::map<std::string, double> groups;
  for (const LinearPlan& linear : plan.linears) {
    if (!linear.calibrated()) continue;
    const model::TensorPlan& tensor = plan.tensor(linear);
    const auto& stats = stats_of(observations.inputs, std::string(tensor.module()));
    double& shared = groups[sharing_group(tensor)];
    shared = std::max(shared, amax_of(linear, stats, plan.recipe.algorithm.headroom));
  }
  for (auto& [group, amax] : groups) {
    if (amax > 0) continue;
    amax = kNeutralAmax;
    result.warnings.push_back(
        fmt::format("{} saw nothing but zeros; its input amax is {}", group, kNeutralAmax));
  }
  for (const LinearPlan& linear : plan.linears) {
    if (!linear.calibrated()) continue;
    const model::TensorPlan& tensor = plan.tensor(linear);
    result.scales.input_amax[std::string(tensor.module())] = groups.at(sharing_group(tensor));
  }
  measure_kv(plan, observations, result);
  report_coverage(plan, observations, result);
  return result;
}

nlohmann::json to_json(const Calibration& calibration) {
  return {{"input_amax", calibration.scales.input_amax},
          {"key_amax", calibration.scales.key_amax},
          {"value_amax", calibration.scales.value_amax},
          {"tokens", calibration.tokens},
          {"experts", calibration.experts},
          {"unseen", calibration.unseen},
          {"fewest_tokens", calibration.fewest_tokens},
          {"warnings", calibration.warnings}};
}

Calibration calibration_from_json(const nlohmann::json& json, const std::string& where) {
  try {
    Calibration calibration;
    json.at("input_amax").get_to(calibration.scales.input_amax);
    json.at("key_amax").get_to(calibration.scales.key_amax);
    json.at("value_amax").get_to(calibration.scales.value_amax);
    json.at("tokens").get_to(calibration.tokens);
    json.at("experts").get_to(calibration.experts);
    json.at("unseen").get_to(calibration.unseen);
    json.at("fewest_tokens").get_to(calibration.fewest_tokens);
    json.at("warnings").get_to(calibration.warnings);
    return calibration;
  } catch (const nlohmann::json::exception& e) {
    throw Error({.what = "recorded calibration is damaged",
                 .where = where,
                 .expected = {},
                 .found = e.what(),
                 .hint = "start over with --overwrite"});
  }
}

}  // namespace levin::quantize
