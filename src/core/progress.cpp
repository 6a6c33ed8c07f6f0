#include "core/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <utility>

#include "core/console.h"

namespace levin {
namespace {

using namespace std::chrono_literals;

// Nothing is drawn for work that is over before anyone wonders.
constexpr auto kFirstDraw = 2s;
constexpr auto kTerminalInterval = 100ms;
constexpr auto kLineInterval = 10s;
constexpr int kBarWidth = 28;

std::atomic<bool> progress_enabled{true};

std::string number(double value) {
  return fmt::format("{:.{}f}", value, value < 10 ? 1 : 0);
}

std::string amount(double value, const std::string& unit) {
  if (unit != "B") return fmt::format("{} {}", number(value), unit);
  if (value >= 1e9) return fmt::format("{:.2f} GB", value / 1e9);
  return fmt::format("{:.1f} MB", value / 1e6);
}

std::string duration(double seconds) {
  const auto whole = static_cast<int64_t>(seconds + 0.5);
  if (whole < 60) return fmt::format("{}s", whole);
  return fmt::format("{}m{:02}s", whole / 60, whole % 60);
}

}  // namespace

Progress::Progress(std::string title, int64_t total, std::string unit)
    : title_(std::move(title)),
      unit_(std::move(unit)),
      total_(std::max<int64_t>(total, 1)),
      terminal_(::isatty(STDERR_FILENO) != 0),
      start_(std::chrono::steady_clock::now()),
      last_draw_(start_) {}

Progress::~Progress() {
  if (drawn_) draw(true);
}

void Progress::set_enabled(bool enabled) {
  progress_enabled = enabled;
}

void Progress::advance(int64_t amount) {
  done_ += amount;
  if (!progress_enabled) return;
  const auto now = std::chrono::steady_clock::now();
  if (now - start_ < kFirstDraw) return;
  if (drawn_ && now - last_draw_ < (terminal_ ? kTerminalInterval : kLineInterval)) return;
  last_draw_ = now;
  drawn_ = true;
  draw(false);
}

void Progress::draw(bool final) {
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
  const double fraction = std::min(1.0, static_cast<double>(done_) / static_cast<double>(total_));
  const double rate = static_cast<double>(done_) / std::max(elapsed.count(), 1e-9);
  const double left = rate > 0 ? static_cast<double>(total_ - done_) / rate : 0;
  const std::string done = unit_ == "B"
                               ? fmt::format("{} of {}", amount(static_cast<double>(done_), unit_),
                                             amount(static_cast<double>(total_), unit_))
                               : fmt::format("{} of {} {}", done_, total_, unit_);
  const std::string text = fmt::format(
      "{:3.0f} %  {}  {}/s  {}", fraction * 100, done, amount(rate, unit_),
      final ? "took " + duration(elapsed.count()) : "ETA " + duration(std::max(left, 0.0)));
  if (terminal_) {
    const int filled = static_cast<int>(fraction * kBarWidth);
    tell(fmt::format("\r\033[K{} [{:<{}}] {}{}", title_, std::string(filled, '#'), kBarWidth, text,
                     final ? "\n" : ""));
  } else {
    tell(fmt::format("{}: {}\n", title_, text));
  }
}

}  // namespace levin
