#include "quantize/errors.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/error.h"

namespace levin::quantize {

double ErrorSum::relative_rms() const {
  return squared > 0 ? std::sqrt(squared_error / squared) : 0.0;
}

double ErrorSum::bits_per_weight() const {
  return weights > 0 ? 8.0 * static_cast<double>(bytes) / static_cast<double>(weights) : 0.0;
}

void ErrorSum::add(const ErrorSum& other) {
  matrices += other.matrices;
  weights += other.weights;
  bytes += other.bytes;
  squared_error += other.squared_error;
  squared += other.squared;
}

void add(ErrorSums& sums, const ErrorSums& others) {
  for (const auto& [name, sum] : others) sums[name].add(sum);
}

nlohmann::json to_json(const ErrorSums& sums) {
  nlohmann::json json = nlohmann::json::object();
  for (const auto& [name, sum] : sums) {
    json[name] = {{"matrices", sum.matrices},
                  {"weights", sum.weights},
                  {"bytes", sum.bytes},
                  {"squared_error", sum.squared_error},
                  {"squared", sum.squared}};
  }
  return json;
}

ErrorSums error_sums_from_json(const nlohmann::json& json, const std::string& where) {
  try {
    ErrorSums sums;
    for (const auto& [name, entry] : json.items()) {
      ErrorSum& sum = sums[name];
      sum.matrices = entry.at("matrices").get<int64_t>();
      sum.weights = entry.at("weights").get<int64_t>();
      sum.bytes = entry.at("bytes").get<int64_t>();
      sum.squared_error = entry.at("squared_error").get<double>();
      sum.squared = entry.at("squared").get<double>();
    }
    return sums;
  } catch (const nlohmann::json::exception& e) {
    throw Error({.what = "progress record is damaged",
                 .where = where,
                 .expected = {},
                 .found = e.what(),
                 .hint = "start over with --overwrite"});
  }
}

}  // namespace levin::quantize
