#include "engine/prompt_cuts.h"

#include <spdlog/spdlog.h>

#include <algorithm>

namespace levin::engine {

runtime::ExtendCuts usable_cuts(const runtime::Runtime& runtime) {
  const runtime::ExtendCuts cuts = runtime.extend_cuts();
  if (cuts.alignment <= runtime.options().max_extend_tokens) return cuts;
  spdlog::warn(
      "a step of {} tokens has no room for chunks of {}: answers depend, within rounding, on what "
      "else runs; raise --max-num-batched-tokens",
      runtime.options().max_extend_tokens, cuts.alignment);
  return {};
}

int64_t next_extend(const runtime::ExtendCuts& cuts, const ReadPlace& place, int64_t most) {
  const int64_t left = place.end - place.consumed;
  if (cuts.alignment <= 1) return std::min(left, most);
  if (place.consumed >= place.prompt) return std::min({left, cuts.short_tokens, most});
  const int64_t rest = place.prompt % cuts.alignment;
  const int64_t chunked = rest <= cuts.short_tokens ? place.prompt - rest : place.prompt;
  if (place.consumed >= chunked)
    return std::min(std::min(place.prompt, place.end) - place.consumed, most);
  const int64_t stop = std::min(place.end, chunked);
  if (stop - place.consumed <= most) return stop - place.consumed;
  const int64_t aligned = (place.consumed + most) / cuts.alignment * cuts.alignment;
  return std::max<int64_t>(aligned - place.consumed, 0);
}

bool shareable(const runtime::ExtendCuts& cuts, int64_t length, int64_t prompt) {
  return cuts.alignment <= 1 || (length % cuts.alignment == 0 && length <= prompt);
}

}  // namespace levin::engine
