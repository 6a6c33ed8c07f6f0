// FP8 E4M3FN for inner loops: a table for reading and a branch-light encoder for writing. The same
// functions as core/small_floats.h, which is the readable statement of the format; a test compares
// them bit by bit.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "core/small_floats.h"

namespace levin::codec {
namespace detail {

constexpr std::array<float, 256> make_e4m3_values() {
  std::array<float, 256> values{};
  for (unsigned code = 0; code < 256; ++code) {
    const unsigned exponent = (code >> 3) & 0xfu;
    const unsigned mantissa = code & 0x7u;
    float magnitude = static_cast<float>(exponent == 0 ? mantissa : 8 + mantissa) * 0x1p-9F;
    for (unsigned i = 1; i < exponent; ++i) magnitude *= 2.0F;
    if ((code & 0x7fu) == 0x7fu) magnitude = std::bit_cast<float>(0x7fc00000u);
    values[code] = (code & 0x80u) != 0 ? -magnitude : magnitude;
  }
  return values;
}

}  // namespace detail

// Values of the codes 0..255; NaN at 0x7F and 0xFF.
inline constexpr std::array<float, 256> kE4M3Values = detail::make_e4m3_values();

// Round to nearest even, saturating at +-448; NaN becomes 0x7F.
inline uint8_t encode_e4m3(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t sign = (bits >> 24) & 0x80u;
  if (magnitude > 0x7f800000u) return 0x7f;
  if (magnitude >= 0x43e00000u) return static_cast<uint8_t>(sign | 0x7eu);  // 448 and above
  if (magnitude < 0x3c800000u) {
    // Below 2^-6 the codes are multiples of 2^-9, the spacing of float32 at 2^14: the addition
    // rounds, and the steps stand in the low bits.
    const float steps = std::bit_cast<float>(magnitude) + 0x1p14F;
    return static_cast<uint8_t>(sign | (std::bit_cast<uint32_t>(steps) & 0xfu));
  }
  const uint32_t rounded = magnitude + 0x7ffffu + ((magnitude >> 20) & 1u);
  return static_cast<uint8_t>(sign | ((rounded >> 20) - (120u << 3)));
}

}  // namespace levin::codec
