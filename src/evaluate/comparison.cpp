#include "evaluate/comparison.h"

#include <fmt/format.h>

#include <cmath>

#include "core/error.h"
#include "core/plural.h"

namespace levin::evaluate {
namespace {

// The entry of `task`, added at the end when it is new.
template <typename Entry>
Entry& entry_of(std::vector<Entry>& entries, const std::string& task) {
  for (Entry& entry : entries) {
    if (entry.task == task) return entry;
  }
  entries.emplace_back().task = task;
  return entries.back();
}

}  // namespace

void Accuracy::add(const ItemResult& item) {
  ++total;
  right += item.correct;
  output_tokens += item.output_tokens;
  loops += item.loops;
  hit_limit += item.hit_limit;
}

std::vector<TaskAccuracy> accuracy_by_task(std::span<const ItemResult> items) {
  std::vector<TaskAccuracy> tasks;
  for (const ItemResult& item : items) {
    TaskAccuracy& task = entry_of(tasks, item.task);
    task.all.add(item);
    (item.thinking ? task.thinking : task.direct).add(item);
  }
  return tasks;
}

Comparison compare(const Evaluation& baseline, const Evaluation& candidate) {
  if (baseline.items.size() != candidate.items.size()) {
    throw Error({.what = "baseline and candidate answered different items",
                 .where = {},
                 .expected = counted(baseline.items.size(), "item"),
                 .found = counted(candidate.items.size(), "item"),
                 .hint = {}});
  }
  Comparison comparison;
  for (std::size_t i = 0; i < baseline.items.size(); ++i) {
    const ItemResult& base = baseline.items[i];
    const ItemResult& item = candidate.items[i];
    if (base.id != item.id || base.task != item.task) {
      throw Error({.what = "baseline and candidate answered different items",
                   .where = fmt::format("item {}", i + 1),
                   .expected = base.id,
                   .found = item.id,
                   .hint = {}});
    }
    TaskComparison& task = entry_of(comparison.tasks, item.task);
    task.correct.add(base.correct, item.correct);
    task.loops.add(base.loops, item.loops);
    task.tokens.push_back(
        {static_cast<double>(base.output_tokens), static_cast<double>(item.output_tokens)});
  }
  comparison.texts = candidate.texts;
  return comparison;
}

Estimate perplexity_ratio(const TextScore& text, double confidence) {
  std::vector<double> differences;
  for (const WindowScore& window : text.windows) {
    differences.push_back((window.nll - window.baseline_nll) /
                          static_cast<double>(window.predictions));
  }
  const Estimate difference = mean_with_t_interval(differences, confidence);
  return {std::exp(difference.value), std::exp(difference.low), std::exp(difference.high)};
}

}  // namespace levin::evaluate
