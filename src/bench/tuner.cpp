#include "bench/tuner.h"

#include <fmt/format.h>

#include <algorithm>

namespace levin::bench {
namespace {

// Faster by less than this is not worth a setting, however certain.
constexpr double kLeastGain = 0.005;

std::string shown(const evaluate::Estimate& speed) {
  return fmt::format("{:.3f}x [{:.3f}, {:.3f}]", speed.value, speed.low, speed.high);
}

double median_ms(const std::vector<double>& seconds) {
  return evaluate::median(seconds) * 1e3;
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
  std::vector<TuneTrial> possible(const TuneDimension& dimension);
  void time(std::vector<TuneTrial>& trials);
  void judge(std::vector<TuneTrial>& trials);
  void report(TuneTrial trial);

  TuneLab& lab_;
  const evaluate::Bootstrap& options_;
  const std::function<void(const TuneTrial&)>& on_trial_;
  TuneResult result_;
};

void Tuner::report(TuneTrial trial) {
  if (on_trial_) on_trial_(trial);
  result_.trials.push_back(std::move(trial));
}

std::vector<TuneTrial> Tuner::possible(const TuneDimension& dimension) {
  std::vector<TuneTrial> trials;
  for (const auto& set : dimension.values) {
    TuneTrial trial;
    trial.dimension = dimension.name;
    trial.setting = result_.best;
    set(trial.setting);
    if (trial.setting == result_.best) continue;
    if (const auto obstacle = lab_.obstacle(trial.setting)) {
      trial.why = *obstacle;
      report(std::move(trial));
    } else {
      trials.push_back(std::move(trial));
    }
  }
  return trials;
}

void Tuner::time(std::vector<TuneTrial>& trials) {
  std::vector<TuneSetting> settings = {result_.control};
  if (result_.best != result_.control) settings.push_back(result_.best);
  const std::size_t best = settings.size() - 1;
  for (const TuneTrial& trial : trials) settings.push_back(trial.setting);
  const std::vector<TuneTiming> timings = lab_.time(settings);
  for (std::size_t i = 0; i < trials.size(); ++i) {
    const TuneTiming& timing = timings[best + 1 + i];
    trials[i].over_control = speed_over(timing, timings.front(), options_);
    trials[i].over_best = speed_over(timing, timings[best], options_);
    trials[i].tpot_ms = median_ms(timing.tpot);
    trials[i].ttft_ms = median_ms(timing.ttft);
    trials[i].acceptance_length = timing.acceptance_length;
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
    } else if (speed.low <= 1 || speed.value < 1 + kLeastGain) {
      trial.verdict = TuneVerdict::kNoise;
      trial.why = fmt::format("no difference beyond noise: {} as fast", shown(speed));
    } else if (kept != nullptr) {
      trial.verdict = TuneVerdict::kBeaten;
      trial.why = fmt::format("{} as fast, but another value is faster", shown(speed));
    } else if (const auto flaw = lab_.flaw(trial.setting)) {
      trial.verdict = TuneVerdict::kFlawed;
      trial.why = fmt::format("{} as fast, but {}", shown(speed), *flaw);
    } else {
      trial.verdict = TuneVerdict::kKept;
      trial.why = fmt::format("{} as fast", shown(speed));
      kept = &trial;
    }
  }
  if (kept != nullptr) result_.best = kept->setting;
}

void Tuner::search(const TuneDimension& dimension) {
  std::vector<TuneTrial> trials = possible(dimension);
  if (trials.empty()) return;
  time(trials);
  judge(trials);
  for (TuneTrial& trial : trials) report(std::move(trial));
}

TuneResult Tuner::finish() {
  if (result_.best == result_.control) {
    result_.confirmed = {1, 1, 1};
    return std::move(result_);
  }
  const std::vector<TuneTiming> timings =
      lab_.time(std::vector<TuneSetting>{result_.control, result_.best});
  result_.control_timing = timings[0];
  result_.best_timing = timings[1];
  result_.confirmed = speed_over(timings[1], timings[0], options_);
  result_.refuted = result_.confirmed.low <= 1;
  if (result_.refuted) result_.best = result_.control;
  return std::move(result_);
}

}  // namespace

evaluate::Estimate speed_over(const TuneTiming& candidate, const TuneTiming& control,
                              const evaluate::Bootstrap& options) {
  std::vector<evaluate::Pair> pairs;
  for (std::size_t i = 0; i < candidate.tpot.size(); ++i) {
    // Time of the control over that of the candidate.
    pairs.push_back({.baseline = candidate.tpot[i], .candidate = control.tpot[i]});
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
  std::string text = fmt::format(
      "{} thread{}, KV {}, SSM {}, {} draft{}", setting.threads, setting.threads == 1 ? "" : "s",
      name_of(setting.kv), name_of(setting.ssm), setting.drafts, setting.drafts == 1 ? "" : "s");
  if (setting.draft_vocab > 0) text += fmt::format(" of the first {} tokens", setting.draft_vocab);
  return text;
}

}  // namespace levin::bench
