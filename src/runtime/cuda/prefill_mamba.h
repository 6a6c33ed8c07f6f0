// The recurrent part of a Mamba-2 mixer for many tokens: convolution, then the recurrence in pieces
// of 128 tokens as matrix products (state space duality, Dao and Gu, arXiv 2405.21060). With
// L_t = sum of d_s A over the piece's tokens s <= t:
//   y_t = exp(L_t) S C_t + sum over s <= t of (C_t . B_s) exp(L_t - L_s) d_s x_s + D x_t
//   S' = exp(L_end) S + sum over s of exp(L_end - L_s) d_s x_s (outer) B_s
// Products are of float16 (C, B, x as convolved; the factors of d scaled to at most 1 by the
// piece's largest), sums and the state between pieces are float32. Pieces begin at multiples of 128
// positions, so that calls that begin there make the same sums as one call.
#pragma once

#include <cuda_fp16.h>

#include "runtime/cuda/mamba.h"

namespace levin::runtime::cuda {

inline constexpr int kScanPiece = 128;  // tokens
inline constexpr int kMostScanStates = 128;

struct PrefillMamba {
  MambaScan mixer;  // all but `pass`, `squares` and `trace`
  const Segment* segments = nullptr;
  int segment_count = 0;
  int longest = 0;              // rows of a segment
  __half* convolved = nullptr;  // [rows, conv_dim]
};

// x, B and C after convolution and SiLU; the slots' windows.
void launch_convolution(cudaStream_t stream, const PrefillMamba& p);
// The gated result and the slots' states.
void launch_prefill_scan(cudaStream_t stream, const PrefillMamba& p);

}  // namespace levin::runtime::cuda
