// `levin ladder`: every rung quantized, reloaded from the files written, judged beside the baseline
// and timed beside its control.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "bench/bandwidth.h"
#include "bench/prediction.h"
#include "bench/rungs.h"
#include "bench/timing.h"
#include "engine/engine.h"
#include "evaluate/evaluation.h"
#include "evaluate/gate.h"

namespace levin::bench {

struct LadderOptions {
  std::filesystem::path model;
  std::filesystem::path out;
  std::string rungs;  // see choose_rungs
  evaluate::Settings evaluation;
  std::filesystem::path calibration;  // text that activation scales are measured on
  int64_t calibration_tokens = 8192;  // of that text
  std::string version;                // of levin, written into the checkpoints
  std::vector<std::string> command;   // that was given, for telling which one to give next
  evaluate::Gate gate;
  TimingOptions timing;
  int64_t prompt_tokens = 256;
  int max_num_seqs = 16;  // task items answered at once
  engine::LoadOptions load;
};

// A rung, its control (same checkpoint, speculation off) and rung 0, timed in the same rounds. For
// rung 0 all three are one; without speculation a rung is its own control.
struct RungTiming {
  ContenderTiming own, control, baseline;
  bool same_tokens_as_control = true;
  // Read bandwidth over a buffer as large as what a token reads, measured beside the timing. Beyond
  // the caches it is the memory's; a small model is fed by the cache.
  double read_gb_per_s = 0;
  Spread speedup_over_baseline() const { return speedup(own, baseline); }
  Spread speedup_over_control() const { return speedup(own, control); }
};

struct RungResult {
  Rung rung;
  uint64_t checkpoint_bytes = 0;  // of the tensors
  Prediction prediction;          // of `own`
  RungTiming timing;
  evaluate::Evaluation evaluation;
  evaluate::GateResult
      gate;  // without lines for rung 0, which is what the others are judged beside
  bool climbed() const { return rung.skipped.empty(); }
};

struct LadderReport {
  std::string model;
  std::string runtime;  // Runtime::description()
  Bandwidth memory;
  std::string workload_hash;
  TimingOptions timing;
  evaluate::Gate gate;
  std::vector<std::string> command;  // that made this
  std::vector<RungResult> rungs;     // rung 0 first

  const RungResult& baseline() const { return rungs.front(); }
  bool is_baseline(const RungResult& result) const { return &result == &rungs.front(); }
};

// The fastest read that a climb measured, and what was read.
struct FastestRead {
  double gb_per_s = 0;
  std::string of;  // "memory", "a buffer as large as a token of rung 3"
};

// One for all rungs, so that fewer bytes never have the higher floor; the fastest, because a rung
// that a cache feeds must not end up below its floor.
FastestRead fastest_read(const LadderReport& report);

// The least time per token: reading its bytes that fast and nothing else.
double floor_ms(const RungResult& result, const FastestRead& read);

// Climbs. Checkpoints and results that `out` already holds for the same model, recipe, data and
// machine are used again, so a climb that was killed goes on where it was. `on_rung` sees the
// report so far after each rung. Writes below `out`: checkpoints/ and results/.
LadderReport climb(const LadderOptions& options,
                   const std::function<void(const LadderReport&)>& on_rung = {});

// The largest max / min of TPOT that any contender showed over its rounds, or the baseline over all
// rungs.
double noise(const LadderReport& report);

// Median of the tasks' recoveries; NaN without tasks.
double median_recovery(const RungResult& rung, const RungResult& baseline);

// The fastest rung that passes, or that none does, and how many are undecided.
std::string headline(const LadderReport& report);
// The command that decides them, and what it takes if they are more than that; empty when nothing
// is undecided.
std::string how_to_decide(const LadderReport& report);

std::string to_text(const LadderReport& report);
// What every rung costs and keeps, one row each; without speeds, so that it reads the same on every
// machine with the same instructions.
std::string to_markdown(const LadderReport& report);
nlohmann::ordered_json to_json(const LadderReport& report);
// One self-contained page: no script, no network.
std::string to_html(const LadderReport& report);

}  // namespace levin::bench
