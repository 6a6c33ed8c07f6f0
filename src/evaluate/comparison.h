// A candidate beside its baseline on the same text and the same items.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "evaluate/statistics.h"
#include "evaluate/task_run.h"
#include "evaluate/text_score.h"

namespace levin::evaluate {

// What one model did.
struct Evaluation {
  std::vector<TextScore> texts;   // with baseline figures when there is a baseline
  std::vector<ItemResult> items;  // in the order of the task files
};

// How often one model was right.
struct Accuracy {
  int64_t right = 0;
  int64_t total = 0;
  int64_t output_tokens = 0;
  int64_t loops = 0;
  int64_t hit_limit = 0;
  void add(const ItemResult& item);
  double rate() const { return static_cast<double>(right) / static_cast<double>(total); }
};

struct TaskAccuracy {
  std::string task;
  Accuracy all, thinking, direct;  // direct: without thinking
};
// In order of first appearance.
std::vector<TaskAccuracy> accuracy_by_task(std::span<const ItemResult> items);

struct TaskComparison {
  std::string task;
  PairCounts correct;        // right answers
  PairCounts loops;          // here "right" means: loops
  std::vector<Pair> tokens;  // output tokens, per item
};

struct Comparison {
  std::vector<TaskComparison> tasks;
  std::vector<TextScore> texts;  // with baseline figures
};

// Pairs the items of both. Throws Error when they did not answer the same items in the same order.
Comparison compare(const Evaluation& baseline, const Evaluation& candidate);

// exp of the mean log ratio of the probabilities of the true tokens: candidate perplexity over
// baseline perplexity, with Student's t interval over windows. At least two windows bound it.
Estimate perplexity_ratio(const TextScore& text, double confidence);

}  // namespace levin::evaluate
