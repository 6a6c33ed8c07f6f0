// Text and JSON of bench/tuner.h.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "bench/tuner.h"
#include "core/plural.h"
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

std::string worst_ratio(const std::optional<TuneQuality>& quality) {
  if (!quality || quality->texts.empty()) return "";
  double worst = 0;
  for (const TunePerplexity& text : quality->texts) worst = std::max(worst, text.ratio.value);
  return fmt::format("{:.4f}", worst);
}

std::vector<TunePerplexity> perplexities(const TuneTrial& trial) {
  return trial.quality ? trial.quality->texts : std::vector<TunePerplexity>{};
}

std::string to_text(const TunePerplexity& text) {
  return fmt::format(
      "perplexity on {} is {:.3f}, {:.4f} [{:.4f}, {:.4f}] times the control's {:.3f} ({}, KL "
      "{:.5f}, same first token {:.1f} %)",
      text.text, text.value, text.ratio.value, text.ratio.low, text.ratio.high, text.control,
      counted(text.predictions, "prediction"), text.mean_kl, text.top1_agreement * 100);
}

Json to_json(const TunePerplexity& text) {
  return {{"text", text.text},
          {"perplexity", text.value},
          {"control_perplexity", text.control},
          {"ratio", evaluate::to_json(text.ratio)},
          {"predictions", text.predictions},
          {"mean_kl", text.mean_kl},
          {"top1_agreement", text.top1_agreement}};
}

Json or_null(std::optional<bool> value) {
  return value ? Json(*value) : Json();
}

std::string shown(const evaluate::Estimate& speed) {
  return fmt::format("{:.3f}x [{:.3f}, {:.3f}]", speed.value, speed.low, speed.high);
}

// What rounds of its own made of what was kept.
std::string chosen_text(const TuneResult& result) {
  std::string text = fmt::format("\ncontrol  {}\n", to_text(result.control));
  const auto& [speed, chosen, control, refuted] = result.generation;
  const TuneConfirmation& prefix = result.shared_prefix;
  const bool nothing = result.best == result.control;
  text +=
      fmt::format("chosen   {}\n", !nothing                    ? to_text(result.best)
                                   : refuted || prefix.refuted ? "nothing"
                                                               : "nothing: the control is as fast");
  if (refuted) {
    text += fmt::format(
        "         dropped: what was kept is {} as fast as the control in rounds of "
        "its own\n",
        shown(speed));
  } else if (!chosen.tpot.empty()) {
    text += fmt::format(
        "         {} as fast as the control in rounds of its own, {:.3f} ms a token, not {:.3f}\n",
        shown(speed), evaluate::median(chosen.tpot) * 1e3, evaluate::median(control.tpot) * 1e3);
  }
  if (!prefix.chosen.ttft.empty()) {
    text += fmt::format(
        "         {}prefix cache: {} as fast to first tokens as without in rounds of its own, "
        "{:.2f} "
        "ms, not {:.2f}\n",
        prefix.refuted ? "dropped: " : "", shown(prefix.speed),
        evaluate::median(prefix.chosen.ttft) * 1e3, evaluate::median(prefix.control.ttft) * 1e3);
  }
  return text;
}

Json trial_json(const TuneTrial& trial) {
  Json json = {{"dimension", trial.dimension},
               {"setting", to_json(trial.setting)},
               {"verdict", name_of(trial.verdict)},
               {"why", trial.why}};
  if (!trial.over_best) return json;
  json["speed_over_best"] = evaluate::to_json(*trial.over_best);
  json["speed_over_control"] = evaluate::to_json(*trial.over_control);
  if (trial.work == TuneWork::kGeneration) json["tpot_ms"] = trial.tpot_ms;
  json["ttft_ms"] = trial.ttft_ms;
  json["acceptance_length"] = trial.acceptance_length;
  if (!trial.quality) return json;
  Json texts = Json::array();
  for (const TunePerplexity& text : trial.quality->texts) texts.push_back(to_json(text));
  json["perplexity"] = std::move(texts);
  return json;
}

}  // namespace

