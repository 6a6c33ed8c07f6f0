#include "cli/text_input.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "core/error.h"
#include "core/files.h"
#include "text/utf8.h"

namespace levin::cli {
namespace {

// Token ids and work space take about ten times as much memory.
constexpr std::size_t kMaxBytes = std::size_t{256} << 20;

std::string read_standard_input() {
  std::string text;
  char buffer[1 << 16];
  for (std::size_t count = 0; (count = std::fread(buffer, 1, sizeof buffer, stdin)) > 0;) {
    text.append(buffer, count);
    if (text.size() > kMaxBytes) {
      throw Error({.what = "text is too long",
                   .where = "standard input",
                   .expected = fmt::format("at most {} bytes", kMaxBytes),
                   .found = {},
                   .hint = {}});
    }
  }
  if (std::ferror(stdin) != 0) {
    throw Error({.what = fmt::format("cannot read: {}", std::strerror(errno)),
                 .where = "standard input",
                 .expected = {},
                 .found = {},
                 .hint = {}});
  }
  return text;
}

}  // namespace

void add_text_input(CLI::App& command, TextInput& input) {
  input.given = command.add_option("-p,--prompt", input.text, "The text itself");
  command.add_option("--file", input.file, "File that holds the text")
      ->check(CLI::ExistingFile)
      ->excludes(input.given);
}

std::string read_input(const TextInput& input) {
  if (input.given->count() > 0) {
    text::require_utf8(input.text, "--prompt");
    return input.text;
  }
  const bool from_file = !input.file.empty();
  std::string text = from_file ? read_text(input.file, kMaxBytes) : read_standard_input();
  text::require_utf8(text, from_file ? input.file : "standard input");
  return text;
}

}  // namespace levin::cli
