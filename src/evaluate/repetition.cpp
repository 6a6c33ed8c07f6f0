#include "evaluate/repetition.h"

#include <algorithm>

namespace levin::evaluate {

std::optional<RepetitionLoop> find_repetition_loop(std::span<const int32_t> tokens,
                                                   const RepetitionRule& rule) {
  const auto count = static_cast<int64_t>(tokens.size());
  for (int64_t pattern = 1; pattern <= std::min<int64_t>(rule.max_pattern, count); ++pattern) {
    // More than min_count - 1 whole occurrences: at least one token of the last.
    const int64_t needed = std::max<int64_t>(rule.min_span, pattern * (rule.min_count - 1) + 1);
    int64_t equal = 0;  // tokens in a row that equal the one a pattern before
    for (int64_t i = pattern; i <= count; ++i) {
      if (i < count && tokens[i] == tokens[i - pattern]) {
        ++equal;
        continue;
      }
      if (equal + pattern >= needed)
        return RepetitionLoop{i - equal - pattern, equal + pattern, pattern};
      equal = 0;
    }
  }
  return std::nullopt;
}

}  // namespace levin::evaluate
