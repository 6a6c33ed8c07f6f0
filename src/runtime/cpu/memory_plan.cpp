#include "runtime/cpu/memory_plan.h"

#include <spdlog/spdlog.h>

#include "core/error.h"
#include "core/memory.h"

namespace levin::runtime::cpu {
namespace {

constexpr int64_t kWorthALine = int64_t{1} << 30;

}  // namespace

void announce(const MemoryPlan& plan) {
  if (plan.weights + plan.rest >= kWorthALine) {
    spdlog::info("CPU memory plan: weights {}, caches and work space up to {}, of {} available",
                 gigabytes(plan.weights), gigabytes(plan.rest), gigabytes(plan.available));
  }
  if (plan.available == 0) return;
  if (plan.weights > plan.available) {
    throw Error({.what = "not enough memory for the repacked weights",
                 .where = {},
                 .expected = gigabytes(plan.weights),
                 .found = gigabytes(plan.available) + " available",
                 .hint = "quantize the model, or free memory",
                 .exit_code = ExitCode::kMachine});
  }
  if (plan.weights + plan.rest > plan.available) {
    spdlog::warn(
        "with full caches that is more than there is, and the kernel would end a process: lower "
        "--max-model-len, --max-num-seqs or --max-num-batched-tokens");
  }
}

}  // namespace levin::runtime::cpu
