// FP4 E2M1 for inner loops: the comparisons of core/small_floats.h without branches. Equal to
// float_to_e2m1 for every finite input (tested).
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace levin::codec {

// The E2M1 magnitude nearest to `a` >= 0, ties to the even code, saturating at 6 (also for NaN).
// The step of the format is half the power of two below `a`, and 1/2 below 1; adding and
// subtracting a float32 whose spacing is that step rounds to it. Comparisons are made on the bit
// patterns, which order as the values do, because that
// compiles without branches.
inline float round_e2m1(float a) {
  constexpr uint32_t kOne = 0x3f800000;
  constexpr uint32_t kSix = 0x40c00000;
  constexpr uint32_t kEight = 0x41000000;
  const uint32_t bounded = std::min(std::bit_cast<uint32_t>(a), kEight);
  const uint32_t power_of_two = std::max(bounded, kOne) & 0x7f800000u;
  const auto magic = std::bit_cast<float>(power_of_two + (22u << 23));
  const float rounded = (std::bit_cast<float>(bounded) + magic) - magic;
  return std::bit_cast<float>(std::min(std::bit_cast<uint32_t>(rounded), kSix));
}

// Code of a value; the sign bit is `value < 0`, as in ModelOpt.
inline uint8_t encode_e2m1(float value) {
  const float a = std::fabs(value);
  const int code = (a > 0.25F) + (a >= 0.75F) + (a > 1.25F) + (a >= 1.75F) + (a > 2.5F) +
                   (a >= 3.5F) + (a > 5.0F);
  return static_cast<uint8_t>(code | (value < 0.0F ? 8 : 0));
}

}  // namespace levin::codec
