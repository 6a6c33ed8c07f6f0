// How a device executes the linears of a checkpoint, as `levin inspect --device` shows it.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace levin::cli {

// Linears of one part that are stored and executed alike.
struct DevicePlanLine {
  std::string part;  // "routed experts", "mtp routed experts"
  int64_t linears = 0;
  runtime::PlanEntry how;  // of the first of them
};

struct DevicePlan {
  std::string runtime;  // its description
  std::vector<DevicePlanLine> lines;
};

// Loads the model for one short sequence and asks its runtime.
DevicePlan plan_device(const std::filesystem::path& folder, engine::LoadOptions options);

std::string to_text(const DevicePlan& plan);
nlohmann::json to_json(const DevicePlan& plan);

}  // namespace levin::cli
