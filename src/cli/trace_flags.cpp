#include "cli/trace_flags.h"

#include <spdlog/spdlog.h>

#include "core/files.h"
#include "core/space.h"
#include "engine/timeline.h"

namespace levin::cli {
namespace {

Existing existing(const TraceFlags& flags) {
  return flags.overwrite ? Existing::kReplace : Existing::kRefuse;
}

}  // namespace

void add_trace_flags(CLI::App& command, TraceFlags& flags) {
  auto* file = command.add_option(
      "--trace", flags.file,
      "File for a timeline of the last steps, phase by phase and thread by thread; open it in "
      "ui.perfetto.dev or chrome://tracing");
  command.add_option("--trace-steps", flags.steps, "Steps that the timeline keeps")
      ->check(CLI::Range(1, 1 << 16))
      ->needs(file)
      ->capture_default_str();
  command.add_flag("--overwrite", flags.overwrite, "Replace the file of --trace")->needs(file);
}

void check_trace(const TraceFlags& flags, std::span<const std::filesystem::path> inputs) {
  if (flags.file.empty()) return;
  check_output_file(flags.file, existing(flags));
  require_space(flags.file, kResultBytes);
  check_not_an_input(flags.file, inputs);
}

void start_trace(const TraceFlags& flags, engine::Engine& engine) {
  if (flags.file.empty()) return;
  engine.timeline = std::make_unique<engine::Timeline>(*engine.runtime, flags.steps);
  if (engine.timeline->phases() == nullptr) {
    spdlog::warn("this runtime records no phases: the timeline has steps and requests only");
  }
}

void finish_trace(const TraceFlags& flags, engine::Engine& engine) {
  if (flags.file.empty()) return;
  write_trace(*engine.timeline, engine.folder.string(), flags.file, existing(flags));
  spdlog::info("{}: the last {} steps", flags.file, engine.timeline->steps().size());
  if (const runtime::PhaseRecorder* phases = engine.timeline->phases()) {
    const std::string waiting = engine::waiting_text(*phases);
    if (!waiting.empty()) spdlog::info("{}", waiting);
  }
}

}  // namespace levin::cli
