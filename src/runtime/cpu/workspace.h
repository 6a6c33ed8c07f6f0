// Work space of one pass through the model: what all threads share, and what each has for itself.
// Everything is laid out at construction; a pass allocates nothing.
#pragma once

#include <cstdint>
#include <vector>

#include "model/config.h"
#include "runtime/cpu/arena.h"
#include "runtime/cpu/kernels.h"
#include "runtime/cpu/layout.h"
#include "runtime/cpu/weights.h"
#include "runtime/runtime.h"

namespace levin::runtime::cpu {

// Packed inputs that a phase may need at the same time: those of q, k and v, or of router, shared
// expert and latent projection, when their formats differ.
inline constexpr int kStages = 3;

struct StageBuffer {
  uint8_t* tiles = nullptr;
  float* scales = nullptr;
};

// Experts of a set of rows. `chosen` is by row; the pairs (row, expert) are sorted by expert, then
// row, those of expert e being offsets[e] .. offsets[e + 1] - 1.
struct Routing {
  struct Choice {
    int32_t expert = 0;
    float weight = 0;
  };
  Choice* chosen = nullptr;      // [rows][experts per token]
  float* scores = nullptr;       // [2 * experts + groups], scratch of one row
  int32_t* offsets = nullptr;    // [experts + 1]
  int32_t* pair_row = nullptr;   // [pairs]
  float* pair_weight = nullptr;  // [pairs]
};

// Convolved inputs and step sizes of the Mamba heads of a group, some tokens at a time.
inline constexpr int64_t kMambaChunk = 64;
struct MambaScratch {
  Rows bc;                   // [chunk][2 * state]
  Rows x;                    // [chunk][heads of a group * head_dim]
  Rows dt, decay;            // [chunk][heads of a group]
  Rows dt_x, skip;           // [chunk][head_dim]
  SsmStep* steps = nullptr;  // [chunk]
  float* state = nullptr;    // [heads of a group], of a head while it is not yet to be kept
};

// What one thread has for itself.
struct Private {
  Rows hidden;  // [kTile][hidden], normalized rows of a small batch
  Rows wide;    // [kTile][max(d_inner, 2 * hidden)]
  StageBuffer stages[kStages];
  uint8_t* linear_scratch = nullptr;
  Routing routing;
  MambaScratch mamba;
  float* attend = nullptr;  // AttendCall::work
};

struct Workspace {
  Workspace(const model::Config& config, const Options& options, const Weights& weights,
            int64_t max_rows);

  int64_t max_rows = 0;
  // The residual stream, and a copy of rows of it after normalization.
  Rows hidden;  // [rows][hidden]
  Rows normed;  // [rows][hidden]
  Rows final;   // [rows][hidden], after norm_f
  StageBuffer stages[kStages];
  // Mamba
  Rows projected;  // [rows][z, x, B, C, dt]
  Rows y;          // [rows][d_inner]
  // Attention
  Rows q, k, v;   // [rows][q_rows], [rows][kv_rows]
  Rows attended;  // [rows][q_rows]
  // Mixture of experts and dense blocks
  Rows router;                 // [rows][experts]
  Rows latent_in, latent_out;  // [rows][latent]
  Rows shared;                 // [rows][widest feed-forward block that is not an expert]
  Rows experts;                // [rows * experts per token][intermediate]
  Routing routing;
  // Draft head
  Rows fused;  // [rows][2 * hidden]
  std::vector<Private> threads;

  int64_t bytes() const { return arena_.bytes(); }

 private:
  Arena arena_;
};

}  // namespace levin::runtime::cpu
