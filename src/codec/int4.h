// INT4, symmetric, one BF16 scale per group along the input, in the "pack-quantized" layout of
// compressed-tensors (compressors/pack_quantized, quantization/utils/helpers.py):
//
//   weight = (nibble - 8) * scale
//
// Word i of a row holds columns 8i..8i+7, the first in the low nibble. Rows have a multiple of 8
// columns and of the group.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/thread_team.h"

namespace levin::codec {

// Encodes one row, all arithmetic in BF16 as compressed-tensors does it: scale = amax / 7.5 (2^-7
// when that is 0), code = w / scale clamped to [-8, 7], then rounded half to even. Values that are
// not BF16 are rounded to it first. Writes row.size() / 8 words and row.size() / group scales.
void encode_int4_row(std::span<const float> row, int64_t group, int32_t* words, uint16_t* scales);

// Reads `cols` weights. (nibble - 8) * scale is exact in float32.
void decode_int4_row(const int32_t* words, const uint16_t* scales, int64_t cols, int64_t group,
                     float* out);

struct Int4Matrix {
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t group = 0;
  std::vector<int32_t> words;    // [rows, cols / 8]
  std::vector<uint16_t> scales;  // [rows, cols / group], BF16
};

// Encodes a row-major matrix, rows divided over `team` when there is one. Throws Error when
// `weights` is not rows * cols long or the group does not divide cols.
Int4Matrix encode_int4(std::span<const float> weights, int64_t rows, int64_t cols, int64_t group,
                       ThreadTeam* team = nullptr);

}  // namespace levin::codec
