#include "quantize/quantize.h"

#include <fmt/format.h>

#include <array>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/command.h"
#include "cli/engine_flags.h"
#include "cli/interruption.h"
#include "cli/output.h"
#include "cli/validators.h"
#include "core/error.h"
#include "core/files.h"
#include "quantize/progress_file.h"
#include "quantize/report.h"

namespace levin::cli {
namespace {

constexpr const char* kDescription =
    "Converts an unquantized checkpoint by a recipe. Streams shard by shard within --memory; a "
    "run\n"
    "that was interrupted goes on where it stopped when the same command is given again. OUT "
    "looks\n"
    "like a checkpoint only when it is complete.\n\n"
    "  levin quantize models/tiny --recipe w4a16 -o out/w4a16\n"
    "  levin quantize models/tiny --recipe w4a4 --calibration evals/tiny/calibration.jsonl -o "
    "out/w4a4\n"
    "  levin quantize configs/nemotron-3.5-lightning-30b-a3b --load-format dummy --recipe "
    "w4a4-full "
    "--dry-run\n\n"
    "Recipes are YAML in the grammar of NVIDIA ModelOpt (docs/recipes.md). Shipped: ";

struct QuantizeFlags {
  std::string model;
  std::string recipe;
  std::string output;
  std::string calibration;
  int64_t calibration_tokens = quantize::CalibrationSettings{}.max_tokens;
  uint64_t memory = uint64_t{4} << 30;
  int threads = 0;
  std::string load_format = "auto";
  bool dry_run = false;
  bool json = false;
  bool overwrite = false;
};

quantize::Options options_of(const QuantizeFlags& flags) {
  check_threads(flags.threads);
  quantize::Options options;
  options.model = flags.model;
  options.recipe = flags.recipe;
  options.output = flags.output;
  if (!flags.calibration.empty()) {
    options.calibration.emplace();
    options.calibration->text = flags.calibration;
    options.calibration->max_tokens = flags.calibration_tokens;
  }
  options.memory_bytes = static_cast<int64_t>(flags.memory);
  options.threads = flags.threads;
  options.overwrite = flags.overwrite;
  options.version = LEVIN_VERSION;
  return options;
}

ExitCode dry_run(const QuantizeFlags& flags) {
  const bool dummy = flags.load_format == "dummy";
  const quantize::Source source = quantize::open_source(
      flags.model, flags.recipe, dummy ? model::LoadFormat::kDummy : model::LoadFormat::kAuto);
  quantize::check(options_of(flags), source);
  if (flags.json) {
    print_json(quantize::plan_json(source.plan, source.checkpoint.get()));
  } else {
    fmt::print("{}", quantize::plan_table(source.plan, source.checkpoint.get()));
  }
  return ExitCode::kDone;
}

ExitCode run_quantize(const QuantizeFlags& flags) {
  if (flags.dry_run) return dry_run(flags);
  if (flags.load_format == "dummy") {
    throw Error({.what = "random weights are not worth quantizing",
                 .where = "--load-format dummy",
                 .expected = "--dry-run, which plans without weights",
                 .found = {},
                 .hint = {}});
  }
  if (flags.output.empty()) {
    throw Error({.what = "no output folder",
                 .where = "-o",
                 .expected = "a folder to write, or --dry-run",
                 .found = {},
                 .hint = {}});
  }
  check_not_an_input(flags.output, std::array<std::filesystem::path, 1>{flags.model});
  when_interrupted(fmt::format(
      "what was written is kept in {}: the same command goes on from there (a calibration begins "
      "anew)",
      (std::filesystem::path(flags.output) / quantize::ProgressFile::kFolder).string()));
  const quantize::Result result = quantize::quantize(options_of(flags));
  if (flags.json) {
    print_json(quantize::result_json(result));
  } else {
    fmt::print("{}", quantize::result_text(result, flags.output));
  }
  return ExitCode::kDone;
}

}  // namespace

void add_quantize(CLI::App& app, Action& action) {
  auto flags = std::make_shared<QuantizeFlags>();
  CLI::App* command = app.add_subcommand("quantize", "Convert a checkpoint by a recipe");
  command->description(
      fmt::format("{}{}", kDescription, fmt::join(quantize::shipped_recipes(), ", ")));
  command->add_option("MODEL", flags->model, "Hugging Face folder of the unquantized checkpoint")
      ->required();
  command->add_option("--recipe", flags->recipe, "YAML file, or the name of a shipped recipe")
      ->required();
  command->add_option("-o,--output", flags->output, "Folder to write");
  command->add_option("--calibration", flags->calibration,
                      "Text for static activation scales: plain, or *.jsonl with \"text\"");
  command
      ->add_option("--calibration-tokens", flags->calibration_tokens,
                   "How much of the text to read, in tokens")
      ->check(CLI::Range(int64_t{2}, int64_t{1} << 30))
      ->capture_default_str();
  size_at_least(command->add_option("--memory", flags->memory,
                                    "Bound on resident memory, e.g. 512M or 4G (default 4G)"),
                0);
  command->add_option("--threads", flags->threads, "CPU threads (default: all usable cores)")
      ->check(CLI::Range(1, 1024));
  command
      ->add_option("--load-format", flags->load_format,
                   "auto reads the folder; dummy needs config.json only (with --dry-run)")
      ->check(CLI::IsMember({"auto", "dummy"}))
      ->capture_default_str();
  command->add_flag("--dry-run", flags->dry_run,
                    "Print which rule decides which linears, and the sizes; write nothing");
  command->add_flag(
      "--overwrite", flags->overwrite,
      "Replace the checkpoint in OUT, and forget an unfinished one of something else. Once the new "
      "one is complete, config.json, every model*.safetensors with its index, the quantization "
      "metadata, tokenizer and chat template that were there are removed and named; other files "
      "stay");
  command->add_flag("--json", flags->json, "Print one JSON object");
  command->callback([&action, flags] { action = [flags] { return run_quantize(*flags); }; });
}

}  // namespace levin::cli
