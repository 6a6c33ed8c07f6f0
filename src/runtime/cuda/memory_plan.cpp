#include "runtime/cuda/memory_plan.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "core/error.h"

namespace levin::runtime::cuda {
namespace {

std::string gigabytes(std::size_t bytes) {
  return fmt::format("{:.2f} GB", static_cast<double>(bytes) * 1e-9);
}

}  // namespace

void announce(const MemoryPlan& plan) {
  spdlog::info("CUDA memory plan: weights {}, caches and work space {}, of {} free",
               gigabytes(plan.weights), gigabytes(plan.state), gigabytes(plan.free));
  if (plan.weights + plan.state + plan.staging <= plan.free) return;
  throw Error({.what = "the model does not fit into the memory of this device",
               .where = plan.device,
               .expected = fmt::format("weights {}, caches and work space {}, staging {}",
                                       gigabytes(plan.weights), gigabytes(plan.state),
                                       gigabytes(plan.staging)),
               .found = gigabytes(plan.free) + " free",
               .hint =
                   "lower --max-model-len, --max-num-seqs or --max-num-batched-tokens, or quantize "
                   "the checkpoint",
               .exit_code = ExitCode::kMachine});
}

}  // namespace levin::runtime::cuda
