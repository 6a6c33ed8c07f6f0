// `levin tune`: which settings make this model faster on this device, found by timing each beside
// the control (everything off) and beside the best found so far. A setting is kept when it is
// faster beyond noise and the quality gate passes it; acceptance rates and other promises do not
// count.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bench/neighbours.h"
#include "evaluate/statistics.h"
#include "runtime/runtime.h"

namespace levin::bench {

struct TuneSetting {
  int threads = 0;
  bool pin_threads = false;
  runtime::KvCacheDType kv = runtime::KvCacheDType::kBf16;
  runtime::SsmCacheDType ssm = runtime::SsmCacheDType::kF32;
  int drafts = 0;           // num_speculative_tokens
  int64_t draft_vocab = 0;  // draft_vocab_size; 0: all
  // Absent where the runtime leaves no choice.
  std::optional<bool> device_rounds = {};  // whole rounds by the device, or by calls of the host
  std::optional<bool> prefix_cache = {};   // of a server

  bool operator==(const TuneSetting&) const = default;
};
// "2 threads, KV bfloat16, SSM float32, 3 drafts"
std::string to_text(const TuneSetting& setting);
std::string_view name_of(runtime::KvCacheDType dtype);   // as --kv-cache-dtype spells it
std::string_view name_of(runtime::SsmCacheDType dtype);  // as --mamba-ssm-cache-dtype does

// What is timed: one sequence at a time, judged by the time per token; or two requests after each
// other, the second of which begins with all of the first, judged by the time to first tokens.
enum class TuneWork : uint8_t { kGeneration, kSharedPrefix };

// How a setting did over some rounds; round i of one was interleaved with round i of the others.
struct TuneTiming {
  std::vector<double> tpot;  // seconds per token after the first; none of a shared prefix
  std::vector<double> ttft;  // seconds
  double acceptance_length = 1;
};

// What the gate looked at, on one text.
struct TunePerplexity {
  std::string text;
  double value = 0;
  double control = 0;
  evaluate::Estimate ratio;  // of the two
  int64_t predictions = 0;
  double mean_kl = 0;
  double top1_agreement = 0;
};
struct TuneQuality {
  std::vector<TunePerplexity> texts;  // none: the control's output, to the bit
  std::string flaw;                   // why the gate does not pass it; empty when it does
};

// What settings are tried with; a test has one of its own.
class TuneLab {
 public:
  virtual ~TuneLab() = default;
  // Why the setting cannot be timed together with others; nothing when it can.
  virtual std::optional<std::string> obstacle(const TuneSetting& setting,
                                              std::span<const TuneSetting> beside) = 0;
  // All of them interleaved, as many rounds each.
  virtual std::vector<TuneTiming> time(TuneWork work, std::span<const TuneSetting> settings) = 0;
  // The setting's output beside the control's.
  virtual TuneQuality quality(const TuneSetting& setting) = 0;
};

// One setting to find the best value of; the others stay as they are.
struct TuneDimension {
  std::string name;  // "threads"
  std::vector<std::function<void(TuneSetting&)>> values;
  TuneWork work = TuneWork::kGeneration;
  std::string why_none = {};  // why this device has no values to try
};

enum class TuneVerdict { kKept, kSlower, kNoise, kBeaten, kFlawed, kImpossible };

struct TuneTrial {
  std::string dimension;
  TuneSetting setting;
  TuneVerdict verdict = TuneVerdict::kImpossible;
  std::string why;  // one sentence
  TuneWork work = TuneWork::kGeneration;
  // Absent when it could not be tried.
  std::optional<evaluate::Estimate> over_best;     // speed over the best before it
  std::optional<evaluate::Estimate> over_control;  // speed over everything off
  double tpot_ms = 0, ttft_ms = 0;                 // medians
  double acceptance_length = 1;
  std::optional<TuneQuality> quality;  // of those that the gate was asked of
};

// What was chosen beside what it was chosen over, in rounds of their own, after everything was
// chosen. When that does not confirm it, it is dropped.
struct TuneConfirmation {
  evaluate::Estimate speed{1, 1, 1};
  TuneTiming chosen, control;  // empty: there was nothing to confirm
  bool refuted = false;
};

struct TuneResult {
  TuneSetting control, best;  // the same when nothing was kept
  std::vector<TuneTrial> trials;
  std::vector<TuneDimension> untried;  // those that this device has no values for
  TuneConfirmation generation;         // of all settings but the prefix cache, over the control
  TuneConfirmation shared_prefix;      // of the prefix cache, over the same without
  Disturbance disturbance;
};

// Speed of `candidate` over `control`: median over rounds of the ratios, with its interval.
evaluate::Estimate speed_over(TuneWork work, const TuneTiming& candidate, const TuneTiming& control,
                              const evaluate::Bootstrap& options);

// Goes through the dimensions in turn. `on_trial` sees each trial when it is judged.
TuneResult tune(TuneLab& lab, const TuneSetting& control, std::span<const TuneDimension> dimensions,
                const evaluate::Bootstrap& options,
                const std::function<void(const TuneTrial&)>& on_trial = {});

// What a profile carries: the best, where it is known. A prefix cache that made no difference with
// this work, neither faster nor slower, may make one with other, so a server's default stays.
TuneSetting for_profile(const TuneResult& result);

std::string_view name_of(TuneVerdict verdict);
std::string to_text(const TuneResult& result);
nlohmann::ordered_json to_json(const TuneResult& result);
nlohmann::ordered_json to_json(const TuneSetting& setting);

}  // namespace levin::bench
