// What would decide a gate that is undecided: how many samples, and the command that takes them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "evaluate/gate.h"

namespace levin::evaluate {

// The values of --limit and --windows that decide undecided lines; 0: as it is.
struct MoreSamples {
  int64_t limit = 0;
  int64_t windows = 0;
  bool lacking = false;  // some line would need more than the files hold, or no number decides it
  bool any() const { return limit > 0 || windows > 0; }
};

// Of the undecided lines, at most what the files hold.
MoreSamples more_samples(const GateResult& result);
// What decides both.
MoreSamples both(const MoreSamples& a, const MoreSamples& b);

// The words of a command line as a shell takes them, with these samples in place of those that it
// asks for.
std::string command_with(std::span<const std::string> words, const MoreSamples& more);

// "To decide: levin eval ... --limit 150", and whether that takes all that the files hold and may
// not be enough. Empty when nothing is undecided.
std::string how_to_decide(const GateResult& result, std::span<const std::string> words);
std::string how_to_decide(const MoreSamples& more, std::span<const std::string> words);

}  // namespace levin::evaluate
