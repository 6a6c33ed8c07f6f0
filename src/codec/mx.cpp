#include "codec/mx.h"

#include <algorithm>
#include <cmath>

#include "codec/matrix.h"
#include "core/small_floats.h"

namespace levin::codec {
namespace {

uint8_t encode_tie_down(float value) {
  const float a = std::fabs(value);
  const int code =
      (a > 0.25F) + (a > 0.75F) + (a > 1.25F) + (a > 1.75F) + (a > 2.5F) + (a > 3.5F) + (a > 5.0F);
  return static_cast<uint8_t>(code | (value > 0.0F ? 0 : 8));
}

}  // namespace

int mx_exponent(float amax, float largest) {
  const float ratio = amax / largest;
  if (!(ratio > 0.0F)) return -127;
  int exponent = 0;
  const float mantissa = std::frexp(ratio, &exponent);  // ratio = mantissa * 2^exponent, [0.5, 1)
  return std::clamp(mantissa == 0.5F ? exponent - 1 : exponent, -127, 127);
}

uint8_t encode_mxfp4_block(std::span<const float> block, uint8_t* packed) {
  const int exponent = mx_exponent(absolute_max(block), kE2M1Max);
  for (std::size_t i = 0; i < block.size(); i += 2) {
    const uint8_t low = encode_tie_down(std::ldexp(block[i], -exponent));
    const uint8_t high = encode_tie_down(std::ldexp(block[i + 1], -exponent));
    packed[i / 2] = static_cast<uint8_t>(low | (high << 4));
  }
  return static_cast<uint8_t>(exponent + 127);
}

}  // namespace levin::codec
