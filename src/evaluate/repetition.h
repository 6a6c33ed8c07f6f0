// Finds outputs that got stuck: the failure that a broken quantization shows first.
//
// Definition. An output loops when some pattern of 1 to 64 tokens occurs at least 4 times back to
// back, the occurrences covering at least 32 tokens. The last occurrence may be cut off by the end
// of the loop. So "= = = =" in a formula is no loop, and neither is a long list whose lines differ.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace levin::evaluate {

struct RepetitionRule {
  int max_pattern = 64;  // tokens
  int min_count = 4;     // occurrences, the last one possibly incomplete
  int min_span = 32;     // tokens that all occurrences cover together
};

struct RepetitionLoop {
  int64_t begin = 0;    // first token of the first occurrence
  int64_t length = 0;   // tokens that the occurrences cover
  int64_t pattern = 0;  // tokens of one occurrence
};

// The first loop of `tokens` with the shortest pattern, if there is one. Time is proportional to
// tokens * max_pattern.
std::optional<RepetitionLoop> find_repetition_loop(std::span<const int32_t> tokens,
                                                   const RepetitionRule& rule = {});

}  // namespace levin::evaluate
