// Scalar conversions of the 16-, 8- and 4-bit floating-point formats that checkpoints store.
// All encoders round to nearest, ties to even. Sources: IEEE 754 (f16), OCP 8-bit and microscaling
// specifications (e4m3, e2m1). Kernels have their own vector forms, tested against these.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace levin {

// bfloat16: the upper half of an IEEE float32.
inline float bf16_to_float(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// NaN stays NaN (quiet); everything else rounds to nearest even, overflowing to infinity.
inline uint16_t float_to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x0040u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// `value` as the nearest bfloat16, widened again.
inline float round_to_bf16(float value) {
  return bf16_to_float(float_to_bf16(value));
}

// IEEE binary16, subnormals and infinities included.
float f16_to_float(uint16_t bits);
uint16_t float_to_f16(float value);

// Largest finite e4m3 magnitude (0x7E).
inline constexpr float kE4M3Max = 448.0F;
// Smallest positive e4m3 value (0x01).
inline constexpr float kE4M3Tiny = 0x1p-9F;
// Largest e2m1 magnitude (code 7).
inline constexpr float kE2M1Max = 6.0F;

// FP8 E4M3FN: no infinities, 0x7F and 0xFF are NaN.
float e4m3_to_float(uint8_t code);
// Saturates at +-448; NaN encodes as 0x7F.
uint8_t float_to_e4m3(float value);

// FP4 E2M1 values of the codes 0..15 (bit 3 is the sign; 8 is -0).
inline constexpr float kE2M1Values[16] = {0.0F,  0.5F,  1.0F,  1.5F,  2.0F,  3.0F,  4.0F,  6.0F,
                                          -0.0F, -0.5F, -1.0F, -1.5F, -2.0F, -3.0F, -4.0F, -6.0F};

// Nearest E2M1 code, ties to the even code, saturating at 6. As ModelOpt encodes: the sign bit is
// `value < 0`, so -0.0 becomes code 0 and a small negative that rounds to zero becomes code 8.
uint8_t float_to_e2m1(float value);

}  // namespace levin
