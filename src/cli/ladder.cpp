// levin ladder: from the BF16 checkpoint to the fastest deployment that keeps its quality.
#include "bench/ladder.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/command_line.h"
#include "cli/engine_flags.h"
#include "cli/interruption.h"
#include "cli/output.h"
#include "cli/validators.h"
#include "core/files.h"
#include "quantize/shipped.h"

namespace levin::cli {
namespace {

namespace fs = std::filesystem;

struct LadderFlags {
  EngineFlags engine;
  std::string out;
  std::string rungs;
  std::string evals = "evals/tiny";
  std::string calibration;
  int64_t calibration_tokens = bench::LadderOptions{}.calibration_tokens;
  std::string gate;
  int64_t limit = 60;
  int64_t windows = 8;
  bench::TimingOptions timing;
  int64_t prompt_tokens = 256;
  bool markdown = false;
  bool json = false;
};

constexpr const char* kDescription =
    "Climbs the ladder of deployments on this machine. Every rung is quantized, reloaded from the\n"
    "files written, judged beside the BF16 baseline and timed beside its own control and the\n"
    "baseline. OUT gets report.html, report.json and the checkpoints. A climb that was\n"
    "interrupted goes on where it stopped when the same command is given again.\n\n"
    "Examples:\n"
    "  levin ladder models/tiny -o out\n"
    "  levin ladder models/tiny -o out --rungs 2,3,fp8 --limit 150\n"
    "  levin ladder models/tiny -o out --rungs recipes --limit 0 --windows 0 --markdown";

// The files of a folder by name; nothing when there is no such folder.
std::vector<fs::path> files_in(const fs::path& folder) {
  std::vector<fs::path> files;
  if (!fs::is_directory(folder)) return files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

evaluate::Settings evaluation_settings(const LadderFlags& flags) {
  evaluate::Settings settings;
  const fs::path evals = flags.evals;
  settings.texts = files_in(evals / "text");
  if (fs::is_directory(evals / "tasks")) settings.tasks = {evals / "tasks"};
  if (settings.texts.empty() || settings.tasks.empty()) {
    throw Error({.what = "no text and tasks to evaluate on",
                 .where = "--evals " + flags.evals,
                 .expected = "a folder with text/ and tasks/",
                 .found = fs::is_directory(evals) ? "a folder without" : "no such folder",
                 .hint = "evals/tiny of levin's source tree has the form; give the path to it, or "
                         "to texts and tasks of your own"});
  }
  settings.task_limit = flags.limit;
  settings.text.max_windows = flags.windows;
  return settings;
}

evaluate::Gate gate_of(const LadderFlags& flags) {
  if (!flags.gate.empty()) return evaluate::load_gate(flags.gate);
  return evaluate::parse_gate(quantize::find_shipped("gate")->text, "gate.yaml");
}

bench::LadderOptions options_of(const LadderFlags& flags) {
  bench::LadderOptions options;
  options.model = flags.engine.model;
  options.out = flags.out;
  check_not_an_input(options.out, std::array<fs::path, 1>{options.model});
  options.rungs = flags.rungs;
  options.evaluation = evaluation_settings(flags);
  options.calibration = flags.calibration.empty() ? fs::path(flags.evals) / "calibration.jsonl"
                                                  : fs::path(flags.calibration);
  options.calibration_tokens = flags.calibration_tokens;
  options.version = LEVIN_VERSION;
  options.command = command_line();
  options.gate = gate_of(flags);
  options.timing = flags.timing;
  options.prompt_tokens = flags.prompt_tokens;
  options.max_num_seqs = flags.engine.max_num_seqs;
  options.load = load_options(flags.engine);
  return options;
}

// After every rung, so that an interrupted climb leaves what it has: beside the report of an
// earlier climb, which stays until there is a whole one in its place.
void write_reports(const bench::LadderReport& report, const fs::path& out) {
  write_text(out / "unfinished.json", to_json(report).dump(1) + "\n");
  write_text(out / "unfinished.html", to_html(report));
}

void put_reports_in_place(const fs::path& out) {
  fs::rename(out / "unfinished.json", out / "report.json");
  fs::rename(out / "unfinished.html", out / "report.html");
  sync_folder(out);
}

ExitCode run_ladder(const LadderFlags& flags) {
  const bench::LadderOptions options = options_of(flags);
  when_interrupted(fmt::format(
      "finished checkpoints and results are kept in {}: the same command goes on from there",
      flags.out));
  const bench::LadderReport report = bench::climb(
      options, [&](const bench::LadderReport& so_far) { write_reports(so_far, options.out); });
  put_reports_in_place(options.out);
  if (flags.json) {
    print_json(to_json(report));
  } else if (flags.markdown) {
    fmt::print("{}", to_markdown(report));
  } else {
    fmt::print("{}\n{}\n", to_text(report), (options.out / "report.html").string());
  }
  const bool lossless =
      std::all_of(report.rungs.begin(), report.rungs.end(),
                  [](const bench::RungResult& rung) { return rung.timing.same_tokens_as_control; });
  return lossless ? ExitCode::kDone : ExitCode::kNo;
}

}  // namespace

void add_ladder(CLI::App& app, Action& action) {
  auto flags = std::make_shared<LadderFlags>();
  flags->engine.max_num_seqs = 16;
  CLI::App* command = app.add_subcommand("ladder", kDescription);
  add_engine_flags(*command, flags->engine);
  command->remove_option(command->get_option("--speculative-config"));
  command->remove_option(command->get_option("--load-format"));
  command->add_option("-o,--output,--out", flags->out, "Folder for report, checkpoints and results")
      ->required();
  command->add_option("--rungs", flags->rungs,
                      "Rungs to climb, e.g. 0,2,3; a recipe's name or file is a rung beside them, "
                      "\"recipes\" all shipped ones");
  command
      ->add_option("--evals", flags->evals,
                   "Folder with text/, tasks/ and calibration.jsonl to evaluate on")
      ->capture_default_str();
  command->add_option(
      "--calibration", flags->calibration,
      "Text to measure activation scales on (default: calibration.jsonl of --evals)");
  command->add_option("--calibration-tokens", flags->calibration_tokens, "Tokens of that text")
      ->check(CLI::Range(int64_t{2}, int64_t{1} << 30))
      ->capture_default_str();
  command->add_option("--gate", flags->gate, "Bounds to judge by (default: the shipped gate.yaml)");
  command->add_option("--limit", flags->limit, "Items per task; 0: all")
      ->check(at_least(0))
      ->capture_default_str();
  command->add_option("--windows", flags->windows, "Windows of 2048 tokens per text; 0: all")
      ->check(at_least(0))
      ->capture_default_str();
  command->add_option("--rounds", flags->timing.rounds, "Rounds of timing")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_option("--output-tokens", flags->timing.output_tokens, "Tokens of a timed output")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  command->add_option("--prompt-tokens", flags->prompt_tokens, "Tokens of a timed prompt")
      ->check(at_least(1))
      ->capture_default_str();
  CLI::Option* json =
      command->add_flag("--json", flags->json, "Print the report as one JSON object");
  command->add_flag("--markdown", flags->markdown, "Print the quality of the rungs for a document")
      ->excludes(json);
  command->callback([flags, &action] { action = [flags] { return run_ladder(*flags); }; });
}

}  // namespace levin::cli
