#include "bench/timing.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace levin::bench {
namespace {

// What one contender did in one round.
struct Round {
  double ttft = 0;            // sum over prompts, seconds
  double decode = 0;          // sum over prompts, seconds
  int64_t decode_tokens = 0;  // after the first of each output
};

engine::Request request_for(const Prompt& prompt, const Contender& contender,
                            const TimingOptions& options) {
  engine::Request request;
  request.prompt = prompt.tokens;
  request.sampling.temperature = 0;
  request.sampling.max_tokens = options.output_tokens;
  request.sampling.ignore_eos = true;
  request.sampling.seed = 0;  // of synthetic acceptance
  request.speculation = contender.speculation;
  return request;
}

void run_once(const Contender& contender, const Prompt& prompt, const TimingOptions& options,
              Round& round, ContenderTiming& timing) {
  const std::vector<engine::Request> requests = {request_for(prompt, contender, options)};
  engine::Result result = std::move(engine::generate(*contender.engine, requests).front());
  round.ttft += result.timings.ttft_seconds;
  round.decode += result.timings.decode_seconds;
  round.decode_tokens += static_cast<int64_t>(result.tokens.size()) - 1;
  timing.speculation.add(result.speculation);
  timing.outputs.push_back(std::move(result.tokens));
}

std::vector<double> map(const std::vector<double>& values, double (*function)(double, double),
                        double parameter) {
  std::vector<double> result;
  result.reserve(values.size());
  for (double value : values) result.push_back(function(value, parameter));
  return result;
}

double times(double value, double factor) {
  return value * factor;
}
double divided_into(double value, double dividend) {
  return dividend / value;
}

}  // namespace

Spread ContenderTiming::ttft_ms() const {
  return spread_of(map(ttft, times, 1e3));
}
Spread ContenderTiming::tpot_ms() const {
  return spread_of(map(tpot, times, 1e3));
}
Spread ContenderTiming::decode_tokens_per_second() const {
  return spread_of(map(tpot, divided_into, 1));
}
Spread ContenderTiming::prefill_tokens_per_second() const {
  return spread_of(map(ttft, divided_into, prompt_tokens));
}

std::vector<ContenderTiming> time_contenders(std::span<const Contender> contenders,
                                             const Workload& workload, const TimingOptions& options,
                                             const std::function<void()>& on_run) {
  const auto prompts = static_cast<double>(workload.prompts.size());
  std::vector<ContenderTiming> timings(contenders.size());
  for (std::size_t c = 0; c < contenders.size(); ++c) {
    timings[c].name = contenders[c].name;
    timings[c].prompt_tokens = static_cast<double>(workload.prompt_tokens()) / prompts;
  }
  const engine::Engine* running = nullptr;
  for (int r = -options.warm_up; r < options.rounds; ++r) {
    std::vector<Round> rounds(contenders.size());
    for (ContenderTiming& timing : timings) {
      timing.speculation = {};
      timing.outputs.clear();
    }
    for (const Prompt& prompt : workload.prompts) {
      for (std::size_t i = 0; i < contenders.size(); ++i) {
        const std::size_t c = r % 2 == 0 ? i : contenders.size() - 1 - i;
        let_threads_sleep(contenders[c].engine, running);
        run_once(contenders[c], prompt, options, rounds[c], timings[c]);
        if (on_run) on_run();
      }
    }
    if (r < 0) continue;
    for (std::size_t c = 0; c < contenders.size(); ++c) {
      const auto tokens = static_cast<double>(std::max<int64_t>(rounds[c].decode_tokens, 1));
      timings[c].ttft.push_back(rounds[c].ttft / prompts);
      timings[c].tpot.push_back(rounds[c].decode / tokens);
    }
  }
  return timings;
}

void let_threads_sleep(const engine::Engine* next, const engine::Engine*& running) {
  constexpr std::chrono::milliseconds kLongerThanSpinning{1};
  if (running != nullptr && running != next) std::this_thread::sleep_for(kLongerThanSpinning);
  running = next;
}

Spread speedup(const ContenderTiming& timing, const ContenderTiming& control) {
  return paired_ratio(control.tpot, timing.tpot);
}

std::vector<double> accepted_per_position(const engine::SpeculationStats& stats) {
  std::vector<double> shares;
  for (const int64_t accepted : stats.num_accepted_tokens_per_pos) {
    shares.push_back(static_cast<double>(accepted) /
                     static_cast<double>(std::max<int64_t>(stats.num_drafts, 1)));
  }
  return shares;
}

}  // namespace levin::bench
