// levin chat: a conversation on the terminal.
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/command.h"
#include "cli/engine_flags.h"
#include "cli/generation.h"
#include "cli/sampling_flags.h"
#include "core/console.h"
#include "text/printable.h"
#include "text/utf8.h"

namespace levin::cli {
namespace {

constexpr const char* kDescription =
    "Talks to a model on the terminal. Ctrl-C stops an answer, Ctrl-D or /quit leaves; /help "
    "lists\n"
    "the other commands.\n\n"
    "  levin chat models/tiny\n"
    "  levin chat models/tiny --system 'Answer briefly.' --no-thinking\n";

constexpr const char* kHelp =
    "/reset          start a new conversation\n"
    "/think on|off   reasoning before the answer\n"
    "/quit           leave (or Ctrl-D)\n"
    "Ctrl-C          stop the answer";

constexpr std::string_view kEndOfReasoning = "</think>";
constexpr const char* kDim = "\033[2m";
constexpr const char* kNormal = "\033[0m";

struct ChatFlags {
  EngineFlags engine;
  SamplingFlags sampling;
  std::string system;
  bool no_thinking = false;
};

std::atomic<bool> interrupted = false;

// Ctrl-C sets `interrupted` while an object lives, and interrupts reading a line.
class InterruptGuard {
 public:
  InterruptGuard() {
    struct sigaction action = {};
    action.sa_handler = [](int) { interrupted.store(true); };
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, &before_);
  }
  ~InterruptGuard() { sigaction(SIGINT, &before_, nullptr); }
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

 private:
  struct sigaction before_ = {};
};

constexpr std::size_t kMaxLineBytes = std::size_t{64} << 20;

// The next line without its end; nothing at the end of the input.
std::optional<std::string> read_line() {
  std::string text;
  while (true) {
    errno = 0;
    const int c = std::getc(stdin);
    if (c == EOF && errno == EINTR) {
      std::clearerr(stdin);
      tell(fmt::format("\n(Ctrl-D or /quit leaves)\n> "));
      text.clear();
      continue;
    }
    if (c == EOF && text.empty()) return std::nullopt;
    if (c == EOF || c == '\n') break;
    text += static_cast<char>(c);
    if (text.size() > kMaxLineBytes) {
      throw Error({.what = "line is too long",
                   .where = "standard input",
                   .expected = fmt::format("at most {} bytes", kMaxLineBytes),
                   .found = {},
                   .hint = {}});
    }
  }
  if (!text.empty() && text.back() == '\r') text.pop_back();
  return text;
}

// Prints an answer as it comes, the reasoning dimmed.
class AnswerPrinter {
 public:
  explicit AnswerPrinter(bool reasoning)
      : reasoning_(reasoning), dim_(reasoning && isatty(STDOUT_FILENO) == 1) {
    if (dim_) put(kDim);
  }

  // The token </think> never comes in two pieces.
  void print(std::string_view piece) {
    const std::size_t end = reasoning_ ? piece.find(kEndOfReasoning) : std::string_view::npos;
    if (end == std::string_view::npos) return put(piece);
    put(piece.substr(0, end));
    leave_reasoning();
    put(piece.substr(end + kEndOfReasoning.size()));
  }

  void finish() {
    leave_reasoning();
    put("\n");
  }

 private:
  void leave_reasoning() {
    if (dim_) put(kNormal);
    reasoning_ = dim_ = false;
  }
  static void put(std::string_view text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  }

  bool reasoning_;
  bool dim_;
};

class Conversation {
 public:
  Conversation(engine::Engine& engine, const ChatFlags& flags,
               const engine::SpeculativeConfig& speculation)
      : engine_(engine),
        system_(flags.system),
        sampling_(sampling_params(flags.sampling, engine.default_sampling, flags.engine.seed)),
        speculation_(speculation),
        thinking_(!flags.no_thinking) {
    if (const auto end = engine.tokenizer->find(kEndOfReasoning)) {
      sampling_.shown_special_tokens = {*end};
    }
    reset();
  }

