// What `levin quantize` tells: tables for people, one JSON object for programs.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "quantize/quantize.h"

namespace levin::quantize {

// The plan by class and format, with sizes; `checkpoint` as in class_sizes.
nlohmann::ordered_json plan_json(const Plan& plan, const checkpoint::Checkpoint* checkpoint);

// Relative RMS error and bits per weight of every class of quantized linears.
std::string error_table(const ErrorSums& errors);

// The plan, the errors, the calibration and the sizes of a finished run.
nlohmann::ordered_json result_json(const Result& result);

// The same for people: errors, calibration, sizes, warnings.
std::string result_text(const Result& result, const std::string& output);

}  // namespace levin::quantize
