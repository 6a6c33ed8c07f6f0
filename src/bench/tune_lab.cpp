#include "bench/tune_lab.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>

#include "core/error.h"
#include "core/progress.h"
#include "core/thread_team.h"
#include "engine/scheduler.h"
#include "evaluate/comparison.h"

namespace levin::bench {
namespace {

// Two-sided, of the perplexity ratio that the gate judges.
constexpr double kConfidence = 0.95;

bool same_load(const TuneSetting& a, const TuneSetting& b) {
  return a.threads == b.threads && a.pin_threads == b.pin_threads && a.kv == b.kv && a.ssm == b.ssm;
}

// The host's memory is read by threads of ours, whose number matters.
bool on_host(runtime::Runtime& runtime) {
  return runtime.read_gb_per_s(1, 1).empty();
}

std::vector<TuneDimension> thread_dimensions(runtime::Runtime& runtime) {
  TuneDimension threads{.name = "threads", .values = {}};
  TuneDimension pinning{.name = "pinning", .values = {}};
  if (!on_host(runtime)) {
    threads.why_none = pinning.why_none = "the device computes, no threads of the CPU do";
    return {threads, pinning};
  }
  for (int count = 1; count < available_cores(); count *= 2) {
    threads.values.emplace_back([count](TuneSetting& s) { s.threads = count; });
  }
  threads.values.emplace_back([](TuneSetting& s) { s.threads = available_cores(); });
  for (const bool pinned : {true, false}) {
    pinning.values.emplace_back([pinned](TuneSetting& s) { s.pin_threads = pinned; });
  }
  return {threads, pinning};
}

std::vector<TuneDimension> draft_dimensions(const engine::Engine& engine) {
  TuneDimension drafts{.name = "drafts", .values = {}};
  TuneDimension vocab{.name = "draft vocabulary", .values = {}};
  const runtime::Options& options = engine.runtime->options();
  if (!engine.model->mtp || !options.mtp) {
    drafts.why_none = vocab.why_none = "the model has no draft head";
    return {drafts, vocab};
  }
  constexpr int kMostDrafts = 5;
  for (int k = 1; k <= std::min(kMostDrafts, options.max_rewind - 1); ++k) {
    drafts.values.emplace_back([k](TuneSetting& s) { s.drafts = k; });
  }
  for (const int64_t part : {16, 8, 4, 2}) {
    const int64_t size = engine.model->config.vocab_size / part;
    vocab.values.emplace_back([size](TuneSetting& s) { s.draft_vocab = size; });
  }
  return {drafts, vocab};
}

// What `levin serve` would give it, where there is so much.
int64_t prefix_cache_bytes(const runtime::Runtime& runtime) {
  constexpr int64_t kServed = int64_t{1} << 30;
  return std::min(kServed, runtime.free_snapshot_bytes().value_or(kServed));
}

// From the submission of the first to the first token of the second.
double seconds_of_pair(engine::Engine& engine, const TuneSetting& setting,
                       std::span<const std::vector<int32_t>> prompts) {
  engine::Scheduler scheduler(
      engine,
      {.prefix_cache_bytes = *setting.prefix_cache ? prefix_cache_bytes(*engine.runtime) : 0,
       .decode_slowdown = 0});
  const auto start = std::chrono::steady_clock::now();
  for (const std::vector<int32_t>& prompt : prompts) {
    engine::Request request;
    request.prompt = prompt;
    request.sampling.temperature = 0;
    request.sampling.max_tokens = 1;
    request.sampling.ignore_eos = true;
    request.speculation.device_rounds = setting.device_rounds.value_or(false);
    std::exception_ptr error;
    scheduler.submit({.request = std::move(request),
                      .on_finish = [&](engine::Completion&& done) { error = done.error; }});
    while (!error && scheduler.step()) {
    }
    if (error) std::rethrow_exception(error);
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  return seconds.count();
}

}  // namespace

ModelLab::ModelLab(const TuneLabOptions& options) : options_(options) {
  auto engine = engine::load_engine(options_.model, options_.load);
  const runtime::Options& runtime = engine->runtime->options();
  control_ = {.threads = runtime.threads,
              .pin_threads = runtime.pin_threads,
              .kv = runtime.kv_cache_dtype,
              .ssm = runtime.ssm_cache_dtype};
  if (engine->runtime->rounds() != nullptr) control_.device_rounds = false;
  if (engine->runtime->has_snapshots()) control_.prefix_cache = false;
  engines_.push_back({control_, std::move(engine)});
  workload_ = fixed_workload(control_engine(), options_.prompt_tokens);
  require_fit(workload_, control_engine(), options_.timing.output_tokens);
  streams_ = load_streams();
  for (const evaluate::TokenStream& stream : streams_) {
    evaluate::require_fit(stream, windows_of(stream), runtime.max_model_len);
  }
}

std::vector<TuneDimension> ModelLab::dimensions() const {
  const engine::Engine& engine = *engines_.front().engine;
  std::vector<TuneDimension> dimensions = thread_dimensions(*engine.runtime);
  dimensions.push_back({.name = "rounds", .values = {}});
  if (control_.device_rounds) {
    dimensions.back().values = {[](TuneSetting& s) { s.device_rounds = true; }};
  } else {
    dimensions.back().why_none =
        "this device does no whole rounds, the host calls it for each part";
  }
  dimensions.push_back({.name = "KV cache",
                        .values = {[](TuneSetting& s) { s.kv = runtime::KvCacheDType::kBf16; },
                                   [](TuneSetting& s) { s.kv = runtime::KvCacheDType::kFp8; }}});
  dimensions.push_back({.name = "SSM state",
                        .values = {[](TuneSetting& s) { s.ssm = runtime::SsmCacheDType::kF16; }}});
  for (TuneDimension& dimension : draft_dimensions(engine)) {
    dimensions.push_back(std::move(dimension));
  }
  dimensions.push_back({.name = "prefix cache", .values = {}, .work = TuneWork::kSharedPrefix});
  if (control_.prefix_cache) {
    dimensions.back().values = {[](TuneSetting& s) { s.prefix_cache = true; }};
  } else {
    dimensions.back().why_none = "this runtime has no snapshots of sequences";
  }
  return dimensions;
}

std::optional<std::string> ModelLab::obstacle(const TuneSetting& setting,
                                              std::span<const TuneSetting> beside) {
  if (setting.draft_vocab > 0 && setting.drafts == 0) return "there are no drafts to choose";
  if (setting.pin_threads && setting.threads == 1)
    return "there are no threads beside the caller's";
  if (setting.prefix_cache.value_or(false)) {
    runtime::Runtime& runtime = *control_engine().runtime;
    const int64_t room = prefix_cache_bytes(runtime);
    const auto [caches, state] = runtime.snapshot_bytes(0, options_.prompt_tokens);
    if (caches + state > room) {
      return fmt::format("there is no memory for snapshots: one takes {} MiB, {} MiB are free",
                         (caches + state) >> 20, room >> 20);
    }
  }
  if (available_bytes_ <= 0) return std::nullopt;
  // All of them are loaded at once.
  std::vector<TuneSetting> loads = {control_};
  const auto load = [&](const TuneSetting& one) {
    const auto same = [&](const TuneSetting& other) { return same_load(one, other); };
    if (std::none_of(loads.begin(), loads.end(), same)) loads.push_back(one);
  };
  for (const TuneSetting& other : beside) load(other);
  const std::size_t others = loads.size();
  load(setting);
  if (loads.size() == others) return std::nullopt;
  const int64_t each = control_engine().runtime->memory_bytes();
  const int64_t left = available_bytes_ - each * static_cast<int64_t>(others - 1);
  if (each <= left) return std::nullopt;
  return fmt::format(
      "there is no memory for it beside the control{}: it takes {} MiB, {} MiB are "
      "available",
      others > 1 ? " and the best so far" : "", each >> 20, std::max<int64_t>(left, 0) >> 20);
}

engine::Engine& ModelLab::engine_for(const TuneSetting& setting) {
  for (Loaded& loaded : engines_) {
    if (same_load(loaded.setting, setting)) return *loaded.engine;
  }
  engine::LoadOptions load = options_.load;
  load.runtime.threads = setting.threads;
  load.runtime.pin_threads = setting.pin_threads;
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

std::vector<TuneTiming> ModelLab::time(TuneWork work, std::span<const TuneSetting> settings) {
  keep_only(settings);
  return work == TuneWork::kGeneration ? time_generation(settings) : time_shared_prefix(settings);
}

std::vector<TuneTiming> ModelLab::time_generation(std::span<const TuneSetting> settings) {
  std::vector<Contender> contenders;
  for (const TuneSetting& setting : settings) {
    contenders.push_back({to_text(setting),
                          &engine_for(setting),
                          {.num_speculative_tokens = setting.drafts,
                           .draft_vocab_size = setting.draft_vocab,
                           .device_rounds = setting.device_rounds.value_or(false)}});
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

// A conversation's next turn: each prompt, and the same with as many tokens of another prompt
// behind it as an output has. Every pair begins with an empty cache and pays for what it saves.
std::vector<TuneTiming> ModelLab::time_shared_prefix(std::span<const TuneSetting> settings) {
  const auto longer = static_cast<std::ptrdiff_t>(options_.timing.output_tokens - 1);
  std::vector<std::array<std::vector<int32_t>, 2>> pairs;
  for (std::size_t i = 0; i < workload_.prompts.size(); ++i) {
    const std::vector<int32_t>& first = workload_.prompts[i].tokens;
    const std::vector<int32_t>& other =
        workload_.prompts[(i + 1) % workload_.prompts.size()].tokens;
    std::vector<int32_t> second = first;
    second.insert(second.end(), other.begin(), other.begin() + std::min(longer, std::ssize(other)));
    pairs.push_back({first, std::move(second)});
  }
  const int rounds = options_.timing.rounds + options_.timing.warm_up;
  Progress progress("timing a shared prefix",
                    static_cast<int64_t>(settings.size() * pairs.size()) * rounds, "runs");
  std::vector<TuneTiming> timings(settings.size());
  const engine::Engine* running = nullptr;
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < settings.size(); ++i) {
      const std::size_t at = round % 2 == 0 ? i : settings.size() - 1 - i;
      double seconds = 0;
      engine::Engine& engine = engine_for(settings[at]);
      let_threads_sleep(&engine, running);
      for (const auto& pair : pairs) {
        seconds += seconds_of_pair(engine, settings[at], pair);
        progress.advance(1);
      }
      if (round < options_.timing.warm_up) continue;
      timings[at].ttft.push_back(seconds / (2 * static_cast<double>(pairs.size())));
    }
  }
  return timings;
}

std::vector<evaluate::TokenStream> ModelLab::load_streams() const {
  const engine::Engine& engine = *engines_.front().engine;
  std::vector<evaluate::TokenStream> streams;
  if (!options_.texts.empty() && !engine.tokenizer) {
    throw Error({.what = "the model has no tokenizer to read the text with",
                 .where = options_.texts.front().string(),
                 .expected = {},
                 .found = {},
                 .hint = "leave --text out to judge cache types on random tokens"});
  }
  if (options_.texts.empty()) {
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

// A text that is short has some windows all the same: one alone bounds nothing.
evaluate::TextOptions ModelLab::windows_of(const evaluate::TokenStream& stream) const {
  constexpr int64_t kLeastWindows = 4;
  const auto predictions = static_cast<int64_t>(stream.tokens.size()) - 1;
  const int64_t longest =
      std::min(options_.window, engines_.front().engine->runtime->options().max_model_len);
  return {.window = std::clamp<int64_t>(predictions / kLeastWindows, 1, longest),
          .max_windows = options_.max_windows};
}

// Speculation changes no token, nor does who does the rounds; threads and the prefix cache change
// no bit; types of caches do.
TuneQuality ModelLab::quality(const TuneSetting& setting) {
  TuneQuality quality;
  if (setting.kv == control_.kv && setting.ssm == control_.ssm) return quality;
  keep_only({&setting, 1});
  for (const evaluate::TokenStream& stream : streams_) {
    const evaluate::TextScore score = evaluate::score_text(
        *engine_for(setting).runtime, control_engine().runtime.get(), stream, windows_of(stream));
    const evaluate::Estimate ratio = evaluate::perplexity_ratio(score, kConfidence);
    quality.texts.push_back({.text = stream.kind,
                             .value = score.perplexity(),
                             .control = score.baseline_perplexity(),
                             .ratio = ratio,
                             .predictions = score.total().predictions,
                             .mean_kl = score.mean_kl(),
                             .top1_agreement = score.top1_agreement()});
    const double limit = options_.perplexity_ratio_max;
    const bool passed =
        evaluate::judge(ratio, {.limit = limit, .is_minimum = false}) == evaluate::Verdict::kPass;
    if (passed || !quality.flaw.empty()) continue;
    quality.flaw = fmt::format(
        "perplexity on {} is {:.4f} [{:.4f}, {:.4f}] times the control's, which is not below "
        "{:.2f} for certain",
        stream.kind, ratio.value, ratio.low, ratio.high, limit);
  }
  return quality;
}

}  // namespace levin::bench
