// levin eval: what a model knows, and what a candidate has lost of its baseline.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/command_line.h"
#include "cli/engine_flags.h"
#include "cli/generation.h"
#include "cli/interruption.h"
#include "cli/output.h"
#include "cli/validators.h"
#include "core/files.h"
#include "core/space.h"
#include "evaluate/evaluation.h"
#include "evaluate/more_samples.h"

namespace levin::cli {
namespace {

struct EvalFlags {
  EngineFlags engine;
  std::string baseline;
  std::string baseline_runtime;
  std::vector<std::string> text;
  std::vector<std::string> tasks;
  std::string gate;
  std::string undecided = "fail";
  std::string outputs;
  bool overwrite = false;
  int64_t limit = 0;
  int64_t windows = 0;
  int64_t window = 2048;
  int64_t max_tokens = 512;
  bool json = false;
};

constexpr const char* kDescription =
    "Measures a model on text (perplexity) and on tasks with one right answer (exact match).\n"
    "With a baseline: divergence of the predictions, recovery of the accuracy per task, change of\n"
    "the answers' length, and with a gate the verdict. Exit code 1 when the gate is not passed.\n\n"
    "Example:\n"
    "  levin eval out/w4a4 --baseline models/tiny --text evals/tiny/text/*.jsonl \\\n"
    "      --tasks evals/tiny/tasks --gate recipes/gate.yaml\n\n"
    "A text file is one document, or *.jsonl with a document per line under \"text\".\n"
    "A task file is JSONL, one item per line:\n"
    "  id, task             strings; the id is unique over all files, results are per task\n"
    "  messages             the turns, [{\"role\": \"user\", \"content\": \"...\"}, ...]\n"
    "  tools                list for the chat template, or null (default)\n"
    "  enable_thinking      true (default) or false\n"
    "  expected_completion  the only right answer, whole: reasoning and end-of-turn token "
    "included\n"
    "answer, tool_calls, reasoning and prompt_tokens may describe the item; other keys are "
    "refused.\n"
    "  {\"id\": \"a-1\", \"task\": \"add\", \"enable_thinking\": false, \"messages\":\n"
    "   [{\"role\": \"user\", \"content\": \"What is 2 + 3?\"}], "
    "\"expected_completion\": \"5<|im_end|>\"}\n"
    "  (on one line)\n";

evaluate::Settings settings_of(const EvalFlags& flags) {
  evaluate::Settings settings;
  settings.texts.assign(flags.text.begin(), flags.text.end());
  settings.tasks.assign(flags.tasks.begin(), flags.tasks.end());
  settings.task_limit = flags.limit;
  settings.text = {.window = flags.window, .max_windows = flags.windows};
  settings.task = {.max_tokens = flags.max_tokens};
  return settings;
}

Existing existing(const EvalFlags& flags) {
  return flags.overwrite ? Existing::kReplace : Existing::kRefuse;
}

void check(const EvalFlags& flags) {
  if (flags.text.empty() && flags.tasks.empty()) {
    throw Error({.what = "nothing to evaluate on",
                 .where = {},
                 .expected = "--text, --tasks or both",
                 .found = {},
                 .hint = {}});
  }
  const auto needs_baseline = [&](const std::string& what, const std::string& where) {
    if (!flags.baseline.empty()) return;
    throw Error({.what = what, .where = where, .expected = "--baseline", .found = {}, .hint = {}});
  };
  if (!flags.outputs.empty() && flags.tasks.empty()) {
    throw Error({.what = "there are no answers to write",
                 .where = "--outputs",
                 .expected = "--tasks",
                 .found = {},
                 .hint = {}});
  }
  if (!flags.outputs.empty()) {
    check_output_file(flags.outputs, existing(flags));
    require_space(flags.outputs, kResultBytes);
    std::vector<std::filesystem::path> inputs = {flags.engine.model, flags.baseline, flags.gate};
    inputs.insert(inputs.end(), flags.text.begin(), flags.text.end());
    inputs.insert(inputs.end(), flags.tasks.begin(), flags.tasks.end());
    check_not_an_input(flags.outputs, inputs);
  }
  if (!flags.gate.empty()) needs_baseline("a gate compares with a baseline", "--gate");
  if (!flags.baseline_runtime.empty()) {
    needs_baseline("there is no baseline to run", "--baseline-runtime");
  }
}

std::unique_ptr<engine::Engine> load(const std::string& folder, const EngineFlags& flags,
                                     const evaluate::Material& material,
                                     const evaluate::TextOptions& text) {
  engine::LoadOptions options = load_options(flags);
  if (options.runtime.max_model_len == 0) {
    options.runtime.max_model_len = evaluate::sequence_length(folder, material);
  }
  options.runtime.mtp = false;
  options.before_runtime = [&](const engine::Engine& loading) {
    const int64_t length = context_of(loading, options);
    evaluate::require_fit(material.items, length);
    for (const evaluate::TokenStream& stream : material.streams) {
      evaluate::require_fit(stream, text, length);
    }
  };
  return engine::load_engine(folder, options);
}

// One line per item: what the model said beside what was expected.
std::string output_lines(std::span<const evaluate::ItemResult> results,
                         std::span<const evaluate::TaskItem> items) {
  std::string lines;
  for (std::size_t i = 0; i < results.size(); ++i) {
    const nlohmann::ordered_json line = {
        {"id", results[i].id},         {"correct", results[i].correct},
        {"loops", results[i].loops},   {"output_tokens", results[i].output_tokens},
        {"output", results[i].output}, {"expected", items[i].expected}};
    // Outputs cut inside a character are not UTF-8.
    lines += line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + '\n';
  }
  return lines;
}

struct Outcome {
  std::string candidate, baseline;  // folders
  std::string runtime, baseline_runtime;
  double confidence = 0.95;
  evaluate::Evaluation evaluation;
  std::vector<evaluate::ItemResult> baseline_items;
  std::optional<evaluate::GateResult> gate;
  std::string output_lines;  // of --outputs
};

void print_json(const Outcome& outcome) {
  nlohmann::ordered_json texts = nlohmann::ordered_json::array();
  for (const evaluate::TextScore& text : outcome.evaluation.texts) {
    texts.push_back(to_json(text, outcome.confidence));
  }
  nlohmann::ordered_json json = {{"model", outcome.candidate}, {"runtime", outcome.runtime}};
  if (!outcome.baseline.empty()) {
    json["baseline"] = outcome.baseline;
    json["baseline_runtime"] = outcome.baseline_runtime;
  }
  json["texts"] = std::move(texts);
  if (!outcome.evaluation.items.empty()) {
    json["tasks"] = evaluate::to_json(
        std::span<const evaluate::ItemResult>(outcome.evaluation.items), outcome.baseline_items);
  }
  if (outcome.gate) {
    json["gate"] = to_json(*outcome.gate);
    json["gate"]["to_decide"] = how_to_decide(*outcome.gate, command_line());
  }
  cli::print_json(json);
}

void print_tables(const Outcome& outcome) {
  fmt::print("model     {}\n", outcome.candidate);
  if (!outcome.baseline.empty()) fmt::print("baseline  {}\n", outcome.baseline);
  fmt::print("runtime   {}\n", outcome.runtime);
  if (!outcome.baseline.empty() && outcome.baseline_runtime != outcome.runtime) {
    fmt::print("          baseline: {}\n", outcome.baseline_runtime);
  }
  const std::string tables[] = {text_table(outcome.evaluation.texts, outcome.confidence),
                                task_table(outcome.evaluation.items, outcome.baseline_items),
                                outcome.gate ? gate_table(*outcome.gate) : ""};
  for (const std::string& table : tables) {
    if (!table.empty()) fmt::print("\n{}", table);
  }
  if (!outcome.gate) return;
  fmt::print("\n{}\n", explain(*outcome.gate));
  const std::string how = how_to_decide(*outcome.gate, command_line());
  if (!how.empty()) fmt::print("{}\n", how);
}

Outcome evaluate_all(const EvalFlags& flags) {
  const evaluate::Settings settings = settings_of(flags);
  const std::string& model = flags.engine.model;
  std::optional<evaluate::Gate> gate;
  if (!flags.gate.empty()) {
    gate = evaluate::load_gate(flags.gate);
    require_data(*gate, !flags.tasks.empty(), !flags.text.empty());
  }
  const evaluate::Material material = evaluate::prepare(model, settings);

  Outcome outcome{.candidate = model,
                  .baseline = flags.baseline,
                  .runtime = {},
                  .baseline_runtime = {},
                  .evaluation = {},
                  .baseline_items = {},
                  .gate = {},
                  .output_lines = {}};
  if (gate) outcome.confidence = gate->confidence;
  std::unique_ptr<engine::Engine> baseline;
  if (!flags.baseline.empty()) {
    require_same(evaluate::prepare(flags.baseline, settings), material);
    EngineFlags engine = flags.engine;
    if (!flags.baseline_runtime.empty()) engine.runtime = flags.baseline_runtime;
    baseline = load(flags.baseline, engine, material, settings.text);
    outcome.baseline_runtime = baseline->runtime->description();
  }
  const auto candidate = load(model, flags.engine, material, settings.text);
  outcome.runtime = candidate->runtime->description();
  outcome.evaluation = evaluate::evaluate(*candidate, baseline.get(), material, settings);
  if (baseline && !material.items.empty()) {
    outcome.baseline_items = evaluate::answer(*baseline, material, settings);
  }
  if (gate) {
    evaluate::Evaluation base;
    base.items = outcome.baseline_items;
    outcome.gate = judge(*gate, compare(base, outcome.evaluation), material);
  }
  if (!flags.outputs.empty()) {
    outcome.output_lines = output_lines(outcome.evaluation.items, material.items);
  }
  return outcome;
}

ExitCode run_eval(const EvalFlags& flags) {
  check(flags);
  when_interrupted("nothing was kept: the same command begins anew");
  const Outcome outcome = evaluate_all(flags);
  const auto write = [&] {
    if (flags.outputs.empty()) return;
    write_text(flags.outputs, outcome.output_lines, existing(flags));
  };
  write_and_print(write, [&] { flags.json ? print_json(outcome) : print_tables(outcome); });
  for (const evaluate::TextScore& text : outcome.evaluation.texts) {
    if (std::isfinite(text.perplexity())) continue;
    spdlog::error("the perplexity of {} is not a number: the model is broken", text.kind);
    return ExitCode::kNo;
  }
  if (!outcome.gate || outcome.gate->verdict == evaluate::Verdict::kPass) return ExitCode::kDone;
  const bool undecided = outcome.gate->verdict == evaluate::Verdict::kUndecided;
  return undecided && flags.undecided == "pass" ? ExitCode::kDone : ExitCode::kNo;
}

}  // namespace

void add_eval(CLI::App& app, Action& action) {
  auto flags = std::make_shared<EvalFlags>();
  flags->engine.max_num_seqs = 16;
  CLI::App* command = app.add_subcommand("eval", kDescription);
  add_engine_flags(*command, flags->engine);
  command->remove_option(command->get_option("--speculative-config"));
  command->add_option("--baseline", flags->baseline, "Folder of the model to compare with");
  command
      ->add_option("--baseline-runtime", flags->baseline_runtime,
                   "What runs the baseline (default: as --runtime); MODEL as its own baseline on "
                   "the reference shows what the fast runtime changes")
      ->check(CLI::IsMember({"reference", "fast"}));
  command->add_option("--text", flags->text,
                      "Text files, plain or JSONL with \"text\"; a file is one kind of text");
  command->add_option("--tasks", flags->tasks, "Task files (JSONL, see above), or folders of them");
  CLI::Option* gate =
      command->add_option("--gate", flags->gate, "Bounds to keep to, see recipes/gate.yaml");
  command
      ->add_option("--undecided", flags->undecided,
                   "What a gate that too few items cannot decide counts as")
      ->check(CLI::IsMember({"fail", "pass"}))
      ->needs(gate)
      ->capture_default_str();
  command->add_option("--limit", flags->limit, "Items per task (default: all)")->check(at_least(1));
  command->add_option("--windows", flags->windows, "Windows per text (default: all)")
      ->check(at_least(1));
  command->add_option("--window", flags->window, "Predictions per window")
      ->check(at_least(1))
      ->capture_default_str();
  command->add_option("--max-tokens", flags->max_tokens, "Longest answer")
      ->check(at_least(1))
      ->capture_default_str();
  command->add_option("--outputs", flags->outputs, "Write every answer to this JSONL file");
  command->add_flag("--overwrite", flags->overwrite, "Replace the file of --outputs");
  command->add_flag("--json", flags->json, "Print one JSON object");
  command->callback([flags, &action] { action = [flags] { return run_eval(*flags); }; });
}

}  // namespace levin::cli
