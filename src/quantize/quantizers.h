// The quantizers of a model and what a recipe makes of each: ModelOpt's
// set_quantizer_by_cfg (modelopt/torch/quantization/conversion.py) without the model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/inventory.h"
#include "quantize/recipe.h"

namespace levin::quantize {

enum class QuantizerKind : uint8_t {
  kWeight,  // <linear>.weight_quantizer
  kInput,   // <linear>.input_quantizer
  kOutput,  // <linear>.output_quantizer
  kKeys,    // <attention>.k_bmm_quantizer
  kValues,  // <attention>.v_bmm_quantizer
  kOther    // <attention>.q_bmm_quantizer, p_bmm_quantizer, softmax_quantizer
};

struct Quantizer {
  std::string name;  // "backbone.layers.1.mixer.experts.0.up_proj.weight_quantizer"
  // The same in Megatron-Core's spelling ("...mlp.experts.local_experts.0.linear_fc1..."), which
  // ModelOpt's recipes give beside or instead of the Hugging Face one; empty where they agree.
  std::string megatron_name;
  QuantizerKind kind = QuantizerKind::kWeight;
  std::size_t tensor = 0;  // index into the tensors it was made from

  // Outcome
  int rule = -1;  // the last rule that matched; -1: none
  bool enabled = false;
  const QuantizerAttributes* attributes = nullptr;  // of the recipe; null: never set
};

// Quantizers of all linears and attention blocks of `tensors`, none decided.
std::vector<Quantizer> list_quantizers(const std::vector<model::TensorPlan>& tensors);

// Applies the rules in order. Throws Error for enabled rules that match nothing, naming them and
// the nearest names, and for linears that no rule decides. Returns remarks: rules for the modules
// of other model families, which generic recipes carry along, match nothing and may.
std::vector<std::string> apply_rules(const Recipe& recipe,
                                     const std::vector<model::TensorPlan>& tensors,
                                     std::vector<Quantizer>& quantizers);

// A module name with its numbers replaced by '*': "backbone.layers.*.mixer.in_proj".
std::string collapse_numbers(std::string_view name);

}  // namespace levin::quantize
