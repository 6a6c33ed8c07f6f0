// How each linear of a model is executed, in words.
#pragma once

#include <vector>

#include "model/model.h"
#include "runtime/cpu/isa.h"
#include "runtime/cpu/weights.h"
#include "runtime/runtime.h"

namespace levin::runtime::cpu {

// One entry for each of model.linears(), in order.
std::vector<PlanEntry> describe_plan(const model::Model& model, const Weights& weights, Isa isa);

}  // namespace levin::runtime::cpu
