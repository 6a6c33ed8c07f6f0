#include "evaluate/evaluation.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "checkpoint/model_folder.h"
#include "core/error.h"
#include "core/files.h"
#include "core/progress.h"
#include "model/config.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace levin::evaluate {
namespace {

std::vector<TokenStream> tokenize_all(const Settings& settings, const text::Tokenizer& tokenizer) {
  std::vector<TokenStream> streams;
  std::set<std::string> kinds;
  for (const std::filesystem::path& file : settings.texts) {
    const TextSet text = load_text(file);
    if (!kinds.insert(text.kind).second) {
      throw Error({.what = "two texts of the same kind",
                   .where = file.string(),
                   .expected = "file names that differ without folder and extension",
                   .found = text.kind,
                   .hint = {}});
    }
    streams.push_back(tokenize(text, tokenizer));
  }
  return streams;
}

// The last part of the model's folder.
std::string name_of(const engine::Engine& engine) {
  const std::filesystem::path folder = (engine.folder / "").lexically_normal().parent_path();
  return folder.filename().string();
}

}  // namespace

Material prepare(const std::filesystem::path& model, const Settings& settings) {
  checkpoint::require_model_folder(model);
  const text::Tokenizer tokenizer = text::Tokenizer::load(model);
  Material material;
  material.streams = tokenize_all(settings, tokenizer);
  for (const TokenStream& stream : material.streams) {
    const auto predictions = static_cast<int64_t>(stream.tokens.size()) - 1;
    material.needed_length =
        std::max(material.needed_length, std::min(settings.text.window, predictions));
  }
  if (!settings.tasks.empty()) {
    const std::vector<std::filesystem::path> files = task_files(settings.tasks);
    material.items = load_tasks(files, tokenizer, text::ChatTemplate::load(model),
                                settings.task_limit, &material.task_sizes);
    material.needed_length =
        std::max(material.needed_length, needed_length(material.items, settings.task));
  }
  return material;
}

GateResult judge(const Gate& gate, const Comparison& comparison, const Material& material) {
  int64_t most = 0;
  for (const auto& [task, size] : material.task_sizes) most = std::max(most, size);
  return judge(gate, comparison, most);
}

int64_t sequence_length(const std::filesystem::path& model, const Material& material) {
  const std::filesystem::path file = model / "config.json";
  const model::Config config = model::parse_config(read_json(file), file.string());
  return std::min(material.needed_length, config.max_position_embeddings);
}

void require_same(const Material& baseline, const Material& candidate) {
  const auto fail = [](const std::string& where) {
    throw Error({.what = "baseline and candidate turn the same text into different tokens",
                 .where = where,
                 .expected = "the same tokenizer.json and chat template in both folders",
                 .found = {},
                 .hint = {}});
  };
  for (std::size_t i = 0; i < baseline.streams.size(); ++i) {
    if (baseline.streams[i].tokens != candidate.streams[i].tokens) {
      fail("text " + baseline.streams[i].kind);
    }
  }
  for (std::size_t i = 0; i < baseline.items.size(); ++i) {
    if (baseline.items[i].prompt_ids != candidate.items[i].prompt_ids) {
      fail("task item " + baseline.items[i].id);
    }
  }
}

std::vector<ItemResult> answer(engine::Engine& engine, const Material& material,
                               const Settings& settings) {
  Progress progress("tasks, " + name_of(engine), static_cast<int64_t>(material.items.size()),
                    "items");
  return run_tasks(engine, material.items, settings.task, [&] { progress.advance(1); });
}

Evaluation evaluate(engine::Engine& engine, engine::Engine* baseline, const Material& material,
                    const Settings& settings) {
  Evaluation evaluation;
  for (const TokenStream& stream : material.streams) {
    const auto tokens = static_cast<int64_t>(stream.tokens.size());
    Progress progress("text " + stream.kind, scored_predictions(tokens, settings.text), "tokens");
    runtime::Runtime* beside = baseline == nullptr ? nullptr : baseline->runtime.get();
    evaluation.texts.push_back(score_text(*engine.runtime, beside, stream, settings.text,
                                          [&](int64_t count) { progress.advance(count); }));
  }
  if (!material.items.empty()) evaluation.items = answer(engine, material, settings);
  return evaluation;
}

}  // namespace levin::evaluate
