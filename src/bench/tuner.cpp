#include "bench/tuner.h"

#include <fmt/format.h>

#include <algorithm>

#include "bench/spread.h"
#include "core/plural.h"

namespace levin::bench {
namespace {

// Faster by less than this is not worth a setting, however certain.
constexpr double kLeastGain = 0.005;

std::string shown(const evaluate::Estimate& speed) {
  return fmt::format("{:.3f}x [{:.3f}, {:.3f}]", speed.value, speed.low, speed.high);
}

double median_ms(const std::vector<double>& seconds) {
  return seconds.empty() ? 0 : evaluate::median(seconds) * 1e3;
}

const std::vector<double>& judged_by(TuneWork work, const TuneTiming& timing) {
  return work == TuneWork::kGeneration ? timing.tpot : timing.ttft;
}

class Tuner {
 public:
  Tuner(TuneLab& lab, const TuneSetting& control, const evaluate::Bootstrap& options,
        const std::function<void(const TuneTrial&)>& on_trial)
      : lab_(lab), options_(options), on_trial_(on_trial) {
    result_.control = result_.best = control;
  }

  void search(const TuneDimension& dimension);
  TuneResult finish();

 private:
  std::vector<TuneSetting> standards() const;
  std::vector<TuneTrial> possible(const TuneDimension& dimension);
  std::vector<TuneTiming> time(TuneWork work, const std::vector<TuneSetting>& settings);
  void time(TuneWork work, std::vector<TuneTrial>& trials);
  void judge(std::vector<TuneTrial>& trials);
  void report(TuneTrial trial);
  TuneConfirmation confirm(TuneWork work, const TuneSetting& chosen, const TuneSetting& control);

