#include "bench/client/record.h"

#include <nlohmann/json.hpp>

namespace levin::bench::client {

std::optional<double> RequestRecord::ttft() const {
  if (outputs.empty()) return std::nullopt;
  return outputs.front() - sent;
}

std::optional<double> RequestRecord::tpot() const {
  if (!usage || usage->output < 2 || outputs.size() < 2) return std::nullopt;
  return (outputs.back() - outputs.front()) / static_cast<double>(usage->output - 1);
}

std::vector<double> RequestRecord::itl() const {
  std::vector<double> gaps;
  for (std::size_t i = 1; i < outputs.size(); ++i) gaps.push_back(outputs[i] - outputs[i - 1]);
  return gaps;
}

nlohmann::ordered_json to_json(const RequestRecord& record) {
  nlohmann::ordered_json json = {{"index", record.index}, {"due", record.due},
                                 {"sent", record.sent},   {"ended", record.ended},
                                 {"last", record.last},   {"status", record.status}};
  json["error"] = nullptr;
  if (!record.ok()) json["error"] = record.error;
  json["finish_reason"] = record.finish_reason;
  json["usage"] = nullptr;
  if (record.usage) {
    json["usage"] = {{"prompt_tokens", record.usage->prompt},
                     {"completion_tokens", record.usage->output},
                     {"cached_tokens", nullptr}};
    if (record.usage->cached) json["usage"]["cached_tokens"] = *record.usage->cached;
  }
  json["outputs"] = record.outputs;
  return json;
}

}  // namespace levin::bench::client
