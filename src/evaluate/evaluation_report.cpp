// Tables and JSON of evaluate/evaluation.h.
#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "evaluate/evaluation.h"
#include "evaluate/table.h"

namespace levin::evaluate {
namespace {

using Json = nlohmann::ordered_json;

std::string percent(double share, int digits = 1) {
  return !std::isfinite(share) ? "-" : fmt::format("{:.{}f} %", share * 100, digits);
}

std::string rate(const Accuracy& accuracy) {
  return accuracy.total == 0 ? "-" : percent(accuracy.rate());
}

double mean_tokens(const Accuracy& accuracy) {
  return static_cast<double>(accuracy.output_tokens) / static_cast<double>(accuracy.total);
}

Accuracy sum(std::span<const ItemResult> items) {
  Accuracy accuracy;
  for (const ItemResult& item : items) accuracy.add(item);
  return accuracy;
}

// Tasks of both, paired; empty without a baseline.
std::vector<TaskComparison> paired(std::span<const ItemResult> items,
                                   std::span<const ItemResult> baseline) {
  if (baseline.empty()) return {};
  Evaluation base, candidate;
  base.items.assign(baseline.begin(), baseline.end());
  candidate.items.assign(items.begin(), items.end());
  return compare(base, candidate).tasks;
}

double median_of(const std::vector<TaskComparison>& tasks) {
  std::vector<double> values;
  for (const TaskComparison& task : tasks) values.push_back(recovery(task.correct));
  return median(std::move(values));
}

double verbosity_change(std::span<const ItemResult> items, std::span<const ItemResult> baseline) {
  return mean_tokens(sum(items)) / mean_tokens(sum(baseline)) - 1;
}

Json to_json(const Accuracy& accuracy) {
  if (accuracy.total == 0) return nullptr;
  return {{"items", accuracy.total},     {"right", accuracy.right},
          {"accuracy", accuracy.rate()}, {"mean_output_tokens", mean_tokens(accuracy)},
          {"loops", accuracy.loops},     {"hit_limit", accuracy.hit_limit}};
}

// Perplexities and their ratios; those of a broken model are no numbers.
std::string decimal(double value) {
  return std::isfinite(value) ? fmt::format("{:.4f}", value) : "-";
}

std::string shown_estimate(const GateLine& line, double value) {
  if (!std::isfinite(value)) return "-";
  if (line.key == "perplexity_ratio_max") return fmt::format("{:.4f}", value);
  return percent(value, 2);
}

}  // namespace

std::string text_table(std::span<const TextScore> texts, double confidence) {
  if (texts.empty()) return {};
  if (!texts.front().compared) {
    Table table({"text", "tokens", "windows", "scored", "perplexity"});
    for (const TextScore& text : texts) {
      table.add_row({text.kind, fmt::format("{}", text.tokens),
                     fmt::format("{} x {}", text.windows.size(), text.window),
                     fmt::format("{}", text.total().predictions), decimal(text.perplexity())});
    }
    return table.to_string();
  }
  Table table({"text", "scored", "perplexity", "baseline", "ratio",
               fmt::format("{:.0f} % interval", confidence * 100), "KL nats/token", "top-1 agree"});
  for (const TextScore& text : texts) {
    const Estimate ratio = perplexity_ratio(text, confidence);
    table.add_row({text.kind, fmt::format("{}", text.total().predictions),
                   decimal(text.perplexity()), decimal(text.baseline_perplexity()),
                   decimal(ratio.value),
                   fmt::format("{} .. {}", decimal(ratio.low), decimal(ratio.high)),
                   std::isfinite(text.mean_kl()) ? fmt::format("{:.3g}", text.mean_kl()) : "-",
                   percent(text.top1_agreement(), 2)});
  }
  return table.to_string();
}

std::string task_table(std::span<const ItemResult> items, std::span<const ItemResult> baseline) {
  if (items.empty()) return {};
  const std::vector<TaskAccuracy> tasks = accuracy_by_task(items);
  const std::vector<TaskAccuracy> base = accuracy_by_task(baseline);
  const std::vector<TaskComparison> pairs = paired(items, baseline);
  std::vector<std::string> header = {"task",   "items",  "accuracy", "thinking",
                                     "direct", "tokens", "loops"};
  if (!baseline.empty()) header.insert(header.end(), {"baseline", "recovery", "lost", "gained"});
  Table table(header);
  const auto add = [&](const std::string& name, const TaskAccuracy& task,
                       std::vector<std::string> rest) {
    std::vector<std::string> row = {name,
                                    fmt::format("{}", task.all.total),
                                    rate(task.all),
                                    rate(task.thinking),
                                    rate(task.direct),
                                    fmt::format("{:.1f}", mean_tokens(task.all)),
                                    fmt::format("{}", task.all.loops)};
    row.insert(row.end(), rest.begin(), rest.end());
    table.add_row(std::move(row));
  };
  TaskAccuracy all;
  PairCounts changes;
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    if (pairs.empty()) {
      add(tasks[i].task, tasks[i], {});
      continue;
    }
    const PairCounts& counts = pairs[i].correct;
    changes.lost += counts.lost;
    changes.gained += counts.gained;
    add(tasks[i].task, tasks[i],
        {rate(base[i].all), percent(recovery(counts)), fmt::format("{}", counts.lost),
         fmt::format("{}", counts.gained)});
  }
  for (const ItemResult& item : items) {
    all.all.add(item);
    (item.thinking ? all.thinking : all.direct).add(item);
  }
  table.add_rule();
  if (pairs.empty()) {
    add("all", all, {});
    return table.to_string();
  }
  add("all", all,
      {rate(sum(baseline)), percent(median_of(pairs)), fmt::format("{}", changes.lost),
       fmt::format("{}", changes.gained)});
  return table.to_string() +
         fmt::format("recovery of all tasks is their median; answers are {:+.2f} % longer\n",
                     verbosity_change(items, baseline) * 100);
}

