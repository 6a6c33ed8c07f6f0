// INT4 as NVIDIA ModelOpt exports its AWQ family (modelopt/torch/export/quant_utils.py,
// pack_int4_in_uint8): scale = amax / 7, two's complement nibbles, and a byte holds the same column
// of two output rows. Not interchangeable with codec/int4.h.
#pragma once

#include <cstdint>
#include <span>

namespace levin::codec {

// Encodes one row: a code in [-8, 7] for each value, a float32 scale for each group (1 for zeros).
void encode_modelopt_int4_row(std::span<const float> row, int64_t group, int8_t* codes,
                              float* scales);

// Packs rows 2i (low nibbles) and 2i+1 (high nibbles).
void pack_modelopt_int4_rows(std::span<const int8_t> even, std::span<const int8_t> odd,
                             uint8_t* packed);

}  // namespace levin::codec
