#include "quantize/report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/plural.h"

namespace levin::quantize {
namespace {

using Json = nlohmann::ordered_json;

std::string shown(uint64_t bytes) {
  return bytes < 1'000'000'000 ? fmt::format("{:.1f} MB", static_cast<double>(bytes) / 1e6)
                               : fmt::format("{:.2f} GB", static_cast<double>(bytes) / 1e9);
}

Json errors_json(const ErrorSums& errors) {
  Json list = Json::array();
  for (const auto& [name, sum] : errors) {
    list.push_back({{"class", name},
                    {"matrices", sum.matrices},
                    {"weights", sum.weights},
                    {"bytes", sum.bytes},
                    {"bits_per_weight", sum.bits_per_weight()},
                    {"relative_rms_error", sum.relative_rms()}});
  }
  return list;
}

Json calibration_json(const Calibration& calibration) {
  return {{"tokens", calibration.tokens},
          {"linears", calibration.scales.input_amax.size()},
          {"experts", calibration.experts},
          {"unseen_experts", calibration.unseen},
          {"fewest_tokens_of_a_seen_expert", calibration.fewest_tokens}};
}

}  // namespace

Json plan_json(const Plan& plan, const checkpoint::Checkpoint* checkpoint) {
  Json classes = Json::array();
  int64_t before = 0;
  int64_t after = 0;
  for (const ClassSize& entry : class_sizes(plan, checkpoint)) {
    classes.push_back({{"class", entry.name},
                       {"format", entry.format},
                       {"matrices", entry.matrices},
                       {"elements", entry.elements},
                       {"bytes_before", entry.bytes_before},
                       {"bytes_after", entry.bytes_after}});
    before += entry.bytes_before;
    after += entry.bytes_after;
  }
  Json groups = Json::array();
  for (const LinearGroup& group : linear_groups(plan, checkpoint)) {
    groups.push_back({{"class", group.class_name},
                      {"linears", group.names},
                      {"format", group.format},
                      {"matrices", group.matrices},
                      {"bytes_before", group.bytes_before},
                      {"bytes_after", group.bytes_after},
                      {"weight_rule", group.weight_rule},
                      {"input_rule", group.input_rule}});
  }
  Json json;
  json["recipe"] = plan.recipe.name;
  json["needs_calibration"] = plan.needs_calibration();
  json["kv_cache"] = plan.kv_cache() == checkpoint::KvCacheQuant::kFp8 ? "fp8" : "bfloat16";
  json["bytes_before"] = before;
  json["bytes_after"] = after;
  json["classes"] = std::move(classes);
  json["linears"] = std::move(groups);
  json["notes"] = plan.notes;
  return json;
}

std::string error_table(const ErrorSums& errors) {
  std::string text = fmt::format("{:<36} {:>8} {:>12} {:>11} {:>11}\n", "class", "matrices",
                                 "weights", "bits/weight", "rms error");
  for (const auto& [name, sum] : errors) {
    text += fmt::format("{:<36} {:>8} {:>12} {:>11.2f} {:>9.2f} %\n", name, sum.matrices,
                        sum.weights, sum.bits_per_weight(), 100 * sum.relative_rms());
  }
  return text;
}

Json result_json(const Result& result) {
  Json json;
  json["recipe"] = result.plan.recipe.name;
  json["bytes_before"] = result.bytes_before;
  json["bytes_after"] = result.bytes_after;
  json["tensors_before"] = result.conversion.tensors_read;
  json["tensors_after"] = result.conversion.tensors_written;
  json["seconds"] = result.seconds;
  json["resumed"] = result.resumed;
  json["shards_reused"] = result.shards_reused;
  json["errors"] = errors_json(result.conversion.errors);
  json["calibration"] = result.calibration ? calibration_json(*result.calibration) : Json(nullptr);
  json["notes"] = result.plan.notes;
  json["warnings"] = result.conversion.warnings;
  if (result.calibration) {
    for (const std::string& warning : result.calibration->warnings) {
      json["warnings"].push_back(warning);
    }
  }
  return json;
}

std::string result_text(const Result& result, const std::string& output) {
  std::string text = error_table(result.conversion.errors);
  if (result.calibration) {
    text += fmt::format("calibrated {} on {}",
                        counted(result.calibration->scales.input_amax.size(), "input"),
                        counted(result.calibration->tokens, "token"));
    if (result.calibration->experts > 0) {
      text += fmt::format("; every seen expert matrix met at least {} of them",
                          result.calibration->fewest_tokens);
    }
    text += '\n';
    for (const std::string& warning : result.calibration->warnings) {
      text += fmt::format("warning: {}\n", warning);
    }
  }
  for (const std::string& warning : result.conversion.warnings) {
    text += fmt::format("warning: {}\n", warning);
  }
  for (const std::string& note : result.plan.notes) text += fmt::format("note: {}\n", note);
  text += fmt::format(
      "{} -> {} ({:.1f} %) in {:.1f} s{}\n{}\n", shown(result.bytes_before),
      shown(result.bytes_after),
      100.0 * static_cast<double>(result.bytes_after) / static_cast<double>(result.bytes_before),
      result.seconds,
      result.resumed ? fmt::format(", resumed with {}",
                                   counted(int64_t{result.shards_reused}, "finished shard"))
                     : "",
      output);
  return text;
}

}  // namespace levin::quantize
