// The kernels of linear.cu: what they take.
#pragma once

#include "runtime/cuda/linear.cuh"

namespace levin::runtime::cuda {

// One normalized stretch of the input: columns [column, column + width) of every operand row are
// rmsnorm(x[token]) * weight.
struct NormedInput {
  const float* x = nullptr;      // [tokens, width]
  int stride = 0;                // floats from token to token
  bool by_previous_row = false;  // x is indexed by Pass::previous_row instead of by token
  const float* weight = nullptr;
  int column = 0;
};

inline constexpr int kMaxVectors = 2;  // float4 of a row per thread: width <= 4096

// y = W rmsnorm(x): in_proj, q/k/v, up projections, lm_head; with two inputs eh_proj.
struct NormLinear {
  const Pass* pass = nullptr;
  NormedInput inputs[2];
  int input_count = 1;
  int width = 0;
  float eps = 0.0F;
  int units = 0;  // of an operand row
  Operand operands[kMaxOperands];
  int operand_count = 1;
  Part parts[kMaxParts];
  int part_count = 1;
  SharedLayout shared;
  // Where block 0 leaves the normalized inputs, columns as in the operand; null: nowhere.
  float* normed = nullptr;
  int normed_stride = 0;              // floats from row to row
  bool normed_by_hidden_row = false;  // rows are Pass::hidden_row instead of tokens
  Candidate* candidates = nullptr;    // [grid, kMaxRows], of kLogits
  Trace trace;
};

enum class InputKind : uint8_t {
  kPlain,
  kGatedNorm  // x * group scale * weight, group scale from sums of squares
};

// y = W x: out_proj, o_proj, down projections.
struct ActLinear {
  const Pass* pass = nullptr;
  InputKind kind = InputKind::kPlain;
  const float* x = nullptr;  // [tokens, width]
  int width = 0;
  int units = 0;
  // Of kGatedNorm:
  const float* weight = nullptr;   // [width]
  const float* squares = nullptr;  // [tokens, pieces]: partial sums of squares
  int pieces = 0;
  int groups = 0;
  float inverse_group_width = 0.0F;
  float eps = 0.0F;
  Operand operands[kMaxOperands];
  int operand_count = 1;
  Part parts[kMaxParts];
  int part_count = 1;
  SharedLayout shared;
  float* observed = nullptr;  // [tokens, width]: where block 0 leaves its input, for observers
  Trace trace;
};

// For up to `rows` tokens and parts in formats of the set.
Kernel<NormLinear> norm_linear_kernel(int rows, FormatSet formats);
Kernel<ActLinear> act_linear_kernel(int rows, FormatSet formats);

}  // namespace levin::runtime::cuda
