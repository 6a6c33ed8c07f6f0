#include "core/small_floats.h"

namespace levin {

float f16_to_float(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0x1fu) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
    return sign != 0 ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

uint16_t float_to_f16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  // 65520 is the tie between 65504 and the next step, which is infinity.
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {
    // Below 2^-14: a multiple of 2^-24; nearbyint rounds ties to even in the default mode.
    const float steps = std::nearbyint(std::bit_cast<float>(magnitude) * 0x1p24F);
    return static_cast<uint16_t>(sign | static_cast<uint16_t>(steps));
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

float e4m3_to_float(uint8_t code) {
  const int exponent = (code >> 3) & 0xf;
  const int mantissa = code & 0x7;
  if ((code & 0x7f) == 0x7f) return std::bit_cast<float>(0x7fc00000u);
  const float magnitude = exponent == 0
                              ? static_cast<float>(mantissa) * 0x1p-9F
                              : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

uint8_t float_to_e4m3(float value) {
  if (std::isnan(value)) return 0x7f;
  const auto sign = static_cast<uint8_t>(std::signbit(value) ? 0x80 : 0);
  const float magnitude = std::fabs(value);
  if (magnitude >= kE4M3Max) return static_cast<uint8_t>(sign | 0x7e);
  if (magnitude < 0x1p-6F) {
    // Subnormal: multiples of 2^-9; 8 steps roll over into the first normal code.
    return static_cast<uint8_t>(sign | static_cast<uint8_t>(std::nearbyint(magnitude * 512.0F)));
  }
  int exponent = std::ilogb(magnitude);
  auto mantissa = static_cast<int>(std::nearbyint(std::ldexp(magnitude, 3 - exponent)));  // 8..16
  if (mantissa == 16) {
    mantissa = 8;
    ++exponent;
  }
  const int code = ((exponent + 7) << 3) | (mantissa - 8);
  return static_cast<uint8_t>(sign | (code > 0x7e ? 0x7e : code));
}

uint8_t float_to_e2m1(float value) {
  const auto sign = static_cast<uint8_t>(value < 0 ? 8 : 0);
  const float a = std::fabs(value);
  uint8_t code = 7;
  if (a <= 0.25F)
    code = 0;
  else if (a < 0.75F)
    code = 1;
  else if (a <= 1.25F)
    code = 2;
  else if (a < 1.75F)
    code = 3;
  else if (a <= 2.5F)
    code = 4;
  else if (a < 3.5F)
    code = 5;
  else if (a <= 5.0F)
    code = 6;
  return sign | code;
}

}  // namespace levin
