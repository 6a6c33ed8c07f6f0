// Entry point of the `levin` program: parses the command line, runs the subcommand and turns errors
// into messages and exit codes.
#pragma once

namespace levin::cli {

int run(int argc, char** argv);

}  // namespace levin::cli
