// levin bench: honest timing on this machine, and of servers.
#include "bench/bench.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/bench_url.h"
#include "cli/command.h"
#include "cli/engine_flags.h"
#include "cli/output.h"
#include "cli/validators.h"
#include "core/files.h"
#include "text/utf8.h"

namespace levin::cli {
namespace {

struct BenchFlags {
  EngineFlags engine;
  BenchUrlFlags url;
  bench::BenchOptions options;
  std::string prompt_file;
  bool bandwidth = false;
  bool host_rounds = false;
  bool json = false;
};

constexpr const char* kDescription =
    "Times decode and prefill of a model, one sequence at a time, beside the memory bandwidth of\n"
    "this machine. The run without speculation is always there as the control; with\n"
    "--speculative-config both run in turn, round by round. Figures are medians with their "
    "spread.\n\n"
    "Examples:\n"
    "  levin bench models/tiny\n"
    "  levin bench models/tiny --speculative-config "
    "'{\"method\": \"mtp\", \"num_speculative_tokens\": 3}'\n"
    "  levin bench models/tiny --speculative-config '{\"method\": \"mtp\",\n"
    "    \"num_speculative_tokens\": 3, \"rejection_sample_method\": \"synthetic\",\n"
    "    \"synthetic_acceptance_rates\": [0.65, 0.6, 0.56]}'   (forced acceptance: speed only)\n"
    "  levin bench --bandwidth";

ExitCode run_bandwidth(const BenchFlags& flags) {
  const int threads = flags.engine.threads;
  const bench::Bandwidth memory = bench::measure_memory_bandwidth(threads);
  if (flags.json) {
    print_json(nlohmann::ordered_json{{"device", to_json(memory)}});
  } else {
    fmt::print("memory read  {}\n", to_text(memory));
  }
  return ExitCode::kDone;
}

ExitCode run_bench(const BenchFlags& flags) {
  if (!flags.url.url.empty()) return run_bench_url(flags.url, flags.engine.seed, flags.json);
  if (flags.bandwidth && !flags.engine.model.empty()) {
    throw Error({.what = "the bandwidth is the machine's, whatever the model",
                 .where = "--bandwidth",
                 .expected = "no MODEL",
                 .found = flags.engine.model,
                 .hint = "timing a model measures the bandwidth as well"});
  }
  if (flags.bandwidth) return run_bandwidth(flags);
  if (flags.engine.model.empty()) {
    throw Error({.what = "no model to time",
                 .where = "MODEL",
                 .expected = "a checkpoint folder, --url or --bandwidth",
                 .found = {},
                 .hint = {}});
  }
  if (!flags.prompt_file.empty()) {
    text::require_utf8(read_text(flags.prompt_file), flags.prompt_file);
  }
  bench::BenchOptions options = flags.options;
  options.speculation = benchmark_speculative_config(flags.engine);
  options.speculation.device_rounds = !flags.host_rounds;
  options.prompt_file = flags.prompt_file;
  const auto engine = engine::load_engine(flags.engine.model, load_options(flags.engine));
  const bench::BenchReport report = bench::run_bench(*engine, options);
  if (flags.json) {
    print_json(to_json(report));
  } else {
    fmt::print("{}", to_text(report));
  }
  return report.lossless() ? ExitCode::kDone : ExitCode::kNo;
}

}  // namespace

void add_bench(CLI::App& app, Action& action) {
  auto flags = std::make_shared<BenchFlags>();
  CLI::App* command =
      app.add_subcommand("bench", std::string(kDescription) + "\n\n" + kBenchUrlDescription);
  add_engine_flags(*command, flags->engine);
  command->get_option("MODEL")->required(false);
  command
      ->add_option("--prompt-tokens", flags->options.prompt_tokens,
                   "Length of the fixed prose and code prompts")
      ->check(at_least(1))
      ->capture_default_str();
  command->add_option("--prompt-file", flags->prompt_file, "Time this prompt instead");
  command
      ->add_option("--output-tokens", flags->options.timing.output_tokens,
                   "Tokens generated after each prompt")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  command->add_option("--rounds", flags->options.timing.rounds, "Rounds that count")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_option("--warm-up", flags->options.timing.warm_up, "Rounds before that do not count")
      ->check(CLI::Range(0, 1000))
      ->capture_default_str();
  command->add_flag("--host-rounds", flags->host_rounds,
                    "Draft, verify and accept by calls of the host even where the device can do "
                    "whole rounds");
  command->add_flag("--bandwidth", flags->bandwidth,
                    "Without MODEL: measure only how fast this machine reads memory");
  command->add_flag("--json", flags->json, "Print one JSON object");
  add_bench_url_flags(*command, flags->url);
  command->callback([flags, command, &action] {
    action = [flags, command] {
      check_bench_flags(*command, flags->url);
      return run_bench(*flags);
    };
  });
}

}  // namespace levin::cli
