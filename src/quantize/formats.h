// From quantizer attributes to the formats of a checkpoint.
#pragma once

#include <optional>
#include <string>

#include "quantize/plan.h"
#include "quantize/quantizers.h"

namespace levin::quantize {

// Why a combination of attributes cannot be written.
struct Refusal {
  std::string what;
  std::string hint;
};

// Fills in quant, policy and input scale of `linear` from the outcome of its quantizers. Returns
// the reason when levin cannot write that.
std::optional<Refusal> choose_format(const Quantizer& weight, const Quantizer& input,
                                     const Algorithm& algorithm, LinearPlan& linear);

// The same for the key or value quantizer of an attention block.
std::optional<Refusal> choose_kv(const Quantizer& quantizer, KvScale& scale);

}  // namespace levin::quantize
