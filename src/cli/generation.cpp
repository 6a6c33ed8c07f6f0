#include "cli/generation.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <nlohmann/json.hpp>

#include "cli/engine_flags.h"
#include "core/error.h"
#include "core/plural.h"
#include "engine/self_test.h"

namespace levin::cli {
namespace {

// Share of the rounds in which the draft at each position was accepted.
std::vector<double> acceptance_per_position(const engine::SpeculationStats& stats) {
  std::vector<double> shares;
  for (const int64_t accepted : stats.num_accepted_tokens_per_pos) {
    shares.push_back(static_cast<double>(accepted) / static_cast<double>(stats.num_drafts));
  }
  return shares;
}

double tokens_per_second(const engine::Result& result) {
  const double tpot = result.timings.tpot_seconds(static_cast<int64_t>(result.tokens.size()));
  return tpot > 0 ? 1 / tpot : 0;
}

void require_tokenizer(const engine::Engine& engine) {
  if (engine.tokenizer) return;
  throw Error({.what = "the model folder has no tokenizer",
               .where = engine.folder.string(),
               .expected = "tokenizer.json",
               .found = "none",
               .hint = "levin logits works with token ids alone"});
}

}  // namespace

std::unique_ptr<engine::Engine> load_generating_engine(
    const std::string& folder, const engine::LoadOptions& options,
    const engine::SpeculativeConfig& speculation) {
  engine::LoadOptions checked = options;
  checked.before_runtime = [&](const engine::Engine& loading) {
    require_tokenizer(loading);
    engine::require_draft_vocab(loading, speculation.draft_vocab_size, kDraftVocabPlace);
    if (options.before_runtime) options.before_runtime(loading);
  };
  auto engine = engine::load_engine(folder, checked);
  spdlog::info("{}", engine->runtime->description());
  engine::require_drafts(*engine, speculation.num_speculative_tokens, kDraftsPlace);
  if (speculation.num_speculative_tokens > 0) engine::check_drafter(*engine);
  return engine;
}

void require_chat_template(const engine::Engine& engine) {
  if (engine.chat_template) return;
  throw Error({.what = "the model folder has no chat template",
               .where = engine.folder.string(),
               .expected = "chat_template.jinja, or chat_template in tokenizer_config.json",
               .found = "none",
               .hint = "levin generate -p TEXT completes plain text"});
}

int64_t context_of(const engine::Engine& engine, const engine::LoadOptions& options) {
  const int64_t set = options.runtime.max_model_len;
  return set > 0 ? set : engine.model->config.max_position_embeddings;
}

std::vector<int32_t> render_prompt(const engine::Engine& engine, nlohmann::ordered_json variables) {
  require_chat_template(engine);
  variables["add_generation_prompt"] = true;
  return engine.tokenizer->encode(engine.chat_template->render(variables));
}

std::string summary(const engine::Result& result, std::size_t prompt_tokens) {
  const auto tokens = static_cast<int64_t>(result.tokens.size());
  std::string text = fmt::format(
      "{}, {}, finish reason {}\n"
      "TTFT {:.1f} ms, TPOT {:.2f} ms, {:.1f} tokens/s",
      counted(prompt_tokens, "prompt token"), counted(tokens, "output token"),
      engine::name_of(result.finish_reason), result.timings.ttft_seconds * 1e3,
      result.timings.tpot_seconds(tokens) * 1e3, tokens_per_second(result));
  if (result.speculation.num_drafts > 0) {
    text += fmt::format("\n{:.2f} tokens per round of speculation; accepted per position {:.2f}",
                        result.speculation.mean_acceptance_length(),
                        fmt::join(acceptance_per_position(result.speculation), " "));
  }
  return text;
}

nlohmann::ordered_json result_json(const engine::Result& result, std::size_t prompt_tokens) {
  const auto tokens = static_cast<int64_t>(result.tokens.size());
  nlohmann::ordered_json json = {
      {"text", result.text},
      {"token_ids", result.tokens},
      {"finish_reason", engine::name_of(result.finish_reason)},
      {"stop_reason", result.stop_reason},
      {"usage", {{"prompt_tokens", prompt_tokens}, {"completion_tokens", tokens}}},
      {"timings",
       {{"ttft_ms", result.timings.ttft_seconds * 1e3},
        {"tpot_ms", result.timings.tpot_seconds(tokens) * 1e3},
        {"tokens_per_second", tokens_per_second(result)}}}};
  const engine::SpeculationStats& stats = result.speculation;
  if (stats.num_drafts > 0) {
    json["speculation"] = {{"num_drafts", stats.num_drafts},
                           {"num_draft_tokens", stats.num_draft_tokens},
                           {"num_accepted_tokens", stats.num_accepted_tokens},
                           {"num_accepted_tokens_per_pos", stats.num_accepted_tokens_per_pos},
                           {"acceptance_length", stats.mean_acceptance_length()},
                           {"accepted_per_position", acceptance_per_position(stats)}};
  }
  return json;
}

}  // namespace levin::cli
