#include "cli/device_plan.h"

#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "evaluate/table.h"
#include "quantize/plan.h"

namespace levin::cli {
namespace {

constexpr int64_t kShortSequence = 64;

}  // namespace

DevicePlan plan_device(const std::filesystem::path& folder, engine::LoadOptions options) {
  options.runtime.max_num_seqs = 1;
  options.runtime.max_model_len = kShortSequence;
  const auto engine = engine::load_engine(folder, options);

  std::map<std::string, std::string, std::less<>> parts;  // by linear
  for (const model::TensorPlan& tensor : model::plan_tensors(engine->model->config)) {
    parts.emplace(tensor.module(), quantize::class_name(tensor));
  }
  DevicePlan plan;
  plan.runtime = engine->runtime->description();
  std::map<std::tuple<std::string, std::string, std::string, std::string, std::string>, std::size_t>
      index;
  for (const runtime::PlanEntry& entry : engine->runtime->plan()) {
    const std::string& part = parts.at(entry.linear);
    const auto [place, inserted] =
        index.emplace(std::tuple(part, entry.stored_as, entry.computed_as, entry.kernel, entry.why),
                      plan.lines.size());
    if (inserted) plan.lines.push_back({.part = part, .linears = 0, .how = entry});
    ++plan.lines[place->second].linears;
  }
  return plan;
}

std::string to_text(const DevicePlan& plan) {
  evaluate::Table table({"executed as", "linears", "stored as", "computed as", "kernel"});
  std::set<std::string> reasons;
  for (const DevicePlanLine& line : plan.lines) {
    table.add_row({line.part, fmt::format("{}", line.linears), line.how.stored_as,
                   line.how.computed_as, line.how.kernel});
    if (!line.how.why.empty()) {
      reasons.insert(
          fmt::format("{} as {}: {}", line.how.stored_as, line.how.computed_as, line.how.why));
    }
  }
  std::string text = fmt::format("device        {}\n{}", plan.runtime, table.to_string());
  for (const std::string& reason : reasons) text += "note          " + reason + "\n";
  return text;
}

nlohmann::json to_json(const DevicePlan& plan) {
  nlohmann::json lines = nlohmann::json::array();
  for (const DevicePlanLine& line : plan.lines) {
    lines.push_back({{"part", line.part},
                     {"linears", line.linears},
                     {"stored_as", line.how.stored_as},
                     {"computed_as", line.how.computed_as},
                     {"kernel", line.how.kernel},
                     {"why", line.how.why}});
  }
  return {{"runtime", plan.runtime}, {"lines", lines}};
}

}  // namespace levin::cli
