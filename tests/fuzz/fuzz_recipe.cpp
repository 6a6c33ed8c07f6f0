// Any text as a recipe: an Error, or rules that can be planned for a model (or an Error again).
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/error.h"
#include "core/files.h"
#include "quantize/plan.h"

namespace {

const levin::model::Config& tiny() {
  static const levin::model::Config config = [] {
    const char* path = LEVIN_SOURCE_DIR "/models/tiny/config.json";
    nlohmann::json json = levin::read_json(path);
    json["n_routed_experts"] = 2;  // planning stays quick
    return levin::model::parse_config(json, path);
  }();
  return config;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    const levin::quantize::Recipe recipe = levin::quantize::parse_recipe(text, "fuzz.yaml");
    if (recipe.rules.empty() || levin::quantize::canonical_text(recipe).empty()) std::abort();
    if (recipe.rules.size() > 200) return 0;
    const levin::quantize::Plan plan = levin::quantize::make_plan(tiny(), recipe);
    if (levin::quantize::plan_table(plan, nullptr).empty()) std::abort();
  } catch (const levin::Error&) {
    return 0;
  }
  return 0;
}
