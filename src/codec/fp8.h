// FP8 E4M3 weights and activations. A code stands for E4M3(code) * scale, where the scale is per
// tensor or per output row (channel), amax / 448. As NVIDIA ModelOpt exports
// (modelopt/torch/export/quant_utils.py); byte layout [out, in], one byte an element.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/thread_team.h"

namespace levin::codec {

// How weight / scale is rounded before it becomes a code.
enum class Fp8Quotient : uint8_t {
  kExact,         // float32 quotient: the nearest code
  kBf16,          // quotient rounded to BF16 first: PyTorch's BF16 tensor / 0-dim float32 tensor
  kBf16AndScale,  // the scale is rounded to BF16 as well before dividing: the same on CUDA; what
                  // ModelOpt's published files hold (4-5 % of the codes one step from kExact)
};

// amax / 448, at least the smallest normal float32; 1 when amax is 0.
float fp8_scale(float amax);

// Encodes row.size() weights, saturating.
void encode_fp8_row(std::span<const float> row, float scale, Fp8Quotient quotient, uint8_t* codes);

// Reads `cols` weights: f32(code * scale).
void decode_fp8_row(const uint8_t* codes, float scale, int64_t cols, float* out);

enum class Fp8Granularity : uint8_t { kTensor, kChannel };

struct Fp8Matrix {
  int64_t rows = 0;
  int64_t cols = 0;
  std::vector<uint8_t> codes;  // [rows, cols]
  std::vector<float> scales;   // one, or [rows]
};

// Encodes a row-major matrix, rows divided over `team` when there is one. Throws Error when
// `weights` is not rows * cols long.
Fp8Matrix encode_fp8(std::span<const float> weights, int64_t rows, int64_t cols,
                     Fp8Granularity granularity, Fp8Quotient quotient = Fp8Quotient::kExact,
                     ThreadTeam* team = nullptr);

// Activations under a static per-tensor scale: writes E4M3(x / input_scale) * input_scale,
// saturating. `out` may be `x`.
void quantize_fp8_activation(std::span<const float> x, float input_scale, std::span<float> out);

// Activations with the row's own scale, amax / 448. Returns the scale (1 for a zero row).
float quantize_fp8_activation_per_token(std::span<const float> x, std::span<float> out);

}  // namespace levin::codec
