// Tokens per second of many requests at a time through the scheduler, for fixed numbers of drafts
// and the adaptive one, which should be close to the best of them at every load:
//
//    levin_scheduler_bench models/tiny evals/tiny/text/NAME.txt
//
// Prompts are pieces of the text, outputs greedy. The settings take turns, so that a busy machine
// hits all of them, and the median of the rounds is printed.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>

#include "core/error.h"
#include "core/files.h"
#include "engine/engine.h"
#include "engine/scheduler.h"

namespace {

using namespace levin;
using Clock = std::chrono::steady_clock;

constexpr int kMostSequences = 64;
constexpr int kMostDrafts = 5;
constexpr std::size_t kPromptTokens = 64;
constexpr int64_t kOutputTokens = 64;
constexpr int kRounds = 7;

struct Setting {
  std::string name;
  engine::SpeculativeConfig speculation;
};

// Tokens per second of `requests` requests that start together.
double measure(engine::Scheduler& scheduler, const std::vector<int32_t>& text, int requests,
               const engine::SpeculativeConfig& speculation, std::size_t& at) {
  int64_t tokens = 0;
  const Clock::time_point start = Clock::now();
  for (int i = 0; i < requests; ++i) {
    at = at + 2 * kPromptTokens < text.size() ? at + kPromptTokens / 2 : 0;
    const auto begin = text.begin() + static_cast<std::ptrdiff_t>(at);
    scheduler.submit({.request = {.prompt = {begin, begin + kPromptTokens},
                                  .sampling = {.temperature = 0,
                                               .max_tokens = kOutputTokens,
                                               .ignore_eos = true},
                                  .speculation = speculation},
                      .on_finish = [&](engine::Completion&& done) {
                        tokens += static_cast<int64_t>(done.result.tokens.size());
                      }});
  }
  while (scheduler.step()) {
  }
  return static_cast<double>(tokens) / std::chrono::duration<double>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

void run(const std::string& folder, const std::string& text_file) {
  engine::LoadOptions options;
  options.runtime.max_num_seqs = kMostSequences;
  options.runtime.max_model_len = 256;
  const auto loaded = engine::load_engine(folder, options);
  const std::vector<int32_t> text = loaded->tokenizer->encode(read_text(text_file));
  std::vector<Setting> settings;
  for (const int k : {0, 1, 2, 3, 5}) settings.push_back({fmt::format("k = {}", k), {k}});
  settings.push_back({"adaptive", {.num_speculative_tokens = kMostDrafts, .adaptive = true}});

  fmt::print("{}\n{:>9}", loaded->runtime->description(), "requests");
  for (const Setting& setting : settings) fmt::print("{:>10}", setting.name);
  fmt::print("  adaptive / best\n");
  for (int requests = 1; requests <= kMostSequences; requests *= 2) {
    std::vector<std::vector<double>> rates(settings.size());
    std::vector<std::unique_ptr<engine::Scheduler>> schedulers;
    for (std::size_t i = 0; i < settings.size(); ++i) {
      schedulers.push_back(std::make_unique<engine::Scheduler>(*loaded, engine::SchedulerConfig{}));
    }
    for (int round = -2; round < kRounds; ++round) {
      for (std::size_t i = 0; i < settings.size(); ++i) {
        std::size_t at = static_cast<std::size_t>(round + 2) * 997;
        const double rate = measure(*schedulers[i], text, requests, settings[i].speculation, at);
        if (round >= 0) rates[i].push_back(rate);
      }
    }
    fmt::print("{:>9}", requests);
    double best = 0;
    for (std::size_t i = 0; i < settings.size(); ++i) {
      const double rate = median(rates[i]);
      if (i + 1 < settings.size()) best = std::max(best, rate);
      fmt::print("{:>10.0f}", rate);
    }
    fmt::print("  {:.2f}\n", median(rates.back()) / best);
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    fmt::print(stderr, "usage: levin_scheduler_bench MODEL TEXT\n");
    return 2;
  }
  try {
    run(argv[1], argv[2]);
  } catch (const levin::Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return static_cast<int>(error.exit_code());
  }
}
