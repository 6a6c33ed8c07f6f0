// levin render: messages -> the prompt the model reads.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/command.h"
#include "cli/output.h"
#include "cli/text_input.h"
#include "core/files.h"
#include "text/chat_template.h"
#include "text/conversation.h"
#include "text/tokenizer.h"

namespace levin::cli {
namespace {

constexpr const char* kDescription =
    "Renders a conversation with the model's chat template: the exact text that the model reads.\n"
    "MESSAGES is a JSON array of messages, or an object with messages, tools, enable_thinking and\n"
    "whatever else the template takes; flags win over the file.\n\n"
    "  echo '[{\"role\": \"user\", \"content\": \"Hello\"}]' > messages.json\n"
    "  levin render models/tiny messages.json --enable-thinking false\n";

struct RenderFlags {
  std::string model;
  std::string messages;
  std::string tools;
  std::string chat_template;
  std::optional<bool> enable_thinking;
  bool no_generation_prompt = false;
  bool json = false;
};

nlohmann::ordered_json read_variables(const RenderFlags& flags) {
  auto variables = text::parse_conversation(read_text(flags.messages), flags.messages);
  if (!flags.tools.empty()) {
    variables["tools"] = text::parse_tools(read_text(flags.tools), flags.tools);
  }
  if (flags.enable_thinking) variables["enable_thinking"] = *flags.enable_thinking;
  if (flags.no_generation_prompt) {
    variables["add_generation_prompt"] = false;
  } else if (!variables.contains("add_generation_prompt")) {
    variables["add_generation_prompt"] = true;
  }
  return variables;
}

text::ChatTemplate load_template(const RenderFlags& flags) {
  if (flags.chat_template.empty()) return text::ChatTemplate::load(flags.model);
  return text::ChatTemplate::parse(read_text(flags.chat_template), flags.chat_template,
                                   flags.model);
}

ExitCode run_render(const RenderFlags& flags) {
  const std::string prompt = load_template(flags).render(read_variables(flags));
  if (!flags.json) {
    print_text(prompt);
    return ExitCode::kDone;
  }
  const nlohmann::ordered_json result = {
      {"prompt", prompt}, {"ids", text::Tokenizer::load(flags.model).encode(prompt)}};
  print_json(result, -1);
  return ExitCode::kDone;
}

}  // namespace

void add_render(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("render", kDescription);
  auto flags = std::make_shared<RenderFlags>();
  command->add_option("MODEL", flags->model, "Folder with the chat template and tokenizer.json")
      ->required()
      ->check(CLI::ExistingDirectory);
  command->add_option("MESSAGES", flags->messages, "JSON file with the conversation")
      ->required()
      ->check(CLI::ExistingFile);
  command->add_option("--enable-thinking", flags->enable_thinking,
                      "true or false: whether the model may reason before it answers");
  command->add_option("--tools", flags->tools, "JSON file with an array of tools")
      ->check(CLI::ExistingFile);
  command->add_flag("--no-generation-prompt", flags->no_generation_prompt,
                    "Do not open the assistant's turn at the end");
  command
      ->add_option("--chat-template", flags->chat_template,
                   "Jinja file to use instead of the model's template")
      ->check(CLI::ExistingFile);
  command->add_flag("--json", flags->json, "Print {\"prompt\", \"ids\"}");
  command->callback([&action, flags] { action = [flags] { return run_render(*flags); }; });
}

}  // namespace levin::cli
