#include "cli/interruption.h"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <deque>
#include <string_view>
#include <utility>

#include "core/error.h"

namespace levin::cli {
namespace {

static_assert(128 + SIGINT == static_cast<int>(ExitCode::kInterrupted));

// Read by the handler; what it points to is never changed or freed.
std::atomic<const std::string*> sentence_shown = nullptr;

std::string_view name_of(int signal) {
  switch (signal) {
    case SIGTERM:
      return "SIGTERM";
    case SIGHUP:
      return "SIGHUP";
    default:
      return "SIGINT";
  }
}

void put(std::string_view text) {
  (void)!::write(STDERR_FILENO, text.data(), text.size());
}

extern "C" void report_interruption(int signal) {
  put("\nlevin: interrupted by ");
  put(name_of(signal));
  if (const std::string* sentence = sentence_shown.load()) {
    put("; ");
    put(*sentence);
  }
  put("\n");
  ::_exit(128 + signal);
}

}  // namespace

void report_interruptions() {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction before = {};
    sigaction(signal, nullptr, &before);
    if (before.sa_handler == SIG_IGN) continue;
    struct sigaction action = {};
    action.sa_handler = report_interruption;
    sigemptyset(&action.sa_mask);
    sigaction(signal, &action, nullptr);
  }
}

void when_interrupted(std::string sentence) {
  static std::deque<std::string> kept;
  sentence_shown = &kept.emplace_back(std::move(sentence));
}

}  // namespace levin::cli
