// What the cost model says a decode step must read, and how long that takes at least.
#pragma once

#include <cmath>
#include <cstdint>

#include "engine/engine.h"

namespace levin::bench {

struct Prediction {
  double bytes_per_token = 0;  // weights, recurrent state and KV cache, per generated token
  int64_t whole_bytes() const { return std::llround(bytes_per_token); }
  double tpot_seconds(double gb_per_s) const { return bytes_per_token / (gb_per_s * 1e9); }
};

// One sequence after `context` tokens. With k drafts a round verifies 1 + k tokens and drafts k
// times; its bytes are shared by the `acceptance_length` tokens that it yields on average.
Prediction predict_decode(const model::Model& model, int64_t context, int k,
                          double acceptance_length);

}  // namespace levin::bench
