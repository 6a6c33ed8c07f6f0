#include "quantize/formats.h"

#include <fmt/format.h>

namespace levin::quantize {
namespace {

using checkpoint::QuantAlgo;
using codec::Nvfp4Policy;
using WeightScales = Algorithm::WeightScales;

constexpr int64_t kInt4PerWord = 8;
// ModelOpt's use_constant_amax: the FP8 range.
constexpr double kConstantAmax = 448.0;

std::string describe(const QuantizerAttributes& attributes) {
  std::string text = to_string(attributes.num_bits);
  if (attributes.axis) text += ", per row";
  if (attributes.block_sizes) {
    const BlockSizes& blocks = *attributes.block_sizes;
    text += blocks.size > 0 ? fmt::format(", blocks of {}", blocks.size) : ", whole rows";
    if (blocks.scale_bits) text += fmt::format(" with {} scales", to_string(*blocks.scale_bits));
  }
  return text;
}

bool is_nvfp4(const QuantizerAttributes& attributes) {
  return attributes.num_bits == kE2M1 && attributes.block_sizes &&
         attributes.block_sizes->size == codec::kNvfp4Block &&
         attributes.block_sizes->scale_bits == kE4M3;
}

bool is_dynamic(const QuantizerAttributes& attributes) {
  return attributes.dynamic || (attributes.block_sizes && attributes.block_sizes->dynamic);
}

bool is_fp8_per_tensor(const QuantizerAttributes& attributes) {
  return attributes.num_bits == kE4M3 && !attributes.axis && !attributes.block_sizes &&
         !attributes.dynamic;
}

bool is_fp8_per_row(const QuantizerAttributes& attributes) {
  return attributes.num_bits == kE4M3 && attributes.axis && !attributes.dynamic;
}

bool is_fp8_per_token(const QuantizerAttributes& attributes) {
  return attributes.num_bits == kE4M3 && attributes.block_sizes &&
         attributes.block_sizes->size == 0 && !attributes.block_sizes->scale_bits &&
         is_dynamic(attributes);
}

bool is_int4_groups(const QuantizerAttributes& attributes) {
  return attributes.num_bits == NumBits{0, 4} && attributes.block_sizes &&
         attributes.block_sizes->size > 0 && !attributes.block_sizes->scale_bits &&
         !is_dynamic(attributes);
}

std::optional<Refusal> choose_policy(const QuantizerAttributes& weight, WeightScales scales,
                                     Nvfp4Policy& policy) {
  const bool four_over_six = weight.block_sizes->four_over_six;
  if (is_dynamic(weight)) {
    policy = Nvfp4Policy::kMaxDynamic;
    if (!four_over_six) return std::nullopt;
    return Refusal{"four_over_six weights are dynamic", "write type: static in block_sizes"};
  }
  if (four_over_six != (scales == WeightScales::kFourOverSix)) {
    return Refusal{four_over_six
                       ? "four_over_six weights need their own algorithm"
                       : "the multipliers 1.0 and 1.5 are meant for four_over_six weights",
                   "use {method: mse, fp8_scale_sweep: false, start_multiplier: 1.0, "
                   "stop_multiplier: 1.5, step_size: 0.5} together with four_over_six: true"};
  }
  policy = four_over_six                       ? Nvfp4Policy::kFourOverSix
           : scales == WeightScales::kMseSweep ? Nvfp4Policy::kMse
                                               : Nvfp4Policy::kMaxStatic;
  return std::nullopt;
}

void choose_input_scale(const QuantizerAttributes& input, const Algorithm& algorithm,
                        LinearPlan& linear) {
  if (input.use_constant_amax || input.constant_amax) {
    linear.input_scale = InputScale::kConstant;
    linear.constant_amax = input.constant_amax.value_or(kConstantAmax);
  } else {
    linear.input_scale = algorithm.act_headroom && linear.quant.algo == QuantAlgo::kNvfp4
                             ? InputScale::kActHeadroom
                             : InputScale::kMax;
  }
}

std::optional<Refusal> choose_nvfp4(const QuantizerAttributes& weight,
                                    const QuantizerAttributes* input, const Algorithm& algorithm,
                                    LinearPlan& linear) {
  const int group = static_cast<int>(codec::kNvfp4Block);
  linear.quant = {input == nullptr ? QuantAlgo::kW4A16Nvfp4 : QuantAlgo::kNvfp4, group};
  if (auto refusal = choose_policy(weight, algorithm.weight_scales, linear.policy)) return refusal;
  if (input == nullptr) return std::nullopt;
  if (!is_nvfp4(*input)) {
    return Refusal{fmt::format("NVFP4 weights with inputs of {}", describe(*input)),
                   "inputs of NVFP4 weights are NVFP4 or not quantized"};
  }
  if (!is_dynamic(*input)) {
    return Refusal{"NVFP4 inputs with static block scales", "write type: dynamic in block_sizes"};
  }
  choose_input_scale(*input, algorithm, linear);
  return std::nullopt;
}

}  // namespace

std::optional<Refusal> choose_format(const Quantizer& weight, const Quantizer& input,
                                     const Algorithm& algorithm, LinearPlan& linear) {
  linear.weight_rule = weight.rule;
  linear.input_rule = input.rule;
  if (!weight.enabled && !input.enabled) return std::nullopt;
  if (!weight.enabled) {
    return Refusal{"quantized inputs with unquantized weights",
                   "turn the weight_quantizer on or the input_quantizer off"};
  }
  // ModelOpt's defaults are 8-bit integers, for quantizers switched on without a cfg as well.
  static const QuantizerAttributes kDefaults;
  const QuantizerAttributes& w = weight.attributes != nullptr ? *weight.attributes : kDefaults;
  const QuantizerAttributes* x = nullptr;
  if (input.enabled) x = input.attributes != nullptr ? input.attributes : &kDefaults;

  if (is_nvfp4(w)) return choose_nvfp4(w, x, algorithm, linear);
  if (is_fp8_per_tensor(w) && x != nullptr && is_fp8_per_tensor(*x)) {
    linear.quant = {QuantAlgo::kFp8, 0};
    choose_input_scale(*x, algorithm, linear);
    return std::nullopt;
  }
  if (is_fp8_per_row(w) && x != nullptr && is_fp8_per_token(*x)) {
    linear.quant = {QuantAlgo::kFp8PerChannelPerToken, 0};
    return std::nullopt;
  }
  if (is_int4_groups(w) && x == nullptr) {
    const int64_t size = w.block_sizes->size;
    if (size % kInt4PerWord != 0 || size > (1 << 20)) {
      return Refusal{fmt::format("INT4 groups of {}", size), "use a multiple of 8"};
    }
    linear.quant = {QuantAlgo::kInt4Packed, static_cast<int>(size)};
    return std::nullopt;
  }
  return Refusal{
      fmt::format("weights of {} with {}", describe(w),
                  x == nullptr ? "unquantized inputs" : "inputs of " + describe(*x)),
      "supported: NVFP4 weights with or without NVFP4 inputs, FP8 weights and inputs per "
      "tensor, FP8 weights per row with inputs per token, INT4 weights in groups"};
}

std::optional<Refusal> choose_kv(const Quantizer& quantizer, KvScale& scale) {
  scale = KvScale::kNone;
  if (!quantizer.enabled) return std::nullopt;
  static const QuantizerAttributes kDefaults;
  const QuantizerAttributes& attributes =
      quantizer.attributes != nullptr ? *quantizer.attributes : kDefaults;
  if (!is_fp8_per_tensor(attributes) || attributes.constant_amax) {
    return Refusal{fmt::format("a KV cache of {}", describe(attributes)),
                   "supported: e4m3 per tensor, calibrated or with use_constant_amax"};
  }
  scale = attributes.use_constant_amax ? KvScale::kUnit : KvScale::kCalibrated;
  return std::nullopt;
}

}  // namespace levin::quantize
