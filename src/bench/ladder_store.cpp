#include "bench/ladder_store.h"

#include <nlohmann/json.hpp>

#include "core/error.h"

namespace levin::bench {
namespace {

using Json = nlohmann::ordered_json;

Json save(const ContenderTiming& timing) {
  const engine::SpeculationStats& stats = timing.speculation;
  return {{"name", timing.name},
          {"ttft", timing.ttft},
          {"tpot", timing.tpot},
          {"prompt_tokens", timing.prompt_tokens},
          {"num_drafts", stats.num_drafts},
          {"num_draft_tokens", stats.num_draft_tokens},
          {"num_accepted_tokens", stats.num_accepted_tokens},
          {"num_accepted_tokens_per_pos", stats.num_accepted_tokens_per_pos}};
}

ContenderTiming load(const nlohmann::json& json) {
  ContenderTiming timing;
  json.at("name").get_to(timing.name);
  json.at("ttft").get_to(timing.ttft);
  json.at("tpot").get_to(timing.tpot);
  json.at("prompt_tokens").get_to(timing.prompt_tokens);
  json.at("num_drafts").get_to(timing.speculation.num_drafts);
  json.at("num_draft_tokens").get_to(timing.speculation.num_draft_tokens);
  json.at("num_accepted_tokens").get_to(timing.speculation.num_accepted_tokens);
  json.at("num_accepted_tokens_per_pos").get_to(timing.speculation.num_accepted_tokens_per_pos);
  return timing;
}

}  // namespace

Json save(const RungTiming& timing) {
  return {{"own", save(timing.own)},
          {"control", save(timing.control)},
          {"baseline", save(timing.baseline)},
          {"same_tokens_as_control", timing.same_tokens_as_control},
          {"read_gb_per_s", timing.read_gb_per_s}};
}

RungTiming load_timing(const nlohmann::json& json, const std::string& where) {
  try {
    return {.own = load(json.at("own")),
            .control = load(json.at("control")),
            .baseline = load(json.at("baseline")),
            .same_tokens_as_control = json.at("same_tokens_as_control"),
            .read_gb_per_s = json.at("read_gb_per_s")};
  } catch (const nlohmann::json::exception& e) {
    throw Error({.what = "not a saved timing",
                 .where = where,
                 .expected = {},
                 .found = e.what(),
                 .hint = "delete the file and run again"});
  }
}

}  // namespace levin::bench
