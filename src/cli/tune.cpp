// levin tune: the fastest settings for this model on this device, beside everything off.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "bench/profile.h"
#include "bench/tune_lab.h"
#include "cli/command.h"
#include "cli/engine_flags.h"
#include "cli/output.h"
#include "cli/validators.h"
#include "core/files.h"
#include "core/memory.h"
#include "core/space.h"
#include "evaluate/text_set.h"

namespace levin::cli {
namespace {

constexpr const char* kDescription =
    "Tries the settings that matter on this device: threads and whether they stay on their cores,\n"
    "rounds by the device or the host, types of the caches, drafts, the prefix cache. Each is\n"
    "timed in turn with the control, everything off, and kept when it is faster beyond noise and\n"
    "the quality gate passes it. What was kept is timed once more, and written to a profile.\n"
    "Takes minutes, and wants a machine that does nothing else: beside other work fewer threads "
    "win.\n\n"
    "Examples:\n"
    "  levin tune models/tiny -o tiny.profile.json\n"
    "  levin serve models/tiny --profile tiny.profile.json\n";

struct TuneFlags {
  EngineFlags engine;
  bench::TuneLabOptions options;
  std::vector<std::string> texts;
  std::string out;
  bool overwrite = false;
  bool json = false;
};

// The intervals have to be sure of each of a dozen comparisons.
constexpr evaluate::Bootstrap kBootstrap = {.confidence = 0.99};

Existing existing(const TuneFlags& flags) {
  return flags.overwrite ? Existing::kReplace : Existing::kRefuse;
}

void check(const TuneFlags& flags) {
  // Read once more when a cache type is judged, which may be never; a mistake should show at once.
  for (const std::string& text : flags.texts) (void)evaluate::load_text(text);
  if (flags.out.empty()) return;
  check_output_file(flags.out, existing(flags));
  require_space(flags.out, kResultBytes);
  std::vector<std::filesystem::path> inputs = {flags.engine.model};
  inputs.insert(inputs.end(), flags.texts.begin(), flags.texts.end());
  check_not_an_input(flags.out, inputs);
}

// `written`: where the profile is; empty where it is not.
void show_json(const bench::TuneProfile& profile, const bench::TuneResult& result,
               const std::string& written) {
  if (result.disturbance.noticeable()) spdlog::warn("{}", to_text(result.disturbance));
  nlohmann::ordered_json json = to_json(result);
  json["model"] = profile.folder;
  json["fingerprint"] = profile.model;
  json["device"] = profile.device;
  if (!written.empty()) json["profile"] = written;
  print_json(json);
}

void show_text(const bench::TuneProfile& profile, const bench::TuneResult& result,
               const std::string& written) {
  fmt::print("model    {}\ndevice   {}\n\n{}", profile.folder, profile.device, to_text(result));
  if (!written.empty()) fmt::print("profile  {}\n", written);
}

ExitCode run_tune(const TuneFlags& flags) {
  check(flags);
  bench::TuneLabOptions options = flags.options;
  options.model = flags.engine.model;
  options.load = load_options(flags.engine);
  options.texts.assign(flags.texts.begin(), flags.texts.end());
  bench::ModelLab lab(options);
  lab.set_available_bytes(available_memory_bytes());
  spdlog::info("{}; control: {}", lab.control_engine().runtime->description(),
               to_text(lab.control()));
  const bench::TuneResult result = bench::tune(
      lab, lab.control(), lab.dimensions(), kBootstrap, [](const bench::TuneTrial& trial) {
        spdlog::info("{}: {} ({})", to_text(trial.setting), name_of(trial.verdict), trial.why);
      });
  const bench::TuneProfile profile = {
      .levin = LEVIN_VERSION,
      .model = bench::model_fingerprint(*lab.control_engine().model->checkpoint),
      .folder = flags.engine.model,
      .device = bench::device_of(lab.control_engine()),
      .setting = for_profile(result)};
  std::string written;
  const auto write = [&] {
    if (flags.out.empty()) return;
    bench::write_profile(profile, to_json(result), flags.out, existing(flags));
    written = flags.out;
  };
  write_and_print(write, [&] {
    flags.json ? show_json(profile, result, written) : show_text(profile, result, written);
  });
  return ExitCode::kDone;
}

}  // namespace

void add_tune(CLI::App& app, Action& action) {
  auto flags = std::make_shared<TuneFlags>();
  flags->options.timing = {.output_tokens = 64, .rounds = 9, .warm_up = 1};
  CLI::App* command = app.add_subcommand("tune", kDescription);
  add_engine_flags(*command, flags->engine);
  command->remove_option(command->get_option("--speculative-config"));
  command->remove_option(command->get_option("--runtime"));
  command->remove_option(command->get_option("--load-format"));
  command->add_option("-o,--output,--out", flags->out,
                      "File for the profile (default: print only)");
  command->add_flag("--overwrite", flags->overwrite, "Replace that file");
  command->add_option("--text", flags->texts,
                      "Text that the types of the caches are judged on (default: the prompts)");
  command
      ->add_option("--perplexity-ratio-max", flags->options.perplexity_ratio_max,
                   "What the gate lets perplexity be, of the control's")
      ->check(CLI::Range(1.0, 2.0))
      ->capture_default_str();
  command
      ->add_option("--prompt-tokens", flags->options.prompt_tokens,
                   "Length of the fixed prose and code prompts")
      ->check(at_least(2))  // of one token nothing is predicted
      ->capture_default_str();
  command
      ->add_option("--output-tokens", flags->options.timing.output_tokens,
                   "Tokens generated after each prompt")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  command->add_option("--rounds", flags->options.timing.rounds, "Rounds of each comparison")
      ->check(CLI::Range(5, 1000))
      ->capture_default_str();
  command->add_flag("--json", flags->json, "Print one JSON object");
  command->callback([flags, &action] { action = [flags] { return run_tune(*flags); }; });
}

}  // namespace levin::cli