  TuneLab& lab_;
  const evaluate::Bootstrap& options_;
  const std::function<void(const TuneTrial&)>& on_trial_;
  const NeighbourWatch watch_;
  TuneResult result_;
};

void Tuner::report(TuneTrial trial) {
  if (on_trial_) on_trial_(trial);
  result_.trials.push_back(std::move(trial));
}

// What every value is timed with: the control, and behind it the best when that is another.
std::vector<TuneSetting> Tuner::standards() const {
  if (result_.best == result_.control) return {result_.control};
  return {result_.control, result_.best};
}

std::vector<TuneTrial> Tuner::possible(const TuneDimension& dimension) {
  std::vector<TuneTrial> trials;
  const std::vector<TuneSetting> beside = standards();
  for (const auto& set : dimension.values) {
    TuneTrial trial;
    trial.dimension = dimension.name;
    trial.work = dimension.work;
    trial.setting = result_.best;
    set(trial.setting);
    if (trial.setting == result_.best) continue;
    if (const auto obstacle = lab_.obstacle(trial.setting, beside)) {
      trial.why = *obstacle;
      report(std::move(trial));
    } else {
      trials.push_back(std::move(trial));
    }
  }
  return trials;
}

// The first of the settings shows how quiet the machine was.
std::vector<TuneTiming> Tuner::time(TuneWork work, const std::vector<TuneSetting>& settings) {
  std::vector<TuneTiming> timings = lab_.time(work, settings);
  const Spread control = spread_of(judged_by(work, timings.front()));
  result_.disturbance.noise = std::max(result_.disturbance.noise, control.max / control.min);
  return timings;
}

// As many at a time as there is room for, each time beside the standards.
void Tuner::time(TuneWork work, std::vector<TuneTrial>& trials) {
  const std::vector<TuneSetting> beside = standards();
  const std::size_t best = beside.size() - 1;
  for (std::size_t begin = 0, end = 0; begin < trials.size(); begin = end) {
    std::vector<TuneSetting> settings = beside;
    do {
      settings.push_back(trials[end++].setting);
    } while (end < trials.size() && !lab_.obstacle(trials[end].setting, settings));
    const std::vector<TuneTiming> timings = time(work, settings);
    for (std::size_t i = begin; i < end; ++i) {
      const TuneTiming& timing = timings[best + 1 + i - begin];
      trials[i].over_control = speed_over(work, timing, timings.front(), options_);
      trials[i].over_best = speed_over(work, timing, timings[best], options_);
      trials[i].tpot_ms = median_ms(timing.tpot);
      trials[i].ttft_ms = median_ms(timing.ttft);
      trials[i].acceptance_length = timing.acceptance_length;
    }
  }
}

// The fastest that the gate passes is kept; the gate is asked of those only that could be.
void Tuner::judge(std::vector<TuneTrial>& trials) {
  std::stable_sort(trials.begin(), trials.end(), [](const TuneTrial& a, const TuneTrial& b) {
    return a.over_best->value > b.over_best->value;
  });
  const TuneTrial* kept = nullptr;
  for (TuneTrial& trial : trials) {
    const evaluate::Estimate& speed = *trial.over_best;
    if (speed.high < 1) {
      trial.verdict = TuneVerdict::kSlower;
      trial.why = fmt::format("slower: {} as fast", shown(speed));
      continue;
    }
    if (speed.low <= 1 || speed.value < 1 + kLeastGain) {
      trial.verdict = TuneVerdict::kNoise;
      trial.why = fmt::format("no difference beyond noise: {} as fast", shown(speed));
      continue;
    }
    if (kept != nullptr) {
      trial.verdict = TuneVerdict::kBeaten;
      trial.why = fmt::format("{} as fast, but another value is faster", shown(speed));
      continue;
    }
    trial.quality = lab_.quality(trial.setting);
    const std::string& flaw = trial.quality->flaw;
    trial.verdict = flaw.empty() ? TuneVerdict::kKept : TuneVerdict::kFlawed;
    trial.why = fmt::format("{} as fast{}{}", shown(speed), flaw.empty() ? "" : ", but ", flaw);
    if (flaw.empty()) kept = &trial;
  }
  if (kept != nullptr) result_.best = kept->setting;
}

void Tuner::search(const TuneDimension& dimension) {
  if (dimension.values.empty()) {
    result_.untried.push_back(dimension);
    return;
  }
  const std::size_t before = result_.trials.size();
  std::vector<TuneTrial> trials = possible(dimension);
  if (trials.empty()) {
    if (result_.trials.size() > before) return;  // they were impossible, which was reported
    result_.untried.push_back({.name = dimension.name,
                               .values = {},
                               .work = dimension.work,
                               .why_none = "there is no other value than the control's"});
    return;
  }
  time(dimension.work, trials);
  judge(trials);
  for (TuneTrial& trial : trials) report(std::move(trial));
}

TuneConfirmation Tuner::confirm(TuneWork work, const TuneSetting& chosen,
                                const TuneSetting& control) {
  TuneConfirmation confirmation;
  if (chosen == control) return confirmation;
  std::vector<TuneTiming> timings = time(work, {control, chosen});
  confirmation.speed = speed_over(work, timings[1], timings[0], options_);
  confirmation.refuted = confirmation.speed.low <= 1;
  confirmation.control = std::move(timings[0]);
  confirmation.chosen = std::move(timings[1]);
  return confirmation;
}

// The prefix cache does nothing for a single sequence, so it is confirmed by work of its own.
TuneResult Tuner::finish() {
  TuneSetting& best = result_.best;
  const TuneSetting& control = result_.control;
  TuneSetting without = best;
  without.prefix_cache = control.prefix_cache;
  result_.generation = confirm(TuneWork::kGeneration, without, control);
  if (result_.generation.refuted) {
    without = control;
    const std::optional<bool> prefix_cache = best.prefix_cache;
    best = control;
    best.prefix_cache = prefix_cache;
  }
  result_.shared_prefix = confirm(TuneWork::kSharedPrefix, best, without);
  if (result_.shared_prefix.refuted) best = without;
  result_.disturbance.neighbours = watch_.so_far();
  return std::move(result_);
}

}  // namespace

evaluate::Estimate speed_over(TuneWork work, const TuneTiming& candidate, const TuneTiming& control,
                              const evaluate::Bootstrap& options) {
  const std::vector<double>& times = judged_by(work, candidate);
  const std::vector<double>& control_times = judged_by(work, control);
  std::vector<evaluate::Pair> pairs;
  for (std::size_t i = 0; i < times.size(); ++i) {
    // Time of the control over that of the candidate.
    pairs.push_back({.baseline = times[i], .candidate = control_times[i]});
  }
  return evaluate::median_ratio(pairs, options);
}

TuneResult tune(TuneLab& lab, const TuneSetting& control, std::span<const TuneDimension> dimensions,
                const evaluate::Bootstrap& options,
                const std::function<void(const TuneTrial&)>& on_trial) {
  Tuner tuner(lab, control, options, on_trial);
  for (const TuneDimension& dimension : dimensions) tuner.search(dimension);
  return tuner.finish();
}

TuneSetting for_profile(const TuneResult& result) {
  TuneSetting setting = result.best;
  const bool decided =
      setting.prefix_cache == true ||
      std::any_of(result.trials.begin(), result.trials.end(), [](const TuneTrial& trial) {
        return trial.work == TuneWork::kSharedPrefix && trial.verdict == TuneVerdict::kSlower;
      });
  if (!decided) setting.prefix_cache.reset();
  return setting;
}

std::string_view name_of(runtime::KvCacheDType dtype) {
  switch (dtype) {
    case runtime::KvCacheDType::kBf16:
      return "bfloat16";
    case runtime::KvCacheDType::kFp8:
      return "fp8";
    case runtime::KvCacheDType::kF32:
      break;
  }
  return "float32";
}

std::string_view name_of(runtime::SsmCacheDType dtype) {
  return dtype == runtime::SsmCacheDType::kF32 ? "float32" : "float16";
}

std::string_view name_of(TuneVerdict verdict) {
  switch (verdict) {
    case TuneVerdict::kKept:
      return "kept";
    case TuneVerdict::kSlower:
      return "slower";
    case TuneVerdict::kNoise:
      return "noise";
    case TuneVerdict::kBeaten:
      return "beaten";
    case TuneVerdict::kFlawed:
      return "failed the gate";
    case TuneVerdict::kImpossible:
      break;
  }
  return "not tried";
}

std::string to_text(const TuneSetting& setting) {
  std::string text = counted(int64_t{setting.threads}, "thread");
  if (setting.pin_threads) text += ", pinned";
  text += fmt::format(", KV {}, SSM {}, {}", name_of(setting.kv), name_of(setting.ssm),
                      counted(int64_t{setting.drafts}, "draft"));
  if (setting.draft_vocab > 0) text += fmt::format(" of the first {} tokens", setting.draft_vocab);
  if (setting.device_rounds) {
    text += fmt::format(", rounds by the {}", *setting.device_rounds ? "device" : "host");
  }
  if (setting.prefix_cache) {
    text += fmt::format(", prefix cache {}", *setting.prefix_cache ? "on" : "off");
  }
  return text;
}

}  // namespace levin::bench
