#include "cli/main.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <new>
#include <string_view>
#include <system_error>

#include "cli/command.h"
#include "cli/command_line.h"
#include "cli/interruption.h"
#include "cli/logging.h"
#include "cli/output.h"
#include "cli/suggestion.h"
#include "core/console.h"
#include "core/error.h"
#include "text/printable.h"

extern char** environ;

namespace levin::cli {
namespace {

constexpr const char* kDescription =
    "levin takes an NVIDIA Nemotron 3.x hybrid checkpoint from its BF16 Hugging Face folder to "
    "the\n"
    "fastest trustworthy deployment on one machine: it quantizes, proves that quality held, and\n"
    "measures every step against a control.\n\n"
    "Start with:  levin ladder models/tiny -o out      (minutes)\n"
    "             levin serve models/tiny              (seconds)\n"
    "levin COMMAND --help teaches each one.\n";

// One line for each command, which has the rest in its own help.
class BriefFormatter : public CLI::Formatter {
 public:
  std::string make_subcommand(const CLI::App* command) const override {
    std::string brief = command->get_description();
    std::replace(brief.begin(), brief.end(), '\n', ' ');
    const std::size_t end = brief.find(". ");
    brief = brief.substr(0, std::min(end, brief.find(": ")));
    return fmt::format("  {:<12} {}\n", command->get_name(), brief);
  }
};

// The one variable that means something: levin serve reads it.
constexpr std::string_view kKnownVariable = "LEVIN_API_KEY=";

// No other variable LEVIN_* means anything; one that is set was meant to, so it must not be
// ignored.
void refuse_unknown_environment() {
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    if (text.starts_with("LEVIN_") && !text.starts_with(kKnownVariable)) {
      throw Error({.what = "unknown environment variable",
                   .where = std::string(text.substr(0, text.find('='))),
                   .expected = {},
                   .found = {},
                   .hint = "levin is configured by flags, and the key of levin serve by "
                           "LEVIN_API_KEY; unset it and see levin --help"});
    }
  }
}

// A mapped file has shrunk, or its disk has failed.
extern "C" void report_lost_map(int /*signal*/) {
  constexpr std::string_view kMessage =
      "levin: error: a file that is being read became shorter, or its disk failed\n"
      "  hint:     is it still being downloaded or copied?\n";
  (void)!::write(STDERR_FILENO, kMessage.data(), kMessage.size());
  ::_exit(static_cast<int>(ExitCode::kMachine));
}

// A standard stream that is closed stays one that nothing can be read from or written to, but its
// number must not become that of a file which is opened later.
void occupy_closed_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(stream, F_GETFD) >= 0) continue;
    (void)!::open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
}

// `--gate ""` is a script's variable that was never set, not a wish to do without. NaN would pass
// every check of a range.
void refuse_void_values(CLI::App& app) {
  const auto not_void = [](const std::string& text) {
    return text.empty() ? std::string("the value is empty") : std::string();
  };
  const auto not_nan = [](const std::string& text) {
    return std::isnan(std::strtod(text.c_str(), nullptr)) ? text + " is not a number"
                                                          : std::string();
  };
  for (CLI::App* command : app.get_subcommands({})) {
    for (CLI::Option* option : command->get_options()) {
      if (option->get_expected_max() > 0 && !option->get_positional()) {
        option->check(CLI::Validator(not_void, ""));
        if (option->get_type_name().starts_with("FLOAT")) {
          option->check(CLI::Validator(not_nan, ""));
        }
      }
    }
  }
}

// CLI11 would only say that some command is required.
void refuse_unknown_command(const CLI::App& app, int argc, char** argv) {
  if (argc < 2 || argv[1][0] == '-') return;
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
  if (std::find(names.begin(), names.end(), argv[1]) != names.end()) return;
  const std::string meant = nearest(argv[1], names);
  throw Error({.what = "unknown command",
               .where = argv[1],
               .expected = fmt::format("{}", fmt::join(names, ", ")),
               .found = {},
               .hint = meant.empty() ? "levin --help" : "levin " + meant});
}

