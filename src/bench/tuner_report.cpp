// Text and JSON of bench/tuner.h.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "bench/timing.h"
#include "bench/tuner.h"
#include "evaluate/evaluation.h"
#include "evaluate/table.h"

namespace levin::bench {
namespace {

using Json = nlohmann::ordered_json;

std::string times(const std::optional<evaluate::Estimate>& speed) {
  return speed ? fmt::format("{:.3f}", speed->value) : "";
}

std::string interval(const std::optional<evaluate::Estimate>& speed) {
  return speed ? fmt::format("[{:.3f}, {:.3f}]", speed->low, speed->high) : "";
}

Json trial_json(const TuneTrial& trial) {
  Json json = {{"dimension", trial.dimension},
               {"setting", to_json(trial.setting)},
               {"verdict", name_of(trial.verdict)},
               {"why", trial.why}};
  if (!trial.over_best) return json;
  json["speed_over_best"] = evaluate::to_json(*trial.over_best);
  json["speed_over_control"] = evaluate::to_json(*trial.over_control);
  json["tpot_ms"] = trial.tpot_ms;
  json["ttft_ms"] = trial.ttft_ms;
  json["acceptance_length"] = trial.acceptance_length;
  return json;
}

}  // namespace

std::string to_text(const TuneResult& result) {
  evaluate::Table table(
      {"tried", "TPOT ms", "TTFT ms", "tokens a round", "x best", "", "x control", "", "verdict"});
  for (const TuneTrial& trial : result.trials) {
    const bool timed = trial.over_best.has_value();
    table.add_row({fmt::format("{}: {}", trial.dimension, to_text(trial.setting)),
                   timed ? fmt::format("{:.3f}", trial.tpot_ms) : "",
                   timed ? fmt::format("{:.2f}", trial.ttft_ms) : "",
                   timed ? fmt::format("{:.2f}", trial.acceptance_length) : "",
                   times(trial.over_best), interval(trial.over_best), times(trial.over_control),
                   interval(trial.over_control), std::string(name_of(trial.verdict))});
  }
  std::string text = table.to_string() + '\n';
  if (!result.control_timing.tpot.empty()) {
    const Spread control = spread_of(result.control_timing.tpot);
    if (control.max > kTolerableNoise * control.min) {
      text += fmt::format(
          "THE MACHINE WAS BUSY: the control took up to {:.1f} times as long in another round. "
          "What is\nbest beside other work, threads above all, need not be when it is quiet; run "
          "again then.\n\n",
          control.max / control.min);
    }
  }
  for (const TuneTrial& trial : result.trials) {
    text += fmt::format("{} ({}): {}\n", name_of(trial.verdict), to_text(trial.setting), trial.why);
  }
  text += fmt::format("\ncontrol  {}\n", to_text(result.control));
  if (result.refuted) {
    return text + fmt::format(
                      "chosen   nothing: what was kept is {:.3f}x [{:.3f}, {:.3f}] as fast as the "
                      "control in rounds of its own\n",
                      result.confirmed.value, result.confirmed.low, result.confirmed.high);
  }
  if (result.best == result.control) return text + "chosen   nothing: the control is as fast\n";
  return text + fmt::format(
                    "chosen   {}\n         {:.3f}x [{:.3f}, {:.3f}] as fast as the control in "
                    "rounds of its own, {:.3f} ms a token, not {:.3f}\n",
                    to_text(result.best), result.confirmed.value, result.confirmed.low,
                    result.confirmed.high, evaluate::median(result.best_timing.tpot) * 1e3,
                    evaluate::median(result.control_timing.tpot) * 1e3);
}

Json to_json(const TuneSetting& setting) {
  return {{"threads", setting.threads},
          {"kv_cache_dtype", name_of(setting.kv)},
          {"mamba_ssm_cache_dtype", name_of(setting.ssm)},
          {"num_speculative_tokens", setting.drafts},
          {"draft_vocab_size", setting.draft_vocab}};
}

Json to_json(const TuneResult& result) {
  Json trials = Json::array();
  for (const TuneTrial& trial : result.trials) trials.push_back(trial_json(trial));
  Json json = {{"control", to_json(result.control)},
               {"chosen", to_json(result.best)},
               {"speed_over_control", evaluate::to_json(result.confirmed)},
               {"refuted", result.refuted},
               {"trials", std::move(trials)}};
  if (!result.best_timing.tpot.empty()) {
    json["tpot_ms"] = evaluate::median(result.best_timing.tpot) * 1e3;
    json["control_tpot_ms"] = evaluate::median(result.control_timing.tpot) * 1e3;
    json["acceptance_length"] = result.best_timing.acceptance_length;
  }
  return json;
}

}  // namespace levin::bench
