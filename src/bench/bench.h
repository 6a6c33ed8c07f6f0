// `levin bench`: decode and prefill of one model beside the memory that feeds them, with the same
// model without speculation as the control.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "bench/bandwidth.h"
#include "bench/neighbours.h"
#include "bench/prediction.h"
#include "bench/timing.h"

namespace levin::bench {

struct BenchOptions {
  TimingOptions timing;
  int64_t prompt_tokens = 256;
  std::filesystem::path prompt_file;      // instead of the fixed prompts, unless empty
  engine::SpeculativeConfig speculation;  // its device_rounds are the control's, too
};

struct BenchReport {
  std::string model;
  std::string runtime;  // Runtime::description()
  TimingOptions timing;
  Workload workload;
  int k = 0;
  bool device_rounds = false;           // whole rounds by the device (runtime/round.h)
  std::vector<double> synthetic_rates;  // of forced acceptance, unless empty
  Bandwidth memory;                     // of a buffer beyond every cache
  Bandwidth at_model_size;              // of a buffer as large as what one token reads
  Prediction control_prediction;
  ContenderTiming control;  // speculation off
  Disturbance disturbance;  // noise: of the control
  std::optional<Prediction> speculating_prediction;
  std::optional<ContenderTiming> speculating;

  // Whether speculation gave the control's tokens, all of them; forced acceptance need not.
  bool lossless() const {
    return !speculating || !synthetic_rates.empty() || speculating->outputs == control.outputs;
  }
  // Bytes per token / TPOT / bandwidth. Above 1 when a small model is fed by the cache; then the
  // share of the bandwidth at its size says how good the code is.
  double share_of(const Bandwidth& bandwidth) const;
};

// Shows progress on stderr. Throws Error when speculation is asked of a model without MTP head and
// when the work does not fit the engine's sequences.
BenchReport run_bench(engine::Engine& engine, const BenchOptions& options);

// One generation of the first prompt as asked for, without timing: for a trace.
void run_once(engine::Engine& engine, const BenchOptions& options);

std::string to_text(const BenchReport& report);
nlohmann::ordered_json to_json(const BenchReport& report);

std::string to_text(const Bandwidth& bandwidth);
nlohmann::ordered_json to_json(const Bandwidth& bandwidth);
nlohmann::ordered_json to_json(const Spread& spread);

}  // namespace levin::bench
