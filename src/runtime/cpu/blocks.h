// The mixers of a layer, as one thread of the team runs them: hidden += mixer(rmsnorm(hidden)).
// All threads call them at the same time. When they return, all threads have passed a barrier and
// `hidden` is complete.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/cpu/pass.h"
#include "runtime/cpu/state.h"

namespace levin::runtime::cpu {

// `layer` says where the slots keep the layer's state. Writes the slots' other logs; the caller
// makes them current when all layers are done.
void run_mamba(Pass& pass, const MambaWeights& weights, const float* norm, int layer, State& state,
               std::span<const Segment> segments, const Rows& hidden, int64_t count);

// A key/value cache by slot.
using CacheOf = KvCache& (*)(State& state, int slot, int layer);

// Stores keys and values of all rows; then the rows from `first_query` on attend and are updated,
// the others are left as they are.
void run_attention(Pass& pass, const AttentionWeights& weights, const float* norm, int layer,
                   CacheOf cache_of, State& state, std::span<const Segment> segments,
                   const Rows& hidden, int64_t count, int64_t first_query);

void run_moe(Pass& pass, const MoeWeights& weights, const float* norm, const Rows& hidden,
             int64_t count);

void run_mlp(Pass& pass, const FeedForward& weights, const float* norm, const Rows& hidden,
             int64_t count);

}  // namespace levin::runtime::cpu
