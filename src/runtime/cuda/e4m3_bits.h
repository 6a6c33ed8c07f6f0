// Conversions of e4m3 codes in integers, for GPUs below compute capability 8.9, which have no
// instructions for them (ptx.cuh). No CUDA here: the tests of the CPU hold all of it against
// core/small_floats.h.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace levin::runtime::cuda {

// Two codes (low byte first) as two float16 of 2^-8 times their value: the exponents of both
// formats are 8 apart, subnormals included. The two NaN stay NaN.
constexpr uint32_t e4m3x2_as_small_f16x2(uint32_t codes) {
  const uint32_t bytes = (codes & 0xFF00u) << 16 | (codes & 0x00FFu) << 8;
  const uint32_t magnitudes = (bytes & 0x7F007F00u) >> 1;
  // Only 0x7F carries into the highest bit of the exponent, and all others of it are set.
  const uint32_t nan = (magnitudes + 0x00800080u) & 0x40004000u;
  return (bytes & 0x80008000u) | magnitudes | nan;
}

// Rounds to nearest even and saturates at 448; NaN is 0x7F.
constexpr uint32_t float_to_e4m3_bits(float value) {
  constexpr uint32_t kSmallestNormal = 0x3C800000;  // 2^-6
  constexpr uint32_t kLargest = 0x7E;
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return 0x7F;
  uint32_t code;
  if (magnitude < kSmallestNormal) {
    // Multiples of 2^-9, which is what 2^14 has for a last bit; eight are the first normal code.
    constexpr float kSteps = 16384.0F;
    code = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + kSteps) -
           std::bit_cast<uint32_t>(kSteps);
  } else {
    constexpr uint32_t kBias = (127 - 7) << 3;
    code = std::min(((magnitude + 0x7FFFFu + (magnitude >> 20 & 1u)) >> 20) - kBias, kLargest);
  }
  return (bits >> 24 & 0x80u) | code;
}

}  // namespace levin::runtime::cuda