std::string gate_table(const GateResult& result) {
  Table table({"gate", "judged on", "value", "interval", "bound", "verdict"});
  for (const GateLine& line : result.lines) {
    table.add_row({line.key, line.subject, shown_estimate(line, line.estimate.value),
                   fmt::format("{} .. {}", shown_estimate(line, line.estimate.low),
                               shown_estimate(line, line.estimate.high)),
                   fmt::format("{} {}", line.bound.is_minimum ? ">=" : "<=",
                               shown_estimate(line, line.bound.limit)),
                   std::string(name_of(line.verdict))});
  }
  return table.to_string();
}

Json to_json(const Estimate& estimate) {
  return {{"value", estimate.value}, {"low", estimate.low}, {"high", estimate.high}};
}

Json to_json(const TextScore& text, double confidence) {
  const WindowScore total = text.total();
  Json json = {{"kind", text.kind},
               {"documents", text.documents},
               {"tokens", text.tokens},
               {"window", text.window},
               {"windows", text.windows.size()},
               {"scored_predictions", total.predictions},
               {"unscored_predictions", text.unscored},
               {"leftover_tokens", text.leftover},
               {"perplexity", text.perplexity()},
               {"nll_per_token", total.nll / static_cast<double>(total.predictions)}};
  if (!text.compared) return json;
  json["baseline_perplexity"] = text.baseline_perplexity();
  json["perplexity_ratio"] = to_json(perplexity_ratio(text, confidence));
  json["kl_nats_per_token"] = text.mean_kl();
  json["top1_agreement"] = text.top1_agreement();
  return json;
}

Json to_json(std::span<const ItemResult> items, std::span<const ItemResult> baseline) {
  const std::vector<TaskAccuracy> tasks = accuracy_by_task(items);
  const std::vector<TaskAccuracy> base = accuracy_by_task(baseline);
  const std::vector<TaskComparison> pairs = paired(items, baseline);
  Json list = Json::array();
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    Json task = {{"task", tasks[i].task},
                 {"all", to_json(tasks[i].all)},
                 {"thinking", to_json(tasks[i].thinking)},
                 {"direct", to_json(tasks[i].direct)}};
    if (!pairs.empty()) {
      const PairCounts& counts = pairs[i].correct;
      task["baseline"] = to_json(base[i].all);
      task["recovery"] = recovery(counts);
      task["lost"] = counts.lost;
      task["gained"] = counts.gained;
    }
    list.push_back(std::move(task));
  }
  Json json = {{"all", to_json(sum(items))}, {"by_task", std::move(list)}};
  if (!pairs.empty()) {
    json["median_recovery"] = median_of(pairs);
    json["verbosity_change"] = verbosity_change(items, baseline);
  }
  return json;
}

Json to_json(const GateResult& result) {
  Json lines = Json::array();
  for (const GateLine& line : result.lines) {
    Json entry = {{"key", line.key},
                  {"subject", line.subject},
                  {"estimate", to_json(line.estimate)},
                  {"bound", line.bound.limit},
                  {"verdict", name_of(line.verdict)},
                  {"samples", line.samples},
                  {"unit", line.unit}};
    if (line.verdict == Verdict::kUndecided) {
      entry["samples_to_decide"] = line.samples_to_decide ? Json(*line.samples_to_decide) : Json();
      entry["flag"] = line.flag;
      entry["flag_to_decide"] = line.flag_to_decide ? Json(*line.flag_to_decide) : Json();
      entry["flag_held"] = line.flag_held > 0 ? Json(line.flag_held) : Json();
    }
    if (!line.failure.empty()) entry["failure"] = line.failure;
    if (!line.note.empty()) entry["note"] = line.note;
    lines.push_back(std::move(entry));
  }
  return {{"verdict", name_of(result.verdict)},
          {"explanation", explain(result)},
          {"lines", std::move(lines)}};
}

}  // namespace levin::evaluate
