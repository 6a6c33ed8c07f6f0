// Any text as config.json: an Error, or a configuration whose sizes can be computed with.
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/error.h"
#include "core/files.h"
#include "model/cost.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    const levin::model::Config config =
        levin::model::parse_config(levin::parse_json(text, "fuzz"), "fuzz");
    if (config.layers.empty() || config.hidden_size < 1) std::abort();
    if (levin::model::state_size(config, {}).recurrent_bytes() < 0) std::abort();
    // Listing the tensors of a legal giant takes seconds; its sizes have been looked at.
    const auto layers = static_cast<int64_t>(config.layers.size() + config.mtp_layers.size());
    if (layers * (config.n_routed_experts + 1) > 2000) return 0;
    for (const auto& tensor : levin::model::plan_tensors(config)) {
      if (!levin::element_count(tensor.shape)) std::abort();
    }
    if (!(levin::model::active_parameters(config) > 0)) std::abort();
  } catch (const levin::Error&) {
    return 0;
  }
  return 0;
}
