#include "bench/tune_lab.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/progress.h"
#include "core/thread_team.h"
#include "evaluate/comparison.h"
#include "evaluate/text_score.h"

namespace levin::bench {
namespace {

// Two-sided, of the perplexity ratio that the gate judges.
constexpr double kConfidence = 0.95;

bool same_load(const TuneSetting& a, const TuneSetting& b) {
  return a.threads == b.threads && a.kv == b.kv && a.ssm == b.ssm;
}

// The host's memory is read by threads of ours, whose number matters.
bool on_host(engine::Engine& engine) {
  return engine.runtime->read_gb_per_s(1, 1).empty();
}

}  // namespace

ModelLab::ModelLab(const TuneLabOptions& options) : options_(options) {
  auto engine = engine::load_engine(options_.model, options_.load);
  const runtime::Options& runtime = engine->runtime->options();
  control_ = {.threads = runtime.threads,
              .kv = runtime.kv_cache_dtype,
              .ssm = runtime.ssm_cache_dtype,
              .drafts = 0};
  engines_.push_back({control_, std::move(engine)});
  workload_ = fixed_workload(control_engine(), options_.prompt_tokens);
  require_fit(workload_, control_engine(), options_.timing.output_tokens);
}

std::vector<TuneDimension> ModelLab::dimensions() const {
  engine::Engine& engine = *engines_.front().engine;
  std::vector<TuneDimension> dimensions;
  if (on_host(engine)) {
    TuneDimension threads{.name = "threads", .values = {}};
    for (int count = 1; count < available_cores(); count *= 2) {
      threads.values.emplace_back([count](TuneSetting& s) { s.threads = count; });
    }
    threads.values.emplace_back([](TuneSetting& s) { s.threads = available_cores(); });
    dimensions.push_back(std::move(threads));
  }
  dimensions.push_back({.name = "KV cache",
                        .values = {[](TuneSetting& s) { s.kv = runtime::KvCacheDType::kBf16; },
                                   [](TuneSetting& s) { s.kv = runtime::KvCacheDType::kFp8; }}});
  dimensions.push_back({.name = "SSM state",
                        .values = {[](TuneSetting& s) { s.ssm = runtime::SsmCacheDType::kF16; }}});
  if (engine.model->mtp && engine.runtime->options().mtp) {
    TuneDimension drafts{.name = "drafts", .values = {}};
    constexpr int kMostDrafts = 5;
    for (int k = 1; k <= std::min(kMostDrafts, engine.runtime->options().max_rewind - 1); ++k) {
      drafts.values.emplace_back([k](TuneSetting& s) { s.drafts = k; });
    }
    dimensions.push_back(std::move(drafts));
    if (engine.runtime->has_draft_vocab()) {
      TuneDimension vocab{.name = "draft vocabulary", .values = {}};
      for (const int64_t part : {16, 8, 4, 2}) {
        const int64_t size = engine.model->config.vocab_size / part;
        vocab.values.emplace_back([size](TuneSetting& s) { s.draft_vocab = size; });
      }
      dimensions.push_back(std::move(vocab));
    }
  }
  return dimensions;
}

std::optional<std::string> ModelLab::obstacle(const TuneSetting& setting) {
  if (setting.draft_vocab > 0 && setting.drafts == 0) return "there are no drafts to choose";
  if (same_load(setting, control_) || available_bytes_ < 0) return std::nullopt;
  const auto loaded = std::any_of(engines_.begin(), engines_.end(), [&](const Loaded& one) {
    return same_load(one.setting, setting);
  });
  const int64_t needed = control_engine().runtime->memory_bytes();
  if (loaded || needed <= available_bytes_) return std::nullopt;
  return fmt::format(
      "there is no memory for it beside the control: it takes {} MiB, {} MiB are available",
      needed >> 20, available_bytes_ >> 20);
}

engine::Engine& ModelLab::engine_for(const TuneSetting& setting) {
  for (Loaded& loaded : engines_) {
    if (same_load(loaded.setting, setting)) return *loaded.engine;
  }
  engine::LoadOptions load = options_.load;
  load.runtime.threads = setting.threads;
  load.kv_cache_dtype = setting.kv;
  load.ssm_cache_dtype = setting.ssm;
  engines_.push_back({setting, engine::load_engine(options_.model, load)});
  return *engines_.back().engine;
}

// Weights of engines that are not needed any more make room.
void ModelLab::keep_only(std::span<const TuneSetting> settings) {
  std::erase_if(engines_, [&](const Loaded& loaded) {
    return !same_load(loaded.setting, control_) &&
           std::none_of(settings.begin(), settings.end(), [&](const TuneSetting& setting) {
             return same_load(setting, loaded.setting);
           });
  });
}

std::vector<TuneTiming> ModelLab::time(std::span<const TuneSetting> settings) {
  keep_only(settings);
  std::vector<Contender> contenders;
  for (const TuneSetting& setting : settings) {
    contenders.push_back(
        {to_text(setting),
         &engine_for(setting),
         {.num_speculative_tokens = setting.drafts, .draft_vocab_size = setting.draft_vocab}});
  }
  const auto runs = static_cast<int64_t>(contenders.size() * workload_.prompts.size()) *
                    (options_.timing.rounds + options_.timing.warm_up);
  Progress progress("timing", runs, "runs");
  std::vector<TuneTiming> timings;
  for (const ContenderTiming& timing :
       time_contenders(contenders, workload_, options_.timing, [&] { progress.advance(1); })) {
    timings.push_back({.tpot = timing.tpot,
                       .ttft = timing.ttft,
                       .acceptance_length = timing.speculation.mean_acceptance_length()});
  }
  return timings;
}

std::vector<evaluate::TokenStream> ModelLab::streams() const {
  const engine::Engine& engine = *engines_.front().engine;
  std::vector<evaluate::TokenStream> streams;
  if (options_.texts.empty() || !engine.tokenizer) {
    for (const Prompt& prompt : workload_.prompts) {
      streams.push_back({.kind = prompt.name, .documents = 1, .tokens = prompt.tokens});
    }
    return streams;
  }
  for (const auto& file : options_.texts) {
    streams.push_back(evaluate::tokenize(evaluate::load_text(file), *engine.tokenizer));
  }
  return streams;
}

// Speculation changes no token, threads no bit; types of caches do.
std::optional<std::string> ModelLab::flaw(const TuneSetting& setting) {
  if (setting.kv == control_.kv && setting.ssm == control_.ssm) return std::nullopt;
  for (const evaluate::TokenStream& stream : streams()) {
    // A text that is short has some windows all the same: one alone bounds nothing.
    constexpr int64_t kLeastWindows = 4;
    const auto predictions = static_cast<int64_t>(stream.tokens.size()) - 1;
    const evaluate::TextOptions text = {
        .window = std::clamp<int64_t>(predictions / kLeastWindows, 1, options_.window),
        .max_windows = options_.max_windows};
    const evaluate::TextScore score = evaluate::score_text(
        *engine_for(setting).runtime, control_engine().runtime.get(), stream, text);
    const evaluate::Estimate ratio = evaluate::perplexity_ratio(score, kConfidence);
    const double limit = options_.perplexity_ratio_max;
    if (evaluate::judge(ratio, {.limit = limit, .is_minimum = false}) == evaluate::Verdict::kPass) {
      continue;
    }
    return fmt::format(
        "perplexity on {} is {:.4f} [{:.4f}, {:.4f}] times the control's, which is not below "
        "{:.2f} for certain ({} predictions, KL {:.5f}, same first token {:.1f} %)",
        stream.kind, ratio.value, ratio.low, ratio.high, limit, score.total().predictions,
        score.mean_kl(), score.top1_agreement() * 100);
  }
  return std::nullopt;
}

}  // namespace levin::bench
