// How a subcommand plugs into the program: one file per subcommand defines one add_* function that
// declares the flags and, when the user chose it, leaves the work in `action`.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

#include "core/error.h"

namespace levin::cli {

// Runs after the whole command line has been parsed and checked. Throws levin::Error.
using Action = std::function<ExitCode()>;

void add_bench(CLI::App& app, Action& action);
void add_chat(CLI::App& app, Action& action);
void add_detokenize(CLI::App& app, Action& action);
void add_eval(CLI::App& app, Action& action);
void add_generate(CLI::App& app, Action& action);
void add_inspect(CLI::App& app, Action& action);
void add_ladder(CLI::App& app, Action& action);
void add_logits(CLI::App& app, Action& action);
void add_quantize(CLI::App& app, Action& action);
void add_render(CLI::App& app, Action& action);
void add_serve(CLI::App& app, Action& action);
void add_tokenize(CLI::App& app, Action& action);
void add_tune(CLI::App& app, Action& action);

}  // namespace levin::cli
