// Microscaling formats as NVIDIA ModelOpt writes them (qtensor/mxfp4_tensor.py, mxfp8_tensor.py):
// blocks of 32 with a power-of-two scale, stored as E8M0 (exponent + 127).
#pragma once

#include <cstdint>
#include <span>

namespace levin::codec {

inline constexpr int64_t kMxBlock = 32;

// ceil(log2(amax / largest)) in [-127, 127]; -127 for a zero block. `largest` is the element
// format's largest magnitude: 6 for MXFP4, 448 for MXFP8.
int mx_exponent(float amax, float largest);

// Encodes a block of 32 as MXFP4, low nibble first; returns the E8M0 byte. Unlike NVFP4, ties go
// down and a plain zero has the sign bit set, as in ModelOpt.
uint8_t encode_mxfp4_block(std::span<const float> block, uint8_t* packed);

}  // namespace levin::codec
