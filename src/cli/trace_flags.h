// --trace and --trace-steps: a timeline of the last steps, for Perfetto and Chrome.
#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <span>
#include <string>

#include "engine/engine.h"

namespace levin::cli {

struct TraceFlags {
  std::string file;  // empty: none
  int steps = 64;
  bool overwrite = false;
};

void add_trace_flags(CLI::App& command, TraceFlags& flags);
// Throws Error when the file could not be written or would replace or join one of `inputs` (files
// and folders that the command reads; empty ones do not count), before anything long begins.
void check_trace(const TraceFlags& flags, std::span<const std::filesystem::path> inputs);
// From now on the engine's schedulers record.
void start_trace(const TraceFlags& flags, engine::Engine& engine);
// Writes the file, says so on stderr, and where threads waited.
void finish_trace(const TraceFlags& flags, engine::Engine& engine);

}  // namespace levin::cli
