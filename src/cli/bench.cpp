// levin bench: honest timing on this machine, and of servers.
#include "bench/bench.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <array>
#include <nlohmann/json.hpp>
#include <set>

#include "bench/arithmetic.h"
#include "bench/neighbours.h"
#include "bench/roofline.h"
#include "cli/bench_url.h"
#include "cli/command.h"
#include "cli/engine_flags.h"
#include "cli/output.h"
#include "cli/profile_flags.h"
#include "cli/trace_flags.h"
#include "cli/validators.h"
#include "core/files.h"
#include "text/utf8.h"

namespace levin::cli {
namespace {

struct BenchFlags {
  EngineFlags engine;
  BenchUrlFlags url;
  bench::BenchOptions options;
  TraceFlags trace;
  std::string profile;
  std::string prompt_file;
  bool bandwidth = false;
  bool roofline = false;
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
    "  levin bench models/tiny --roofline\n"
    "  levin bench models/tiny --trace trace.json   (a generation more, which is not timed)\n"
    "  levin bench --bandwidth";

// What text says of a busy machine, for those who read the JSON object alone.
void warn_of_neighbours(const bench::Neighbours& neighbours) {
  if (neighbours.noticeable()) {
    spdlog::warn("the machine was busy: {}", bench::to_text(neighbours));
  }
}

ExitCode run_bandwidth(const BenchFlags& flags) {
  const int threads = flags.engine.threads;
  check_threads(threads);
  const bench::NeighbourWatch watch;
  const bench::Bandwidth one = bench::measure_memory_bandwidth(1);
  const bench::Bandwidth memory = bench::measure_memory_bandwidth(threads);
  const auto rates = bench::measure_arithmetic({.threads = threads});
  const bench::Neighbours neighbours = watch.so_far();
  if (flags.json) {
    warn_of_neighbours(neighbours);
    nlohmann::ordered_json device = to_json(memory);
    device["one_thread"] = to_json(one);
    device["arithmetic"] = to_json(rates);
    print_json(nlohmann::ordered_json{{"device", std::move(device)},
                                      {"machine_was_busy", to_json(neighbours)}});
  } else {
    fmt::print("1 thread   {}\nmemory     {}\n{}{}", to_text(one), to_text(memory), to_text(rates),
               to_warning(neighbours));
  }
  return ExitCode::kDone;
}

// The machine's speed asks for nothing but threads: what else is given would be forgotten silently.
void check_bandwidth_flags(const CLI::App& command, const BenchFlags& flags) {
  const std::set<std::string> meant = {"help", "bandwidth", "threads", "json"};
  for (const CLI::Option* option : command.get_options()) {
    const std::string& name = option->get_single_name();
    const bool of_cpu = name == "device" && flags.engine.device == "cpu";
    if (option->count() == 0 || meant.contains(name) || of_cpu) continue;
    throw Error({.what = "the bandwidth is the machine's, whatever the model",
                 .where = "--bandwidth",
                 .expected = "no MODEL, and of other flags --threads and --json",
                 .found = option->get_name(),
                 .hint = "timing a model measures the bandwidth as well"});
  }
}

// Drafts that the tables are about: those asked for, or three where the model can.
int roofline_drafts(const BenchFlags& flags, const engine::SpeculativeConfig& speculation,
                    const engine::Engine& engine) {
  if (flags.engine.speculative_config) return speculation.num_speculative_tokens;
  constexpr int kDrafts = 3;
  return engine.model->mtp ? kDrafts : 0;
}

ExitCode run_roofline(const BenchFlags& flags, const CLI::App& command,
                      const engine::SpeculativeConfig& speculation, engine::Engine& engine) {
  // Of slow models some rounds say as much as all, unless their number is asked for.
  constexpr double kSeconds = 20;
  if (speculation.draft_vocab_size > 0 || !speculation.synthetic_acceptance_rates.empty()) {
    throw Error({.what = "the tables are of drafts from all tokens, as the model accepts them",
                 .where = "--roofline",
                 .expected = "method and num_speculative_tokens",
                 .found = speculation.draft_vocab_size > 0 ? "draft_vocab_size"
                                                           : "synthetic_acceptance_rates",
                 .hint = "--speculative-config without it, which wins over --profile"});
  }
  const bench::Roofline roofline =
      bench::measure_roofline(engine, {.prompt_tokens = flags.options.prompt_tokens,
                                       .output_tokens = flags.options.timing.output_tokens,
                                       .rounds = flags.options.timing.rounds,
                                       .k = roofline_drafts(flags, speculation, engine),
                                       .seconds = command.count("--rounds") > 0 ? 0 : kSeconds});
  if (flags.json) {
    warn_of_neighbours(roofline.neighbours);
    print_json(to_json(roofline));
  } else {
    fmt::print("{}", to_text(roofline));
  }
  return ExitCode::kDone;
}

ExitCode run_bench(BenchFlags& flags, const CLI::App& command) {
  if (!flags.url.url.empty()) {
    const bool seeded = command.count("--seed") > 0;
    return run_bench_url(flags.url, seeded ? std::optional(flags.engine.seed) : std::nullopt,
                         flags.json);
  }
  if (flags.bandwidth) {
    check_bandwidth_flags(command, flags);
    return run_bandwidth(flags);
  }
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
  check_trace(flags.trace, std::array<std::filesystem::path, 3>{flags.engine.model,
                                                                flags.prompt_file, flags.profile});
  const auto profile = apply_profile(flags.profile, command, flags.engine);
  bench::BenchOptions options = flags.options;
  options.speculation = benchmark_speculative_config(flags.engine);
  options.prompt_file = flags.prompt_file;
  engine::LoadOptions load = load_options(flags.engine);
  size_steps(load, 0);
  const int64_t draft_vocab = options.speculation.draft_vocab_size;
  load.before_runtime = [&](const engine::Engine& loading) {
    engine::require_draft_vocab(loading, draft_vocab, kDraftVocabPlace);
  };
  const auto engine = engine::load_engine(flags.engine.model, load);
  engine::require_drafts(*engine, options.speculation.num_speculative_tokens, kDraftsPlace);
  check_device(profile, *engine);
  if (flags.roofline) return run_roofline(flags, command, options.speculation, *engine);
  const bench::BenchReport report = bench::run_bench(*engine, options);
  if (flags.json) {
    if (report.disturbance.noticeable()) spdlog::warn("{}", to_text(report.disturbance));
    print_json(to_json(report));
  } else {
    fmt::print("{}", to_text(report));
  }
  if (!flags.trace.file.empty()) {
    start_trace(flags.trace, *engine);
    bench::run_once(*engine, options);
    finish_trace(flags.trace, *engine);
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
  command->add_option("--prompt-file", flags->prompt_file, "Time this prompt instead")
      ->excludes(command->get_option("--prompt-tokens"));
  command
      ->add_option("--output-tokens", flags->options.timing.output_tokens,
                   "Tokens generated after each prompt")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  command
      ->add_option("--rounds", flags->options.timing.rounds,
                   "Rounds that count (default with --roofline: fewer of a slow model)")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_option("--warm-up", flags->options.timing.warm_up, "Rounds before that do not count")
      ->check(CLI::Range(0, 1000))
      ->capture_default_str();
  add_host_rounds_flag(*command, flags->engine);
  command->add_flag(
      "--bandwidth", flags->bandwidth,
      "Without MODEL: measure only how fast this machine reads memory and multiplies");
  auto* roofline = command->add_flag(
      "--roofline", flags->roofline,
      "Instead: where the time of a step goes, phase by phase, beside what it has to read");
  add_profile_flag(*command, flags->profile);
  add_trace_flags(*command, flags->trace);
  // Its tables are of the fixed prompts, after a warm-up of its own.
  for (const char* other : {"--trace", "--prompt-file", "--warm-up"}) {
    command->get_option(other)->excludes(roofline);
  }
  command->add_flag("--json", flags->json, "Print one JSON object");
  add_bench_url_flags(*command, flags->url);
  command->callback([flags, command, &action] {
    action = [flags, command] {
      check_bench_flags(*command, flags->url);
      return run_bench(*flags, *command);
    };
  });
}

}  // namespace levin::cli
