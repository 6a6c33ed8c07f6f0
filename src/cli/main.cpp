#include "cli/main.h"

#include <fmt/format.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string_view>

#include "cli/command.h"
#include "core/error.h"

extern char** environ;

namespace levin::cli {
namespace {

constexpr const char* kDescription =
    "levin takes an NVIDIA Nemotron 3.x hybrid checkpoint from its BF16 Hugging Face folder to "
    "the\n"
    "fastest trustworthy deployment on one machine: it quantizes, proves that quality held, and\n"
    "measures every step against a control.\n\n"
    "Start with:  levin ladder models/tiny -o out\n";

// No variable LEVIN_* means anything; one that is set was meant to, so it must not be ignored.
void refuse_unknown_environment() {
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    if (text.starts_with("LEVIN_")) {
      throw Error({.what = "unknown environment variable",
                   .where = std::string(text.substr(0, text.find('='))),
                   .expected = {},
                   .found = {},
                   .hint = "levin is configured by flags only; unset it and see levin --help"});
    }
  }
}

// Logs go to stderr; stdout belongs to results.
void set_up_logging(const std::string& level) {
  auto logger = spdlog::stderr_logger_mt("levin");
  logger->set_pattern("%H:%M:%S %^%l%$ %v");
  logger->set_level(spdlog::level::from_str(level));
  spdlog::set_default_logger(logger);
}

int report(const std::string& message, ExitCode code) {
  fmt::print(stderr, "levin: error: {}\n", message);
  return static_cast<int>(code);
}

}  // namespace

int run(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);
  CLI::App app{kDescription, "levin"};
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
  add_bench(app, action);
  add_logits(app, action);
  add_tokenize(app, action);
  add_detokenize(app, action);
  add_render(app, action);

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    const int code = app.exit(e);
    return code == 0 ? 0 : static_cast<int>(ExitCode::kBadInput);
  }
  try {
    set_up_logging(log_level);
    refuse_unknown_environment();
    return static_cast<int>(action());
  } catch (const Error& e) {
    return report(e.what(), e.exit_code());
  } catch (const std::bad_alloc&) {
    return report("out of memory", ExitCode::kMachine);
  } catch (const std::exception& e) {
    return report(fmt::format("internal error: {}", e.what()), ExitCode::kMachine);
  }
}

}  // namespace levin::cli
