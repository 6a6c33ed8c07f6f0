// exp() for softmax weights, in operations that give the same bits on every machine as long as
// products and sums are not contracted.
#pragma once

#include <bit>
#include <cstdint>

namespace levin {

// exp(x) for x <= 0 with a relative error below 2e-7; 0 at -87 and below and for NaN. A polynomial
// on [-ln 2 / 2, ln 2 / 2] (Cephes expf).
constexpr float fast_exp(float x) {
  if (!(x > -87.0F)) return 0.0F;
  constexpr float kRound = 12582912.0F;  // adding and subtracting 1.5 * 2^23 rounds to an integer
  const float n = (x * 1.44269504F + kRound) - kRound;
  const float r = (x - n * 0.693359375F) + n * 2.12194440e-4F;
  float p = r * 1.9875691500e-4F + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * r * r + r + 1.0F;
  return p * std::bit_cast<float>((static_cast<int32_t>(n) + 127) << 23);
}

}  // namespace levin
