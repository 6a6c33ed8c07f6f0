// levin detokenize: token ids -> text.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/output.h"
#include "cli/text_input.h"
#include "core/files.h"
#include "engine/generate.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace levin::cli {
namespace {

constexpr const char* kDescription =
    "Turns token ids back into text, byte for byte. The ids stand on the command line or, as a "
    "JSON\n"
    "array or as levin tokenize --json prints them, in a file.\n\n"
    "  levin detokenize models/tiny 71 602 110\n"
    "  levin detokenize models/tiny --file ids.json --skip-special\n";

struct DetokenizeFlags {
  std::string model;
  std::vector<int32_t> ids;
  std::string file;
  bool skip_special = false;
  bool json = false;
};

std::vector<int32_t> read_ids(const std::string& path) {
  nlohmann::json document = read_json(path);
  if (document.is_object()) document = document.value("ids", nlohmann::json());
  std::vector<int32_t> ids;
  bool good = document.is_array();
  for (std::size_t i = 0; good && i < document.size(); ++i) {
    const auto& id = document[i];
    good = id.is_number_integer() && id >= 0 && id <= INT32_MAX;
    if (good) ids.push_back(id.get<int32_t>());
  }
  if (!good) {
    throw Error({.what = "file does not hold token ids",
                 .where = path,
                 .expected = "[1, 2, 3] or {\"ids\": [1, 2, 3]}",
                 .found = document.dump().substr(0, 200),
                 .hint = {}});
  }
  return ids;
}

ExitCode run_detokenize(const DetokenizeFlags& flags) {
  const std::vector<int32_t> ids = flags.file.empty() ? flags.ids : read_ids(flags.file);
  const text::Tokenizer tokenizer = text::Tokenizer::load(flags.model);
  engine::require_known(ids, tokenizer.vocab_size(), flags.file.empty() ? "IDS" : flags.file);
  const std::string bytes = tokenizer.decode(ids, flags.skip_special);
  if (flags.json) {
    // JSON cannot hold half a character: it becomes U+FFFD.
    const nlohmann::json result = {{"text", text::to_valid_utf8(bytes)}};
    print_json(result, -1);
  } else {
    print_text(bytes);
  }
  return ExitCode::kDone;
}

}  // namespace

void add_detokenize(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("detokenize", kDescription);
  auto flags = std::make_shared<DetokenizeFlags>();
  command->add_option("MODEL", flags->model, "Folder with tokenizer.json")
      ->required()
      ->check(CLI::ExistingDirectory);
  CLI::Option* ids = command->add_option("IDS", flags->ids, "Token ids");
  command->add_option("--file", flags->file, "File that holds the ids")
      ->check(CLI::ExistingFile)
      ->excludes(ids);
  command->add_flag("--skip-special", flags->skip_special, "Leave special tokens out");
  command->add_flag("--json", flags->json, "Print {\"text\"}");
  command->callback([&action, flags, ids, command] {
    if (ids->count() == 0 && flags->file.empty()) {
      throw CLI::RequiredError(command->get_name() + ": IDS or --file");
    }
    action = [flags] { return run_detokenize(*flags); };
  });
}

}  // namespace levin::cli
