// NVFP4: E2M1 codes in blocks of 16 along the input, one E4M3 scale per block, one float32 scale
// per tensor. Byte for byte what NVIDIA ModelOpt exports (modelopt/torch/export/quant_utils.py,
// modelopt/torch/quantization/qtensor/nvfp4_tensor.py):
//
//   weight = E2M1(code) * f32(E4M3(block scale) * global scale)
//
// Byte j of a row holds column 2j in its low nibble and column 2j+1 in its high nibble. The global
// scale is `weight_scale_2` of a checkpoint and multiplies.
//
// All rows have a multiple of 16 columns. Inputs are finite. Nothing here allocates, except
// encode_nvfp4, which returns a whole matrix.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "core/thread_team.h"

namespace levin::codec {

inline constexpr int64_t kNvfp4Block = 16;

// How the scale of a block is chosen.
enum class Nvfp4Policy : uint8_t {
  kMaxDynamic,   // block maximum -> 6; ModelOpt's dynamic block quantizer
  kMaxStatic,    // the same choice in the operation order of ModelOpt's static export path
  kMse,          // of the 126 positive E4M3 scales the one with the least squared error
  kFourOverSix,  // block maximum -> 6 or -> 4, whichever has the smaller squared error
                 // (arXiv 2512.02010); the E4M3 scale range is normalized to 256 instead of 448
};
std::string_view name_of(Nvfp4Policy policy);

// The least amax that scales are derived from; anything smaller counts as this. Keeps every scale a
// normal float32, so that its reciprocal stays finite in kernels.
inline constexpr float kNvfp4AmaxFloor = 0x1p-110F;

// weight_scale_2 of a tensor (or of tensors that share one) whose largest magnitude is `amax`:
// amax / (6 * 448), or / (6 * 256) for four over six; 1 when amax is 0.
float nvfp4_global_scale(Nvfp4Policy policy, float amax);

// Encodes one row of a tensor whose largest magnitude is `amax` (at least that of the row). Writes
// row.size() / 2 bytes of codes and row.size() / 16 block scales, each in 0x01..0x7E. A tensor with
// amax 0 gets codes 0 and scales 1.0 (0x38).
void encode_nvfp4_row(std::span<const float> row, Nvfp4Policy policy, float amax, uint8_t* packed,
                      uint8_t* block_scales);

// Reads `cols` weights: f32(code * f32(scale * global_scale)), one rounding each.
void decode_nvfp4_row(const uint8_t* packed, const uint8_t* block_scales, float global_scale,
                      int64_t cols, float* out);

struct Nvfp4Matrix {
  int64_t rows = 0;
  int64_t cols = 0;
  std::vector<uint8_t> packed;        // [rows, cols / 2]
  std::vector<uint8_t> block_scales;  // [rows, cols / 16], E4M3
  float global_scale = 1.0F;
};

// Encodes a row-major matrix, rows divided over `team` when there is one. `amax` is the magnitude
// to normalize by when several tensors share a global scale; 0 means that of this matrix. Throws
// Error when `weights` is not rows * cols long or cols is no multiple of 16.
Nvfp4Matrix encode_nvfp4(std::span<const float> weights, int64_t rows, int64_t cols,
                         Nvfp4Policy policy, ThreadTeam* team = nullptr, float amax = 0.0F);

// Activations at run time: dynamic block scales under a static `input_scale` (calibrated amax /
// 2688, > 0). Blocks above the calibrated amax clip; a block scale that rounds to zero makes the
// whole block zero. Exact division, as ModelOpt simulates; CUDA kernels that multiply by an
// approximate reciprocal may differ by one code at ties.
//
// Writes the values that the quantized activations stand for. `out` may be `x`.
void quantize_nvfp4_activation(std::span<const float> x, float input_scale, std::span<float> out);

// The same quantization as codes (x.size() / 2 bytes) and E4M3 block scales (x.size() / 16).
void encode_nvfp4_activation(std::span<const float> x, float input_scale, uint8_t* packed,
                             uint8_t* block_scales);

}  // namespace levin::codec
