// Text that a command works on: given on the command line, in a file or on standard input; and text
// that it prints.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>

namespace levin::cli {

struct TextInput {
  CLI::Option* given = nullptr;  // whether -p was, even with empty text
  std::string text;
  std::string file;
};

// Declares -p and --file, of which at most one may be used; `input` must outlive the parse.
void add_text_input(CLI::App& command, TextInput& input);

// The text, byte for byte; standard input when neither flag was used. Throws Error naming the flag
// or the file when it is not UTF-8.
std::string read_input(const TextInput& input);

}  // namespace levin::cli