// What the first unknown flag resembles, or where the flags are listed.
std::string hint_for(const CLI::App& app, const CLI::ParseError& error) {
  const std::vector<CLI::App*> commands = app.get_subcommands();
  const std::string help =
      commands.empty() ? "levin --help" : fmt::format("levin {} --help", commands[0]->get_name());
  const std::vector<std::string> unknown = app.remaining(true);
  if (dynamic_cast<const CLI::ExtrasError*>(&error) == nullptr || unknown.empty()) return help;
  std::vector<std::string> flags;
  for (const CLI::App* command : commands) {
    for (const CLI::Option* option : command->get_options()) {
      for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
    }
  }
  const std::string meant = nearest(unknown[0].substr(0, unknown[0].find('=')), flags);
  return meant.empty() ? help : fmt::format("did you mean {}?", meant);
}

// What CLI11 says of a wrong command line, as everything else is said.
Error usage_error(const CLI::App& app, const CLI::ParseError& error) {
  std::string what = error.what();
  while (!what.empty() && std::isspace(static_cast<unsigned char>(what.back())) != 0) {
    what.pop_back();
  }
  const auto is_lower = [](char c) { return c >= 'a' && c <= 'z'; };
  if (what.size() > 1 && what[0] >= 'A' && what[0] <= 'Z' &&
      (is_lower(what[1]) || what[1] == ' ')) {
    what[0] = static_cast<char>(what[0] - 'A' + 'a');
  }
  return Error({.what = std::move(what),
                .where = {},
                .expected = {},
                .found = {},
                .hint = hint_for(app, error)});
}

int report(std::string_view message, ExitCode code) {
  // Bytes of hostile files must not steer a terminal.
  if (!message.empty()) tell(fmt::format("levin: error: {}\n", text::printable(message, "\n")));
  return static_cast<int>(code);
}

// Runs `function` and what it left to be written; every failure becomes a message and an exit code.
int guard(const std::function<int()>& function) {
  try {
    const int code = function();
    check_output();
    return code;
  } catch (const Error& e) {
    return report(e.what(), e.exit_code());
  } catch (const std::bad_alloc&) {
    return report("out of memory: the model or the input is too large for this machine",
                  ExitCode::kMachine);
  } catch (const std::filesystem::filesystem_error& e) {  // of a path that the user gave
    const bool disk = e.code() == std::errc::no_space_on_device ||
                      e.code() == std::errc::io_error ||
                      e.code() == std::errc::read_only_file_system;
    return report(fmt::format("{}\n  where:    {}", e.code().message(), e.path1().string()),
                  disk ? ExitCode::kMachine : ExitCode::kBadInput);
  } catch (const std::exception& e) {
    try {
      check_output();  // fmt throws when a pipe is closed or a disk full
    } catch (const Error& output) {
      return report(output.what(), output.exit_code());
    }
    return report(fmt::format("internal error: {}", e.what()), ExitCode::kMachine);
  }
}

}  // namespace

int run(int argc, char** argv) {
  // Both become errors of the write.
  occupy_closed_streams();
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  std::signal(SIGBUS, report_lost_map);
  report_interruptions();
  remember_command_line(argc, argv);
  CLI::App app{kDescription, "levin"};
  app.formatter(std::make_shared<BriefFormatter>());
  app.require_subcommand(1);
  app.set_version_flag("--version", "levin " LEVIN_VERSION);
  std::string log_level = "info";
  app.add_option("--log-level", log_level, "What to log on stderr")
      ->check(CLI::IsMember({"trace", "debug", "info", "warning", "error", "off"}))
      ->capture_default_str();
  app.fallthrough();

  Action action;
  add_ladder(app, action);
  add_inspect(app, action);
  add_quantize(app, action);
  add_eval(app, action);
  add_generate(app, action);
  add_chat(app, action);
  add_serve(app, action);
  add_bench(app, action);
  add_tune(app, action);
  add_logits(app, action);
  add_tokenize(app, action);
  add_detokenize(app, action);
  add_render(app, action);

  refuse_void_values(app);

  return guard([&] {
    refuse_unknown_command(app, argc, argv);
    try {
      app.parse(argc, argv);
    } catch (const CLI::ParseError& e) {
      if (e.get_exit_code() == 0) return app.exit(e);  // --help
      throw usage_error(app, e);
    }
    set_up_logging(log_level);
    refuse_unknown_environment();
    return static_cast<int>(action());
  });
}

}  // namespace levin::cli
