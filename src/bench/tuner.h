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

#include "evaluate/statistics.h"
#include "runtime/runtime.h"

namespace levin::bench {

struct TuneSetting {
  int threads = 0;
  runtime::KvCacheDType kv = runtime::KvCacheDType::kBf16;
  runtime::SsmCacheDType ssm = runtime::SsmCacheDType::kF32;
  int drafts = 0;           // num_speculative_tokens
  int64_t draft_vocab = 0;  // draft_vocab_size; 0: all

  bool operator==(const TuneSetting&) const = default;
};
// "2 threads, KV bfloat16, SSM float32, 3 drafts"
std::string to_text(const TuneSetting& setting);
std::string_view name_of(runtime::KvCacheDType dtype);   // as --kv-cache-dtype spells it
std::string_view name_of(runtime::SsmCacheDType dtype);  // as --mamba-ssm-cache-dtype does

// How a setting did over some rounds; round i of one was interleaved with round i of the others.
struct TuneTiming {
  std::vector<double> tpot;  // seconds per token after the first
  std::vector<double> ttft;  // seconds
  double acceptance_length = 1;
};

// What settings are tried with; a test has one of its own.
class TuneLab {
 public:
  virtual ~TuneLab() = default;
  // Why the setting cannot be tried at all; nothing when it can.
  virtual std::optional<std::string> obstacle(const TuneSetting& setting) = 0;
  // All of them interleaved, as many rounds each.
  virtual std::vector<TuneTiming> time(std::span<const TuneSetting> settings) = 0;
  // Why the setting's output is too far from the control's; nothing when the gate passes it.
  virtual std::optional<std::string> flaw(const TuneSetting& setting) = 0;
};

// One setting to find the best value of; the others stay as they are.
struct TuneDimension {
  std::string name;  // "threads"
  std::vector<std::function<void(TuneSetting&)>> values;
};

enum class TuneVerdict { kKept, kSlower, kNoise, kBeaten, kFlawed, kImpossible };

struct TuneTrial {
  std::string dimension;
  TuneSetting setting;
  TuneVerdict verdict = TuneVerdict::kImpossible;
  std::string why;  // one sentence
  // Absent when it could not be tried.
  std::optional<evaluate::Estimate> over_best;     // speed over the best before it
  std::optional<evaluate::Estimate> over_control;  // speed over everything off
  double tpot_ms = 0, ttft_ms = 0;                 // medians
  double acceptance_length = 1;
};

struct TuneResult {
  TuneSetting control, best;  // the same when nothing was kept
  std::vector<TuneTrial> trials;
  // The best beside the control in rounds of their own, after everything was chosen. When that
  // does not confirm it, `best` is the control.
  evaluate::Estimate confirmed;
  TuneTiming best_timing, control_timing;
  bool refuted = false;
};

// Speed of `candidate` over `control`: median over rounds of the ratios, with its interval.
evaluate::Estimate speed_over(const TuneTiming& candidate, const TuneTiming& control,
                              const evaluate::Bootstrap& options);

// Goes through the dimensions in turn. `on_trial` sees each trial when it is judged.
TuneResult tune(TuneLab& lab, const TuneSetting& control, std::span<const TuneDimension> dimensions,
                const evaluate::Bootstrap& options,
                const std::function<void(const TuneTrial&)>& on_trial = {});

std::string_view name_of(TuneVerdict verdict);
std::string to_text(const TuneResult& result);
nlohmann::ordered_json to_json(const TuneResult& result);
nlohmann::ordered_json to_json(const TuneSetting& setting);

}  // namespace levin::bench
