// The kernels of the mixture-of-experts layer: what they take.
//
// Two phases: shared and routed up projections (moe_up), shared and routed down projections with
// the weighted sum (moe_down). Each block of moe_up also computes the router's logit of one expert
// and hands it to all others; while a few warps of a block wait for those and find out the routing,
// the rest multiplies the shared expert, which needs no router. moe_down takes the same logits,
// before moe_up is over.
#pragma once

#include "runtime/cuda/linear.h"
#include "runtime/cuda/moe_items.h"
#include "runtime/cuda/routing.cuh"

namespace levin::runtime::cuda {

// The router's matrix.
struct Gate {
  const void* weights = nullptr;  // [experts, width]
  bool bf16 = false;
};

// The same matrix of every expert.
struct ExpertMatrices {
  PackedMatrix first;             // of expert 0
  int64_t stride = 0;             // bytes from expert to expert
  const float* factor = nullptr;  // [experts]: of format and operand
  int row_stride = 0;             // floats of row_scale and bias from expert to expert
  int chunk_units = 1;            // of one copy
};

// relu^2 of up projections as the down projections read them: rows of 16-bit operands.
struct Activations {
  uint8_t* data = nullptr;
  int stride = 0;                          // bytes from row to row
  OperandKind kind = OperandKind::kBf16;   // kBf16, kF16 or kFp8Static
  float inverse = 1.0F;                    // 1 / scale of the operand
  const float* expert_inverses = nullptr;  // [experts], instead of `inverse`

  __device__ uint8_t* row(int index) const { return data + static_cast<int64_t>(index) * stride; }
};

struct MoeUp {
  const Pass* pass = nullptr;
  ItemLists items;  // of one token
  NormedInput input;
  int width = 0;
  float eps = 0.0F;
  int units = 0;
  Operand operands[kMaxOperands];
  int operand_count = 1;
  Part shared_part;      // its output is not used
  int shared_parts = 0;  // 1 when there is a shared expert in this phase
  Router router;
  Gate gate;
  ExpertMatrices experts;
  Divisor tiles;   // of an expert
  Divisor blocks;  // of the grid
  int routed_operand = 0;
  const float* latent = nullptr;  // [tokens, latent]: what the experts see instead, when not null
  int latent_width = 0;
  int latent_units = 0;
  Operand latent_operand;
  Activations shared_out;  // [tokens]
  Activations routed_out;  // [pairs]
  SharedLayout shared;
  // In shared memory:
  int routing_offset = 0;
  int latent_offset = 0;
  int factors = 0;  // [distinct experts]: ExpertFactors
  int barrier = 0;  // the routing is known; then the number of items
  // For observers, null otherwise: normalized input [tokens, width], activations in float32
  // [tokens or pairs, width], expert of each pair.
  float* normed = nullptr;
  float* observed_shared = nullptr;
  float* observed_routed = nullptr;
  int* observed_experts = nullptr;
  Trace trace;
};

inline constexpr int kDownRows = 4;  // tokens of one launch of moe_down, at most

// Works on `most_tokens` tokens from `first_token` on, or as many as there are: their activations
// are all in shared memory.
struct MoeDown {
  const Pass* pass = nullptr;
  ItemLists items;  // of one token
  int first_token = 0;
  int most_tokens = kDownRows;
  int rows = 0;        // of all matrices
  Share share;         // of their tiles
  bool routed = true;  // false: the shared expert alone
  Router router;
  ExpertMatrices experts;
  Part shared_part;      // its output is not used
  int shared_parts = 0;  // 1 when there is a shared expert in this phase
  Activations shared_in;
  Activations routed_in;
  float* out = nullptr;  // [tokens, width]
  int out_stride = 0;
  bool add = true;  // to the residual stream; else store
  SharedLayout shared;
  // In shared memory:
  int routing_offset = 0;
  int shared_rows = 0;  // [tokens] operand rows of the shared expert
  int routed_rows = 0;  // [pairs] operand rows
  int barrier = 0;      // the routing is known; then the number of items
  int factors = 0;      // [distinct experts][kDownRows]
  Trace trace;
};

// For one token (moe_one.cu), and for up to `rows` tokens (moe_several.cu), and matrices in formats
// of the set. Grid: at most the number of multiprocessors, since blocks wait for each other.
Kernel<MoeUp> moe_up_one_kernel(FormatSet formats);
Kernel<MoeDown> moe_down_one_kernel(FormatSet formats);
Kernel<MoeUp> moe_up_several_kernel(int rows, FormatSet formats);
Kernel<MoeDown> moe_down_several_kernel(FormatSet formats);

}  // namespace levin::runtime::cuda
