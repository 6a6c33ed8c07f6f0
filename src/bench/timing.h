// Times generation of several contenders side by side: every round runs each of them on each
// prompt, in alternating order, so that a slow moment of the machine hits all of them.
//
// Definitions, for one sequence at a time:
//   TTFT                 start of prefill to the first token
//   TPOT                 (t_last - t_first) / (N - 1), over the N tokens of an output
//   decode tokens/s      (N - 1) / (t_last - t_first)
//   prefill tokens/s     prompt tokens / TTFT
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "bench/spread.h"
#include "bench/workload.h"
#include "engine/engine.h"
#include "engine/generate.h"

namespace levin::bench {

struct TimingOptions {
  int64_t output_tokens = 128;  // exactly; end-of-turn tokens do not stop a timed run
  int rounds = 5;
  int warm_up = 1;  // rounds that are not counted
};

// A way to generate. With speculation its control is the contender of the same engine without.
struct Contender {
  std::string name;
  engine::Engine* engine = nullptr;
  engine::SpeculativeConfig speculation;
};

struct ContenderTiming {
  std::string name;
  // One entry per round, over all prompts: seconds.
  std::vector<double> ttft;                   // mean over prompts
  std::vector<double> tpot;                   // all decode seconds / all decoded tokens
  double prompt_tokens = 0;                   // mean over prompts
  engine::SpeculationStats speculation;       // of one round; all rounds are alike
  std::vector<std::vector<int32_t>> outputs;  // per prompt

  Spread ttft_ms() const;
  Spread tpot_ms() const;
  Spread decode_tokens_per_second() const;
  Spread prefill_tokens_per_second() const;
};

// `on_run` is called after each timed or warm-up run of a contender on a prompt.
std::vector<ContenderTiming> time_contenders(std::span<const Contender> contenders,
                                             const Workload& workload, const TimingOptions& options,
                                             const std::function<void()>& on_run = {});

// Threads spin for a while when their work is done. Where another engine's are woken meanwhile, two
// of them are put on one core and slow each other down for long: the system only moves threads that
// are busy all the time.
// So whoever times several in turn calls this before each; `running` is the one before.
void let_threads_sleep(const engine::Engine* next, const engine::Engine*& running);

// How much faster `timing` decodes than `control`, round by round.
Spread speedup(const ContenderTiming& timing, const ContenderTiming& control);

// Share of drafting rounds in which draft token 1, 2, ... was accepted; empty without drafts.
std::vector<double> accepted_per_position(const engine::SpeculationStats& stats);

}  // namespace levin::bench
