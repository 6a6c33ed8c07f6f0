// The recurrent part of a Mamba-2 mixer between its two projections: what the kernel takes.
//
// One block works on kStateRows rows of one head's state of one sequence; the state stays in
// registers over all tokens of the pass. Segment in pass.h says which tokens those are. The gated
// norm needs whole groups of heads, so a block leaves gated values and its sum of squares, and the
// output projection scales them.
#pragma once

#include "runtime/cuda/linear.cuh"

namespace levin::runtime::cuda {

inline constexpr int kScanThreads = 256;
inline constexpr int kStateRows = 32;
inline constexpr int kLanesPerRow = kScanThreads / kStateRows;
inline constexpr int kMaxTaps = 4;  // of the convolution

// One layer's state of all slots.
struct MambaCache {
  void* state = nullptr;    // [slots][heads][head_dim][padded states], float or half
  float* window = nullptr;  // [slots][2][taps - 1][conv_dim]: last inputs, oldest first
  float* log = nullptr;     // [slots][2][kMaxRows][conv_dim + heads]
};

struct MambaScan {
  const Pass* pass = nullptr;
  const float* projected = nullptr;  // [tokens, width]: z, x, B, C, dt
  int width = 0;
  MambaCache cache;
  bool half_state = false;
  bool stochastic = false;
  int philox_rounds = 10;
  uint64_t seed = 0;
  int layer = 0;
  const float* conv_weight = nullptr;  // [conv_dim, kMaxTaps], the last tap meets the current token
  const float* conv_bias = nullptr;    // [conv_dim]
  const float* a = nullptr;            // [heads]
  const float* d = nullptr;
  const float* dt_bias = nullptr;
  float dt_min = 0.0F;
  float dt_max = 0.0F;
  int heads = 0;
  int head_dim = 0;
  int groups = 0;
  int states = 0;
  int taps = 0;
  float* y = nullptr;        // [tokens, heads * head_dim], gated
  float* squares = nullptr;  // [tokens, heads * pieces]
  Trace trace;

  __host__ __device__ int pieces() const { return (head_dim + kStateRows - 1) / kStateRows; }
  __host__ __device__ int inner() const { return heads * head_dim; }
  __host__ __device__ int conv_dim() const { return inner() + 2 * groups * states; }
};

// For passes of up to `rows` tokens. Grid: heads * pieces, segments.
Kernel<MambaScan> mamba_scan_kernel(int rows, int states, bool half_state);

// Dynamic shared memory of the kernel.
inline int mamba_scan_shared(int states) {
  return static_cast<int>(sizeof(float)) * kMaxRows * (2 * kStateRows + 2 * states + 2);
}

}  // namespace levin::runtime::cuda
