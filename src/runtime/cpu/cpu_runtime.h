// make_cpu_runtime with a choice of instruction set, for tests and benchmarks.
#pragma once

#include <memory>

#include "runtime/cpu/isa.h"
#include "runtime/runtime.h"

namespace levin::runtime::cpu {

// `isa` must be one of supported_isas().
std::unique_ptr<Runtime> make_runtime(std::shared_ptr<const model::Model> model,
                                      const Options& options, Isa isa);

}  // namespace levin::runtime::cpu
