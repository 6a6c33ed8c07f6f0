// How far quantized weights are from the original ones, summed by class of linears.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace levin::quantize {

struct ErrorSum {
  int64_t matrices = 0;
  int64_t weights = 0;
  int64_t bytes = 0;         // as stored, scales included
  double squared_error = 0;  // sum over weights of (original - stored)^2
  double squared = 0;        // sum over weights of original^2

  // Square root of squared_error / squared; 0 for all-zero weights.
  double relative_rms() const;
  double bits_per_weight() const;
  void add(const ErrorSum& other);
};

// By "class, format": "routed experts, NVFP4 W4A4".
using ErrorSums = std::map<std::string, ErrorSum>;

void add(ErrorSums& sums, const ErrorSums& others);

// Exact: doubles survive the way to JSON and back.
nlohmann::json to_json(const ErrorSums& sums);
// Throws Error when `json` does not come from to_json.
ErrorSums error_sums_from_json(const nlohmann::json& json, const std::string& where);

}  // namespace levin::quantize
