#include "runtime/cuda/memory_plan.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "core/error.h"
#include "core/memory.h"

namespace levin::runtime::cuda {
void announce(const MemoryPlan& plan) {
  spdlog::info("CUDA memory plan: weights {}, caches and work space {}, of {} free",
               gigabytes(static_cast<int64_t>(plan.weights)),
               gigabytes(static_cast<int64_t>(plan.state)),
               gigabytes(static_cast<int64_t>(plan.free)));
  if (plan.weights + plan.state + plan.staging <= plan.free) return;
  throw Error({.what = "the model does not fit into the memory of this device",
               .where = plan.device,
               .expected = fmt::format("weights {}, caches and work space {}, staging {}",
                                       gigabytes(static_cast<int64_t>(plan.weights)),
                                       gigabytes(static_cast<int64_t>(plan.state)),
                                       gigabytes(static_cast<int64_t>(plan.staging))),
               .found = gigabytes(static_cast<int64_t>(plan.free)) + " free",
               .hint =
                   "lower --max-model-len, --max-num-seqs or --max-num-batched-tokens, or quantize "
                   "the checkpoint",
               .exit_code = ExitCode::kMachine});
}

}  // namespace levin::runtime::cuda
