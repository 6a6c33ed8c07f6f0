// levin generate: one prompt, one answer.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <array>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/engine_flags.h"
#include "cli/generation.h"
#include "cli/output.h"
#include "cli/profile_flags.h"
#include "cli/sampling_flags.h"
#include "cli/trace_flags.h"
#include "core/console.h"
#include "core/error.h"
#include "core/files.h"
#include "text/conversation.h"
#include "text/utf8.h"

namespace levin::cli {
namespace {

constexpr const char* kDescription =
    "Generates text: the continuation of a prompt, or the answer to a conversation. Streams to\n"
    "stdout; time to first token, time per token and draft acceptance go to stderr.\n\n"
    "  levin generate models/tiny -p 'It was the best of times,'\n"
    "  levin generate models/tiny --chat -p 'What is 384 + 257?' \\\n"
    "    --speculative-config '{\"method\": \"mtp\", \"num_speculative_tokens\": 3}'\n"
    "  levin generate models/tiny --messages messages.json --json\n";

constexpr std::size_t kMaxPromptBytes = std::size_t{64} << 20;

struct GenerateFlags {
  EngineFlags engine;
  SamplingFlags sampling;
  TraceFlags trace;
  std::string profile;
  std::string prompt;
  std::string prompt_file;
  std::string messages;
  bool chat = false;
  bool no_thinking = false;
  bool show_special_tokens = false;
  bool json = false;
};

// What to answer, read and checked: the context of the chat template, or text to continue.
struct Prompt {
  nlohmann::ordered_json variables;  // null: there is only text
  std::string text;
};

Prompt read_prompt(const GenerateFlags& flags) {
  Prompt prompt;
  if (!flags.messages.empty()) {
    prompt.variables =
        text::parse_conversation(read_text(flags.messages, kMaxPromptBytes), flags.messages);
  } else {
    const bool from_file = !flags.prompt_file.empty();
    prompt.text = from_file ? read_text(flags.prompt_file, kMaxPromptBytes) : flags.prompt;
    text::require_utf8(prompt.text, from_file ? flags.prompt_file : "--prompt");
    if (!flags.chat) return prompt;
    prompt.variables["messages"] = {{{"role", "user"}, {"content", prompt.text}}};
  }
  if (flags.no_thinking) prompt.variables["enable_thinking"] = false;
  return prompt;
}

std::vector<int32_t> prompt_ids(const Prompt& prompt, const engine::Engine& engine) {
  if (!prompt.variables.is_null()) return render_prompt(engine, prompt.variables);
  if (engine.chat_template) {
    spdlog::info("continuing the text as it is; --chat makes it a user's turn");
  }
  return engine.tokenizer->encode(prompt.text);
}

ExitCode run_generate(GenerateFlags& flags, const CLI::App& command) {
  // What is wrong in itself shows before the model is looked for.
  check_sampling_flags(flags.sampling);
  if (flags.no_thinking && !flags.chat && flags.messages.empty()) {
    throw Error({.what = "there is no reasoning to leave out",
                 .where = "--no-thinking",
                 .expected = "--chat or --messages",
                 .found = {},
                 .hint = {}});
  }
  const Prompt prompt = read_prompt(flags);
  check_trace(flags.trace,
              std::array<std::filesystem::path, 4>{flags.engine.model, flags.prompt_file,
                                                   flags.messages, flags.profile});
  const auto profile = apply_profile(flags.profile, command, flags.engine);
  engine::LoadOptions options = load_options(flags.engine);
  size_steps(options, 0);
  const engine::SpeculativeConfig speculation = speculative_config(flags.engine);
  options.runtime.mtp = speculation.num_speculative_tokens > 0;
  engine::Request request;
  options.before_runtime = [&](const engine::Engine& loading) {
    request.prompt = prompt_ids(prompt, loading);
    engine::require_fit(static_cast<int64_t>(request.prompt.size()), context_of(loading, options),
                        flags.messages + flags.prompt_file);
    engine::require_known(flags.sampling.stop_token_ids, loading.model->config.vocab_size,
                          "--stop-token-ids");
    tell_sampling(flags.sampling, loading);
  };
  const auto engine = load_generating_engine(flags.engine.model, options, speculation);
  check_device(profile, *engine);
  start_trace(flags.trace, *engine);

  request.sampling = sampling_params(flags.sampling, engine->default_sampling, flags.engine.seed);
  request.sampling.skip_special_tokens = !flags.show_special_tokens;
  request.speculation = speculation;
  if (!flags.json) {
    request.on_text = [](std::string_view text) {
      std::fwrite(text.data(), 1, text.size(), stdout);
      return std::fflush(stdout) == 0;  // a closed pipe ends the generation
    };
  }
  const engine::Result result = std::move(engine::generate(*engine, {&request, 1}).front());
  if (flags.json) {
    print_json(result_json(result, request.prompt.size()));
  } else {
    fmt::print("\n");
    tell(fmt::format("\n{}\n", summary(result, request.prompt.size())));
  }
  finish_trace(flags.trace, *engine);
  return ExitCode::kDone;
}

}  // namespace

void add_generate(CLI::App& app, Action& action) {
  auto* command = app.add_subcommand("generate", kDescription);
  auto flags = std::make_shared<GenerateFlags>();
  add_engine_flags(*command, flags->engine);
  auto* source = command->add_option_group("prompt", "What to answer");
  source->add_option("-p,--prompt", flags->prompt, "Text");
  source->add_option("--prompt-file", flags->prompt_file, "File with the text");
  source->add_option("--messages", flags->messages,
                     "JSON: an array of turns, or an object with messages, tools, ...");
  source->require_option(1);
  command->add_flag("--chat", flags->chat, "The text is a user's turn, not text to continue");
  command->add_flag("--no-thinking", flags->no_thinking, "Answer without reasoning first");
  command->add_flag("--show-special-tokens", flags->show_special_tokens,
                    "Print special tokens such as </think>");
  add_host_rounds_flag(*command, flags->engine);
  add_sampling_flags(*command, flags->sampling);
  add_profile_flag(*command, flags->profile);
  add_trace_flags(*command, flags->trace);
  command->add_flag("--json", flags->json, "Print one JSON object to stdout, when done");
  command->callback([flags, command, &action] {
    action = [flags, command] { return run_generate(*flags, *command); };
  });
}

}  // namespace levin::cli
