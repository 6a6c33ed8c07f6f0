// Time of decode and verification passes of a full-size model on a CUDA device, with random weights
// made there, against the floor: bytes over the read bandwidth measured in the same run.
//
//   cuda_step CONFIG_FOLDER [--recipe bf16|coverage|4bit|int4]... [--context N]
//             [--phases] [--rows N] [--mtp] [--rounds [--draft-vocab N]]
//             [--as-80|--as-86|--as-120]
//   cuda_step CONFIG_FOLDER --prompts [--recipe ...]... [--chunk TOKENS] [--phases] [--mtp]
//
// --phases: the table of phases of a pass of --rows tokens (1).
// --rounds: whole generation rounds with 0 to 5 drafts instead, launched and read as a server does
// it. Random weights never accept a draft, so acceptance is synthetic: drafts are accepted in the
// shares of kRates of the rounds. The figures are of speed alone. --draft-vocab: drafts are among
// the first N tokens.
// --as-80, --as-86, --as-120: with no more shared memory than GPUs of compute capability 8.0, 8.6
// and 8.9, or 12.0 have. The instructions are those that the program was built for.
// --prompts: the time of prompts of 128, 1,024 and 8,192 tokens until the first token's logits are
// on the host, and where it goes; then how long a snapshot of each takes.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/files.h"
#include "runtime/cuda/profile.h"
#include "runtime/round.h"
#include "step_recipes.h"

namespace {

using levin::benchmarks::bytes_per_step;
using levin::benchmarks::kRecipes;
using levin::benchmarks::median;
using levin::benchmarks::Recipe;

// Unconditional acceptance of draft 1, 2, ...; beyond the third, the third's ratio goes on.
constexpr double kRates[] = {0.65, 0.60, 0.56, 0.523, 0.488};

// The slot after `context` tokens.
void prefill(levin::runtime::Runtime& runtime, int context) {
  runtime.reset(0);
  const int chunk = runtime.options().max_extend_tokens;
  const int64_t vocab = runtime.model().config.vocab_size;
  for (int done = 0; done < context; done += chunk) {
    std::vector<int32_t> tokens;
    for (int i = done; i < std::min(done + chunk, context); ++i) {
      tokens.push_back(static_cast<int32_t>((1237 + int64_t{7919} * i) % vocab));
    }
    const levin::runtime::Extend extend = {.slot = 0, .tokens = tokens, .logits_rows = 0};
    runtime.extend({&extend, 1});
  }
}

struct RoundTimes {
  double tokens = 0;
  double seconds = 0;  // of the host's clock
  std::vector<double> draft, verify, gap;
  double experts = 0;  // of all rounds
};

// One round ahead, as the engine does it.
RoundTimes time_rounds(levin::runtime::DeviceRounds& rounds, int drafts, int count) {
  const int slot = 0;
  RoundTimes times;
  const auto take = [&](bool counts) {
    const levin::runtime::RoundOutcome& outcome = rounds.wait();
    if (!counts) return;
    times.tokens += outcome.results[0].block.count;
    times.draft.push_back(outcome.draft_seconds * 1e6);
    times.verify.push_back(outcome.verify_seconds * 1e6);
    times.gap.push_back(outcome.gap_seconds * 1e6);
    times.experts += outcome.experts;
  };
  constexpr int kWarmUp = 8;
  rounds.launch({&slot, 1}, drafts);
  auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kWarmUp + count; ++i) {
    rounds.launch({&slot, 1}, drafts);
    take(i >= kWarmUp);
    if (i == kWarmUp - 1) start = std::chrono::steady_clock::now();
  }
  times.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  take(false);
  return times;
}

