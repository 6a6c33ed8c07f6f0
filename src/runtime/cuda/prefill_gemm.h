// Matrix products of a prefill chunk: y = W x for hundreds of tokens on Hopper's warp-group
// products.
//
// The weights are the product's A: a warp takes two of the packed tiles of 8 rows (packed.cuh) and
// decodes what its lanes hold straight into A's registers, so that the matrices need no second copy
// and no detour through shared memory. The activations are B: rows of 64 values that lie in device
// memory exactly as shared memory wants them (Panels), fetched by bulk copies. A block computes 128
// or 256 weight rows of up to 128 tokens at a time. Each output is one sum in the order of the
// columns, whatever the shape of the block and whatever else is in the batch.
#pragma once

#include "runtime/cuda/linear.cuh"

namespace levin::runtime::cuda {

// Operand rows of many tokens: for each unit of 64 columns the tokens' 128 bytes one after another.
// Inside them column c = 16 t + 2 q + e lies in the 16-byte piece q ^ (token % 8), at byte 4 t + 2
// e: the order in which decoded weights come, swizzled as the products read it.
struct Panels {
  uint8_t* data = nullptr;
  int64_t stride = 0;  // bytes from unit to unit: 128 times the rows there is space for

  static constexpr int kRowBytes = 2 * kUnitColumns;
  __host__ __device__ uint8_t* row(int unit, int row) const {
    return data + unit * stride + static_cast<int64_t>(row) * kRowBytes;
  }
  // Byte of an even column in its row of a unit.
  __host__ __device__ static int offset(int row, int column) {
    return (((column % 16 / 2) ^ (row & 7)) << 4) + column % kUnitColumns / 16 * 4;
  }
};

// Products may read this many rows beyond those that have been written.
inline constexpr int kPanelSlack = 128;

enum class GemmOutput : uint8_t {
  kStore,  // data[row][feature] = y
  kAdd,    // data[row][feature] += y
  kRelu2   // panels = max(y, 0)^2 as an operand
};

struct GemmPart {
  PackedMatrix matrix;
  float factor = 1.0F;
  Panels input;
  const float* row_scales = nullptr;  // [rows] of the input, null: 1
  GemmOutput output = GemmOutput::kStore;
  float* data = nullptr;
  int stride = 0;  // floats from row to row
  Panels panels;
  OperandKind kind = OperandKind::kBf16;  // of the panels
  float inverse = 1.0F;
};

// Rows of experts in the sorted list, in device memory.
struct ExpertRows {
  const int* first = nullptr;         // [experts]: a multiple of 8
  const int* count = nullptr;         // [experts]
  const int* tiles_before = nullptr;  // [experts + 1]: tiles of tokens of the experts before
};

struct Gemm {
  GemmPart parts[kMaxParts];  // of one weight format and one input
  int part_count = 1;
  int rows = 0;  // tokens; without experts
  // With experts: the same part of every expert, each for its own rows.
  int experts = 0;
  ExpertRows expert_rows;
  int64_t expert_stride = 0;               // bytes from expert to expert
  const float* expert_factors = nullptr;   // [experts], instead of `factor`
  const float* expert_inverses = nullptr;  // [experts], instead of `inverse`; may be null
  int row_stride = 0;                      // floats of row_scale and bias from expert to expert
};

// Weight rows and tokens of a block.
struct GemmShape {
  int rows = 128;  // or 256
  int tokens = 16;
};

// The shape that takes the least time on `blocks` multiprocessors. `tokens_each`: how many an
// expert has on the average; without experts all. `tokens`: those of a block, 0: any.
GemmShape gemm_shape(const Gemm& gemm, int tokens_each, int blocks, int tokens = 0);

using GemmKernel = Kernel<Gemm>;
void launch_gemm(cudaStream_t stream, const Gemm& gemm, GemmShape shape, int blocks);

// For each format, in a file of its own.
struct GemmInstance {
  GemmKernel kernel = nullptr;
  int threads = 0;
  int shared = 0;  // bytes
  int blocks = 1;  // on a multiprocessor
};
GemmInstance gemm_bf16(GemmShape shape);
GemmInstance gemm_f16(GemmShape shape);
GemmInstance gemm_fp8(GemmShape shape);
GemmInstance gemm_nvfp4(GemmShape shape);
GemmInstance gemm_int4(GemmShape shape);

}  // namespace levin::runtime::cuda
