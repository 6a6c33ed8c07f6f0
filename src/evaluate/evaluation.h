// The whole evaluation of a model: what to run, running it, and its figures as JSON and tables.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "evaluate/comparison.h"
#include "evaluate/gate.h"
#include "evaluate/task_run.h"
#include "evaluate/text_score.h"

namespace levin::evaluate {

struct Settings {
  std::vector<std::filesystem::path> texts;  // files
  std::vector<std::filesystem::path> tasks;  // files or folders
  int64_t task_limit = 0;                    // items per task; 0: all
  TextOptions text;
  TaskOptions task;
};

// Text and tasks as the tokenizer and the chat template of a checkpoint see them.
struct Material {
  std::vector<TokenStream> streams;
  std::vector<TaskItem> items;
  TaskSizes task_sizes;       // of the files, with what a limit left out
  int64_t needed_length = 1;  // tokens a sequence must be able to hold
};

// Reads and tokenizes with the tokenizer of `model`. Throws Error for malformed data, for two texts
// of one kind, and when the folder lacks a tokenizer or, with tasks, a chat template.
Material prepare(const std::filesystem::path& model, const Settings& settings);

// The judgement of evaluate/gate.h, which then knows how much more the files hold.
GateResult judge(const Gate& gate, const Comparison& comparison, const Material& material);

// The sequence length to load a model with for this material: what is needed, at most what the
// configuration of `model` allows. Items that do not fit are refused by name when they are run.
int64_t sequence_length(const std::filesystem::path& model, const Material& material);

// Throws Error when the two tokenized the data differently: then nothing they do is comparable.
void require_same(const Material& baseline, const Material& candidate);

// Scores all texts (beside `baseline` unless it is null) and has `engine` answer all items. Shows
// progress on stderr.
Evaluation evaluate(engine::Engine& engine, engine::Engine* baseline, const Material& material,
                    const Settings& settings);
std::vector<ItemResult> answer(engine::Engine& engine, const Material& material,
                               const Settings& settings);

// Tables for the terminal. `baseline` may be empty.
std::string text_table(std::span<const TextScore> texts, double confidence);
std::string task_table(std::span<const ItemResult> items, std::span<const ItemResult> baseline);
std::string gate_table(const GateResult& result);

// Figures for `--json` and report.json. Values that are not numbers become null.
nlohmann::ordered_json to_json(const TextScore& text, double confidence);
nlohmann::ordered_json to_json(std::span<const ItemResult> items,
                               std::span<const ItemResult> baseline);
nlohmann::ordered_json to_json(const GateResult& result);
nlohmann::ordered_json to_json(const Estimate& estimate);

// Everything a later run needs to compare again, without the outputs' text.
nlohmann::ordered_json save(const Evaluation& evaluation);
// Throws Error naming `where` when the JSON is not what save() writes.
Evaluation load_evaluation(const nlohmann::json& json, const std::string& where);

}  // namespace levin::evaluate