void run_rounds(levin::runtime::CudaProfile& profile, int context, int64_t draft_vocab) {
  levin::runtime::Runtime& runtime = profile.runtime();
  levin::runtime::DeviceRounds& rounds = *runtime.rounds();
  int layers = 0;
  for (const auto& layer : runtime.model().layers) {
    layers += layer.kind == levin::model::BlockKind::kMoe ? 1 : 0;
  }
  fmt::print(
      "whole rounds of one sequence, SYNTHETIC acceptance (random weights): tokens/s by the host's "
      "clock; medians of us on the device; idle: no kernel works, by time stamps, of one round "
      "with "
      "them\n"
      " k  tokens/s  tokens/round   drafts    verify      gap  experts/layer  kernels  idle us  "
      "%\n");
  for (int drafts = 0; drafts <= std::min(5, runtime.options().max_rewind - 1); ++drafts) {
    prefill(runtime, context);
    std::vector<double> rates;
    for (int i = 0; i < drafts; ++i) rates.push_back(kRates[i] / (i == 0 ? 1.0 : kRates[i - 1]));
    rounds.enter({.slot = 0,
                  .last_token = 17,
                  .remaining = runtime.options().max_model_len - context,
                  .sampling = {.seed = 1},
                  .draft_vocab = draft_vocab,
                  .synthetic_rates = rates});
    const RoundTimes times = time_rounds(rounds, drafts, 150);
    const auto timeline = profile.round_timeline(drafts);
    const auto count = static_cast<double>(times.verify.size());
    fmt::print(
        "{:>2} {:>9.1f} {:>13.2f} {:>8.1f} {:>9.1f} {:>8.1f} {:>14.1f} {:>8} {:>8.1f} {:.1f}\n",
        drafts, times.tokens / times.seconds, times.tokens / count, median(times.draft),
        median(times.verify), median(times.gap), times.experts / count / layers, timeline.kernels,
        timeline.idle, timeline.idle / timeline.microseconds * 100);
    std::fflush(stdout);
  }
}

struct Wanted {
  int context = 1024;
  bool phases = false;
  int rows = 1;
  bool mtp = false;
  bool rounds = false;
  int64_t draft_vocab = 0;
  levin::runtime::CudaLimits limits = {};
};

void run(const std::string& folder, const Recipe& recipe, const Wanted& wanted) {
  const int context = wanted.context;
  const auto json = levin::read_json(std::filesystem::path(folder) / "config.json");
  const levin::model::Config config = levin::model::parse_config(json, folder);
  levin::runtime::Options options;
  options.max_model_len = std::max(8192, context + 64);
  options.max_extend_tokens = 16;
  options.ssm_cache_dtype =
      recipe.half_state ? levin::runtime::SsmCacheDType::kF16 : levin::runtime::SsmCacheDType::kF32;
  options.mtp = wanted.mtp || wanted.rounds;
  const auto profile = levin::runtime::make_cuda_profile(
      levin::runtime::make_shape_model(config, recipe.quant_of), options, 0, wanted.limits);
  const double bandwidth = profile->read_bandwidth();
  fmt::print("\n{}: {}, {:.1f} GB of weights and caches, plain read {:.0f} GB/s, context {}\n",
             recipe.name, profile->description(),
             static_cast<double>(profile->memory_bytes()) * 1e-9, bandwidth, context);
  if (wanted.rounds) return run_rounds(*profile, context, wanted.draft_vocab);
  fmt::print("tokens   MB    median us   min us   GB/s   % of plain read\n");
  const int most_rows = profile->runtime().options().max_rewind;
  for (int rows = 1; rows <= most_rows; ++rows) {
    const std::vector<double> times = profile->time_passes(rows, context, 21);
    const double bytes = bytes_per_step(config, recipe, rows, context);
    const double us = median(times);
    fmt::print("{:>4} {:>8.1f} {:>9.1f} {:>9.1f} {:>7.0f} {:>8.1f}\n", rows, bytes * 1e-6, us,
               *std::min_element(times.begin(), times.end()), bytes / us * 1e-3,
               bytes / us * 1e-3 / bandwidth * 100);
  }
  if (wanted.mtp) {
    const std::vector<double> times = profile->time_drafts(context, 21);
    fmt::print("a step of the draft head: median {:.1f} us, min {:.1f} us\n", median(times),
               *std::min_element(times.begin(), times.end()));
  }
  if (wanted.phases)
    fmt::print("{}", profile->phase_table(std::min(wanted.rows, most_rows), context));
  std::fflush(stdout);
}

