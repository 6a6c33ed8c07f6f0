// How `levin inspect` shows what it found: text for people, JSON for programs.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "cli/device_plan.h"
#include "core/error.h"
#include "model/config.h"
#include "model/summary.h"
#include "quantize/plan.h"

namespace levin::cli {

struct Inspection {
  std::string folder;
  model::Config config;
  std::shared_ptr<const checkpoint::Checkpoint> checkpoint;
  std::optional<quantize::Plan> plan;  // of --recipe
  model::Summary summary;              // with a plan: of the checkpoint it would make
  std::optional<DevicePlan> device;    // of --device
  std::string values;                  // what was looked at: "all weights", "not read"
  std::vector<ErrorParts> problems;    // tensors against configuration and metadata, and values
  std::vector<std::string> notes;

  bool good() const {
    return problems.empty() && checkpoint->quantization().contradictions.empty();
  }
};

std::string to_text(const Inspection& inspection);
nlohmann::json to_json(const Inspection& inspection);

}  // namespace levin::cli
