#include "evaluate/task_run.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "core/plural.h"
#include "engine/generate.h"

namespace levin::evaluate {
namespace {

constexpr std::size_t kNamedItems = 5;

int64_t length_of(const TaskItem& item) {
  return static_cast<int64_t>(item.prompt_ids.size() + item.expected_ids.size());
}

int64_t max_length(const engine::Engine& engine) {
  const int64_t set = engine.runtime->options().max_model_len;
  return set > 0 ? set : engine.model->config.max_position_embeddings;
}

}  // namespace

int64_t needed_length(std::span<const TaskItem> items, const TaskOptions& options) {
  int64_t needed = 1;
  for (const TaskItem& item : items) {
    const auto prompt = static_cast<int64_t>(item.prompt_ids.size());
    needed = std::max({needed, length_of(item), prompt + options.max_tokens});
  }
  return needed;
}

void require_fit(std::span<const TaskItem> items, int64_t length) {
  std::string names;
  std::size_t count = 0;
  for (const TaskItem& item : items) {
    if (length_of(item) <= length) continue;
    if (count++ < kNamedItems) {
      names += fmt::format("{}{} ({})", names.empty() ? "" : ", ", item.id,
                           counted(length_of(item), "token"));
    }
  }
  if (count == 0) return;
  if (count > kNamedItems) names += fmt::format(" and {} more", count - kNamedItems);
  throw Error({.what = fmt::format("{} {} longer than the model's context",
                                   counted(count, "task item"), count == 1 ? "is" : "are"),
               .where = names,
               .expected = "prompt and expected completion of at most " + counted(length, "token"),
               .found = {},
               .hint = "raise --max-model-len, or leave these items out"});
}

std::vector<ItemResult> run_tasks(engine::Engine& engine, std::span<const TaskItem> items,
                                  const TaskOptions& options,
                                  const std::function<void()>& on_item) {
  const int64_t length = max_length(engine);
  require_fit(items, length);
  std::vector<engine::Request> requests(items.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    engine::Request& request = requests[i];
    request.prompt = items[i].prompt_ids;
    request.given_drafts = items[i].expected_ids;
    request.sampling.temperature = 0;
    request.sampling.max_tokens =
        std::min(options.max_tokens, length - static_cast<int64_t>(request.prompt.size()));
    if (on_item) {
      request.on_tokens = [&on_item, first = true](std::span<const int32_t>) mutable {
        if (first) on_item();
        first = false;
        return true;
      };
    }
  }
  const std::vector<engine::Result> results = engine::generate(engine, requests);

  std::vector<ItemResult> marked(items.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    const engine::Result& result = results[i];
    std::string output = engine.tokenizer->decode(result.tokens);
    marked[i] = {.id = items[i].id,
                 .task = items[i].task,
                 .thinking = items[i].thinking,
                 .correct = output == items[i].expected,
                 .same_tokens = result.tokens == items[i].expected_ids,
                 .hit_limit = result.finish_reason == engine::FinishReason::kLength,
                 .loops = find_repetition_loop(result.tokens).has_value(),
                 .output_tokens = static_cast<int64_t>(result.tokens.size()),
                 .output = std::move(output)};
  }
  return marked;
}

}  // namespace levin::evaluate
