#include "evaluate/more_samples.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

namespace levin::evaluate {
namespace {

// A word as a POSIX shell takes it.
std::string quoted(const std::string& word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:=,+@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

}  // namespace

MoreSamples more_samples(const GateResult& result) {
  MoreSamples more;
  for (const GateLine& line : result.lines) {
    if (line.verdict != Verdict::kUndecided) continue;
    const int64_t held = line.flag_held;
    const bool enough = line.flag_to_decide && (held == 0 || *line.flag_to_decide <= held);
    more.lacking = more.lacking || !enough;
    // One sample does not tell how many would decide: then all that there are.
    if (!line.flag_to_decide && line.samples > 1) continue;
    const int64_t value = enough ? *line.flag_to_decide : held;
    if (value <= line.flag_now) continue;
    int64_t& raised = line.flag == "--limit" ? more.limit : more.windows;
    raised = std::max(raised, value);
  }
  return more;
}

MoreSamples both(const MoreSamples& a, const MoreSamples& b) {
  return {std::max(a.limit, b.limit), std::max(a.windows, b.windows), a.lacking || b.lacking};
}

std::string command_with(std::span<const std::string> words, const MoreSamples& more) {
  const std::pair<std::string, int64_t> flags[] = {{"--limit", more.limit},
                                                   {"--windows", more.windows}};
  std::string text;
  const auto add = [&](const std::string& word) { text += (text.empty() ? "" : " ") + word; };
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string name = words[i].substr(0, words[i].find('='));
    const bool replaced = std::any_of(std::begin(flags), std::end(flags), [&](const auto& flag) {
      return flag.second > 0 && flag.first == name;
    });
    if (!replaced) {
      add(quoted(words[i]));
    } else if (name == words[i]) {
      ++i;  // its value is a word of its own
    }
  }
  for (const auto& [flag, value] : flags) {
    if (value > 0) add(fmt::format("{} {}", flag, value));
  }
  return text;
}

std::string how_to_decide(const GateResult& result, std::span<const std::string> words) {
  return result.verdict == Verdict::kUndecided ? how_to_decide(more_samples(result), words) : "";
}

std::string how_to_decide(const MoreSamples& more, std::span<const std::string> words) {
  if (!more.any()) {
    return more.lacking ? "To decide: the files hold too few samples; add items or text." : "";
  }
  return fmt::format("To decide: {}{}", command_with(words, more),
                     more.lacking ? "\n(all that the files hold; lines that need more stay "
                                    "undecided until items or text are added)"
                                  : "");
}

}  // namespace levin::evaluate