// Milliseconds of a save and of a restore of slot 0, medians of five.
void print_snapshots(levin::runtime::Runtime& runtime) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> saving;
  std::vector<double> restoring;
  const int64_t tokens = runtime.length(0);
  for (int i = 0; i < 5; ++i) {
    const auto begin = Clock::now();
    const levin::runtime::Snapshot snapshot = runtime.save(0, 0);
    const auto saved = Clock::now();
    runtime.restore(0, {&snapshot, 1});
    saving.push_back(std::chrono::duration<double, std::milli>(saved - begin).count());
    restoring.push_back(std::chrono::duration<double, std::milli>(Clock::now() - saved).count());
  }
  const levin::runtime::SnapshotBytes bytes = runtime.snapshot_bytes(0, tokens);
  fmt::print("       its snapshot: {:.1f} MB, saved in {:.2f} ms, restored in {:.2f} ms\n",
             static_cast<double>(bytes.caches + bytes.state) * 1e-6, median(saving),
             median(restoring));
}

void run_prompts(const std::string& folder, const Recipe& recipe, int chunk, bool phases,
                 bool mtp) {
  const auto json = levin::read_json(std::filesystem::path(folder) / "config.json");
  levin::runtime::Options options;
  options.max_model_len = 8192 + 64;
  options.max_extend_tokens = chunk;
  options.max_logits_rows = 16;
  options.ssm_cache_dtype =
      recipe.half_state ? levin::runtime::SsmCacheDType::kF16 : levin::runtime::SsmCacheDType::kF32;
  options.mtp = mtp;
  const auto profile = levin::runtime::make_cuda_profile(
      levin::runtime::make_shape_model(levin::model::parse_config(json, folder), recipe.quant_of),
      options);
  fmt::print("\n{}: {}, {:.1f} GB\n", recipe.name, profile->description(),
             static_cast<double>(profile->memory_bytes()) * 1e-9);
  for (const int tokens : {128, 1024, 8192}) {
    const std::vector<double> times = profile->time_prompt(tokens, 5);
    fmt::print("{:>5} tokens: median {:.2f} ms, min {:.2f} ms\n", tokens, median(times) * 1e-3,
               *std::min_element(times.begin(), times.end()) * 1e-3);
    if (phases) fmt::print("{}", profile->prompt_table(tokens));
    print_snapshots(profile->runtime());
  }
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) try {
  std::vector<std::string> recipes;
  std::string folder;
  Wanted wanted;
  bool prompts = false;
  int chunk = 4096;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--recipe" && i + 1 < argc) {
      recipes.emplace_back(argv[++i]);
    } else if (argument == "--context" && i + 1 < argc) {
      wanted.context = std::stoi(argv[++i]);
    } else if (argument == "--phases") {
      wanted.phases = true;
    } else if (argument == "--rows" && i + 1 < argc) {
      wanted.rows = std::clamp(std::stoi(argv[++i]), 1, 8);
    } else if (argument == "--prompts") {
      prompts = true;
    } else if (argument == "--chunk" && i + 1 < argc) {
      chunk = std::stoi(argv[++i]);
    } else if (argument == "--mtp") {
      wanted.mtp = true;
    } else if (argument == "--rounds") {
      wanted.rounds = true;
    } else if (argument == "--as-80") {
      wanted.limits = levin::runtime::kCudaLimits80;
    } else if (argument == "--as-86") {
      wanted.limits = levin::runtime::kCudaLimits86;
    } else if (argument == "--as-120") {
      wanted.limits = levin::runtime::kCudaLimits120;
    } else if (argument == "--draft-vocab" && i + 1 < argc) {
      wanted.draft_vocab = std::stoll(argv[++i]);
    } else {
      folder = argument;
    }
  }
  for (const Recipe& recipe : kRecipes) {
    if (!recipes.empty() &&
        std::find(recipes.begin(), recipes.end(), recipe.name) == recipes.end()) {
      continue;
    }
    if (prompts) {
      run_prompts(folder, recipe, chunk, wanted.phases, wanted.mtp);
    } else {
      run(folder, recipe, wanted);
    }
  }
  return 0;
} catch (const levin::Error& error) {
  fmt::print(stderr, "{}\n", error.what());
  return static_cast<int>(error.exit_code());
}
