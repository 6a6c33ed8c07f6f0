// The randomness of sampling: a pure function of what is being decided, so that a request gives the
// same tokens whatever it is batched with and whatever was drafted for it.
#pragma once

#include <cstdint>

#include "core/philox.h"

namespace levin::engine {

// What a random number is used for; part of the key, so that different uses are independent.
enum class Purpose : uint64_t { kToken = 0 };

// Uniform in (0, 1] with 53 random bits, for the token at `position` (0 is the first of the
// prompt).
inline double uniform(uint64_t seed, int64_t position, Purpose purpose) {
  const auto words =
      philox(seed, static_cast<uint64_t>(position), 10, static_cast<uint64_t>(purpose));
  return uniform_open_closed(words[0], words[1]);
}

}  // namespace levin::engine
