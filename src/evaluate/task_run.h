// Has a model answer tasks and marks the answers.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "evaluate/repetition.h"
#include "evaluate/task_set.h"

namespace levin::evaluate {

struct TaskOptions {
  int64_t max_tokens = 512;  // of an answer; an answer that reaches it counts as that long
};

struct ItemResult {
  std::string id;
  std::string task;
  bool thinking = true;
  bool correct = false;  // the text of the output equals expected_completion
  // Its tokens do, too: the model spelled the right text as the tokenizer would.
  bool same_tokens = false;
  bool hit_limit = false;     // stopped by max_tokens or the model's length, not by itself
  bool loops = false;         // evaluate/repetition.h
  int64_t output_tokens = 0;  // the stop token included
  std::string output;         // special tokens included
};

// Greedy answers, in the order of `items`, as many at a time as the engine has slots. The expected
// completion is proposed as a draft: that never changes the answer, it only makes right ones fast.
// `on_item` is called once per item. Throws Error naming the items whose prompt and expected
// completion do not fit the model's length.
std::vector<ItemResult> run_tasks(engine::Engine& engine, std::span<const TaskItem> items,
                                  const TaskOptions& options,
                                  const std::function<void()>& on_item = {});

// Tokens a sequence must be able to hold for these items.
int64_t needed_length(std::span<const TaskItem> items, const TaskOptions& options);

// Throws Error naming the items (the first few, and how many) whose prompt and expected completion
// are longer than `length` tokens.
void require_fit(std::span<const TaskItem> items, int64_t length);

}  // namespace levin::evaluate
