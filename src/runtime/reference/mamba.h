// The Mamba-2 mixer as a recurrence over tokens (Dao and Gu, arXiv 2405.21060, with n_groups of B
// and C), and the state it carries. Prefill is the same recurrence, so any split of the tokens
// gives the same bits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/model.h"
#include "runtime/reference/context.h"

namespace levin::runtime::reference {

// What one sequence carries from token to token in one layer, and what is needed to go back.
struct MambaState {
  MambaState(const model::Config& config, int max_rewind);

  void reset();
  void poison();  // fills everything with NaN
  // Remembers the state and, token by token, what the next `rows` tokens will feed into it.
  // `inputs` are rows of xBC and dt, `stride` floats apart.
  void checkpoint(const float* inputs, int64_t stride, int64_t rows);
  int64_t bytes() const;

  struct Values {
    std::vector<float> window;  // [conv_kernel - 1, conv_dim]: the last inputs, oldest first
    std::vector<float> ssm;     // [heads, head_dim, state]
  };
  Values now;
  Values before;      // now, before the last extend that can be rewound
  int64_t log_width;  // conv_dim + heads
  Buffer log;         // [max_rewind, log_width]: xBC and dt of that extend's tokens
};

// Work space of one pass, shared by all Mamba layers.
struct MambaWork {
  explicit MambaWork(const Context& context);

  Buffer projected;  // [rows, in_proj_rows]: z, x, B, C, dt
  Buffer convolved;  // [rows, conv_dim]: x, B, C after convolution and SiLU
  Buffer y;          // [rows, d_inner]
  Buffer scaled_b;   // [threads, state]

  int64_t bytes() const {
    return projected.bytes() + convolved.bytes() + y.bytes() + scaled_b.bytes();
  }
};

// output [rows, hidden]; advances the states of the segments' slots. `layer` keys the stochastic
// rounding of the state.
void mamba(Context& context, const model::MambaBlock& block, int layer,
           std::span<const Segment> segments, std::span<MambaState> states, MambaWork& work,
           std::span<const float> input, int rows, std::span<float> output);

// Takes `state` back to `rows` tokens after its checkpoint, which was at `position`.
void rewind_mamba(Context& context, const model::MambaBlock& block, int layer, MambaState& state,
                  MambaWork& work, int64_t position, int64_t rows);

}  // namespace levin::runtime::reference
