// `levin bench --roofline`: where the time of a step goes, phase by phase, beside what each phase
// has to read and to compute at least.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "bench/arithmetic.h"
#include "bench/bandwidth.h"
#include "bench/neighbours.h"
#include "engine/engine.h"
#include "model/cost.h"
#include "runtime/phases.h"

namespace levin::bench {

// What no phase can be faster than.
struct Ceiling {
  double gb_per_s = 0;
  double gflop_per_s = 0;
  double seconds(const model::Operation& cost) const;  // whichever takes longer
};

// All phases of one kind in a step, over all layers.
struct RooflineLine {
  runtime::Phase phase = runtime::Phase::kEmbed;
  bool draft = false;        // of the draft head
  double barriers = 0;       // of a step
  model::Operation cost;     // by the cost model; of routed experts as many as were counted
  double counted_bytes = 0;  // by the runtime (PhaseRecord::bytes)
  double experts = 0;        // distinct ones that a layer read, counted; 0 where there are none
  double floor_seconds = 0;
  Spread seconds;      // of a step: from the barrier before a phase to its own
  double waiting = 0;  // share of the threads' time spent at the barrier
};

// Steps of one kind: decoding a token, verifying 1 + k, drafting k, a chunk of a prompt.
struct RooflineTable {
  std::string name;
  int rows = 0;         // tokens of a step, proposals of a draft
  double context = 0;   // tokens before it
  int64_t steps = 0;    // measured
  Bandwidth bandwidth;  // of a buffer as large as what a step reads
  std::vector<RooflineLine> lines;
  model::Operation cost;     // of all lines
  double floor_seconds = 0;  // of all lines
  Spread seconds;            // of a step, as its caller sees it
  double phase_seconds = 0;  // of all phases of a step, median
  double rest_seconds = 0;   // of a step, in no phase: waking the threads, bookkeeping; median
  double waiting = 0;        // share of the threads' time in phases spent at barriers
};

struct RooflineOptions {
  int64_t prompt_tokens = 256;
  int64_t output_tokens = 128;
  int rounds = 5;
  int k = 0;  // drafts; 0: nothing about speculation
  // Generations of one kind take about so long, whatever the rounds, of which there is one at
  // least. 0: all rounds.
  double seconds = 0;
};

// A table that could not be made, and why.
struct RooflineGap {
  std::string name;
  std::string why;
};

struct Roofline {
  std::string model;
  std::string runtime;
  Bandwidth memory;
  std::vector<ArithmeticRate> rates;
  std::string rate;  // which of them is the ceiling
  std::vector<RooflineTable> tables;
  std::vector<RooflineGap> gaps;
  Neighbours neighbours;  // while all of it was measured
};

// Rounds that take about options.seconds when each takes so long.
int affordable_rounds(const RooflineOptions& options, double seconds_of_one);

// The phase that executes an operation of the cost model.
runtime::Phase phase_of(const model::Operation& operation, const model::Config& config);

// Steps of one kind as recorded, and what the cost model says of one.
struct MeasuredSteps {
  std::string name;
  std::vector<runtime::StepRecord> steps;  // at least one
  double context = 0;
  std::vector<model::Operation> operations;
  double routed_tokens = 1;  // of a pass: what `operations` expected the number of experts from
};
RooflineTable make_table(const runtime::PhaseRecorder& recorder, const MeasuredSteps& measured,
                         const model::Config& config);
// Fills in what follows from the ceiling.
void apply(const Ceiling& ceiling, RooflineTable& table);

// Generates without and, for k > 0, with speculation, and measures. Throws Error when the engine's
// runtime records no phases and when the work does not fit its sequences.
Roofline measure_roofline(engine::Engine& engine, const RooflineOptions& options);

std::string to_text(const Roofline& roofline);
nlohmann::ordered_json to_json(const Roofline& roofline);
std::string to_text(const std::vector<ArithmeticRate>& rates);
nlohmann::ordered_json to_json(const std::vector<ArithmeticRate>& rates);

}  // namespace levin::bench
