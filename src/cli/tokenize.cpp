// levin tokenize: text -> token ids.
#include <fmt/format.h>

#include <cstdio>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/output.h"
#include "cli/text_input.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace levin::cli {
namespace {

constexpr const char* kDescription =
    "Turns text into token ids, with the tokenizer.json of the model's folder. The text comes "
    "from\n"
    "-p, from --file or from standard input, and is taken as it is: nothing is put before or "
    "behind\n"
    "it. Added tokens in it (<|im_end|>) become their ids unless --no-special.\n\n"
    "  levin tokenize models/tiny -p 'Hello, world!'\n"
    "  levin tokenize models/tiny --file README.md --json > ids.json\n";

struct TokenizeFlags {
  std::string model;
  TextInput input;
  bool no_special = false;
  bool json = false;
};

ExitCode run_tokenize(const TokenizeFlags& flags) {
  const std::string text = read_input(flags.input);
  const text::Tokenizer tokenizer = text::Tokenizer::load(flags.model);
  const std::vector<int32_t> ids = tokenizer.encode(text, !flags.no_special);
  if (!flags.json) {
    fmt::print("{}\n", fmt::join(ids, " "));
    return ExitCode::kDone;
  }
  nlohmann::ordered_json pieces = nlohmann::ordered_json::array();
  for (const int32_t id : ids) pieces.push_back(text::to_valid_utf8(tokenizer.bytes_of(id)));
  const nlohmann::ordered_json result = {
      {"count", ids.size()}, {"ids", ids}, {"pieces", std::move(pieces)}};
  print_json(result, -1);
  return ExitCode::kDone;
}

}  // namespace

void add_tokenize(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("tokenize", kDescription);
  auto flags = std::make_shared<TokenizeFlags>();
  command->add_option("MODEL", flags->model, "Folder with tokenizer.json")
      ->required()
      ->check(CLI::ExistingDirectory);
  add_text_input(*command, flags->input);
  command->add_flag("--no-special", flags->no_special,
                    "Take added tokens in the text for plain text");
  command->add_flag("--json", flags->json, "Print {\"count\", \"ids\", \"pieces\"}");
  command->callback([&action, flags] { action = [flags] { return run_tokenize(*flags); }; });
}

}  // namespace levin::cli