std::string to_text(const TuneResult& result) {
  evaluate::Table table({"tried", "TPOT ms", "TTFT ms", "tokens a round", "x best", "", "x control",
                         "", "x perplexity", "verdict"});
  for (const TuneTrial& trial : result.trials) {
    const bool timed = trial.over_best.has_value();
    const bool decoded = timed && trial.work == TuneWork::kGeneration;
    table.add_row({fmt::format("{}: {}", trial.dimension, to_text(trial.setting)),
                   decoded ? fmt::format("{:.3f}", trial.tpot_ms) : "",
                   timed ? fmt::format("{:.2f}", trial.ttft_ms) : "",
                   decoded ? fmt::format("{:.2f}", trial.acceptance_length) : "",
                   times(trial.over_best), interval(trial.over_best), times(trial.over_control),
                   interval(trial.over_control), worst_ratio(trial.quality),
                   std::string(name_of(trial.verdict))});
  }
  std::string text = table.to_string();
  text +=
      "x: speed over the best so far and over the control, everything off: the median of the "
      "rounds'\nratios [its confidence interval]; of the prefix cache, of the times to first "
      "tokens\n\n";
  if (result.disturbance.noticeable()) {
    text += fmt::format(
        "{}\nWhat is best beside other work, threads above all, need not be when it is quiet; run "
        "again then.\n\n",
        to_text(result.disturbance));
  }
  for (const TuneTrial& trial : result.trials) {
    text += fmt::format("{} ({}): {}\n", name_of(trial.verdict), to_text(trial.setting), trial.why);
    for (const TunePerplexity& perplexity : perplexities(trial)) {
      text += fmt::format("  {}\n", to_text(perplexity));
    }
  }
  for (const TuneDimension& dimension : result.untried) {
    text += fmt::format("not tried: {}: {}\n", dimension.name, dimension.why_none);
  }
  return text + chosen_text(result);
}

Json to_json(const TuneSetting& setting) {
  return {{"threads", setting.threads},
          {"pin_threads", setting.pin_threads},
          {"kv_cache_dtype", name_of(setting.kv)},
          {"mamba_ssm_cache_dtype", name_of(setting.ssm)},
          {"num_speculative_tokens", setting.drafts},
          {"draft_vocab_size", setting.draft_vocab},
          {"device_rounds", or_null(setting.device_rounds)},
          {"enable_prefix_caching", or_null(setting.prefix_cache)}};
}

Json to_json(const TuneResult& result) {
  Json trials = Json::array();
  for (const TuneTrial& trial : result.trials) trials.push_back(trial_json(trial));
  Json untried = Json::array();
  for (const TuneDimension& dimension : result.untried) {
    untried.push_back({{"dimension", dimension.name}, {"why", dimension.why_none}});
  }
  const TuneConfirmation& generation = result.generation;
  Json json = {{"control", to_json(result.control)},
               {"chosen", to_json(result.best)},
               {"speed_over_control", evaluate::to_json(generation.speed)},
               {"refuted", generation.refuted},
               {"trials", std::move(trials)},
               {"not_tried", std::move(untried)},
               {"machine_was_busy", to_json(result.disturbance)}};
  if (!generation.chosen.tpot.empty()) {
    json["tpot_ms"] = evaluate::median(generation.chosen.tpot) * 1e3;
    json["control_tpot_ms"] = evaluate::median(generation.control.tpot) * 1e3;
    json["acceptance_length"] = generation.chosen.acceptance_length;
  }
  const TuneConfirmation& prefix = result.shared_prefix;
  if (!prefix.chosen.ttft.empty()) {
    json["prefix_cache"] = {{"speed_over_none", evaluate::to_json(prefix.speed)},
                            {"refuted", prefix.refuted},
                            {"ttft_ms", evaluate::median(prefix.chosen.ttft) * 1e3},
                            {"control_ttft_ms", evaluate::median(prefix.control.ttft) * 1e3}};
  }
  return json;
}

}  // namespace levin::bench