  // False when the user wants to leave.
  bool handle(const std::string& line) {
    if (line.empty()) return true;
    if (line == "/quit" || line == "/exit") return false;
    if (line == "/reset") {
      reset();
    } else if (line == "/think on" || line == "/think off") {
      thinking_ = line == "/think on";
    } else if (line.front() == '/') {
      tell(fmt::format("{}\n", kHelp));
    } else {
      answer(line);
    }
    return true;
  }

 private:
  void reset() {
    messages_ = nlohmann::ordered_json::array();
    if (!system_.empty()) {
      messages_.push_back({{"role", "system"}, {"content", system_}});
    }
  }

  void answer(const std::string& line) {
    messages_.push_back({{"role", "user"}, {"content", line}});
    try {
      text::require_utf8(line, "standard input");
      generate_answer();
    } catch (const Error& error) {
      messages_.erase(messages_.size() - 1);
      if (error.exit_code() != ExitCode::kBadInput) throw;
      tell(fmt::format("{}\n(/reset starts a new conversation)\n",
                       text::printable(error.what(), "\n")));
    }
  }

  void generate_answer() {
    engine::Request request;
    request.prompt =
        render_prompt(engine_, {{"messages", messages_}, {"enable_thinking", thinking_}});
    request.sampling = sampling_;
    ++*sampling_.seed;  // so that asking again may give another answer
    request.speculation = speculation_;
    AnswerPrinter printer(thinking_);
    request.on_text = [&](std::string_view text) {
      printer.print(text);
      return true;
    };
    request.on_tokens = [](std::span<const int32_t>) { return !interrupted.load(); };
    interrupted.store(false);
    const engine::Result result = std::move(engine::generate(engine_, {&request, 1}).front());
    interrupted.store(false);
    printer.finish();
    remember(result.text);
    tell(fmt::format("{}\n", summary(result, request.prompt.size())));
  }

  // The template decides how much of the reasoning later turns see.
  void remember(const std::string& text) {
    nlohmann::ordered_json message = {{"role", "assistant"}};
    const std::size_t end = thinking_ ? text.find(kEndOfReasoning) : std::string::npos;
    if (end != std::string::npos) {
      message["reasoning_content"] = text.substr(0, end);
      message["content"] = text.substr(end + kEndOfReasoning.size());
    } else {
      message["content"] = thinking_ ? "" : text;
      if (thinking_) message["reasoning_content"] = text;
    }
    messages_.push_back(std::move(message));
  }

  engine::Engine& engine_;
  std::string system_;
  engine::SamplingParams sampling_;
  engine::SpeculativeConfig speculation_;
  bool thinking_;
  nlohmann::ordered_json messages_;
};

ExitCode run_chat(const ChatFlags& flags) {
  // What is wrong in itself shows before the model is looked for.
  check_sampling_flags(flags.sampling);
  text::require_utf8(flags.system, "--system");
  engine::LoadOptions options = load_options(flags.engine);
  size_steps(options, 0);
  const engine::SpeculativeConfig speculation = speculative_config(flags.engine);
  options.runtime.mtp = speculation.num_speculative_tokens > 0;
  options.before_runtime = [&](const engine::Engine& loading) {
    require_chat_template(loading);
    engine::require_known(flags.sampling.stop_token_ids, loading.model->config.vocab_size,
                          "--stop-token-ids");
    tell_sampling(flags.sampling, loading);
  };
  const auto engine = load_generating_engine(flags.engine.model, options, speculation);
  Conversation conversation(*engine, flags, speculation);
  const InterruptGuard guard;
  const bool terminal = isatty(STDIN_FILENO) == 1;
  while (true) {
    if (terminal) tell(fmt::format("> "));
    const auto line = read_line();
    if (!line || !conversation.handle(*line)) return ExitCode::kDone;
  }
}

}  // namespace

void add_chat(CLI::App& app, Action& action) {
  auto* command = app.add_subcommand("chat", kDescription);
  auto flags = std::make_shared<ChatFlags>();
  add_engine_flags(*command, flags->engine);
  command->add_option("--system", flags->system, "The system turn");
  command->add_flag("--no-thinking", flags->no_thinking, "Answer without reasoning first");
  add_sampling_flags(*command, flags->sampling);
  command->callback([flags, &action] { action = [flags] { return run_chat(*flags); }; });
}

}  // namespace levin::cli
