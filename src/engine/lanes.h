// Passes over a whole vocabulary, four floats at a time. Vector types of GCC and Clang: the same
// bits on every machine, element by element as the scalar code would compute them.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>

namespace levin::engine {

using Quad = float __attribute__((vector_size(16)));
using IntQuad = int32_t __attribute__((vector_size(16)));

inline Quad load(const float* from) {
  Quad quad;
  std::memcpy(&quad, from, sizeof(quad));
  return quad;
}

inline void store(float* to, Quad quad) {
  std::memcpy(to, &quad, sizeof(quad));
}

inline bool any(IntQuad mask) {
  const auto halves = std::bit_cast<std::array<uint64_t, 2>>(mask);
  return (halves[0] | halves[1]) != 0;
}

// Four of core/fast_exp.h, bit for bit.
inline Quad fast_exp(Quad x) {
  const Quad floor = {-87.0F, -87.0F, -87.0F, -87.0F};
  const IntQuad in_range = x > floor;
  const Quad clamped = in_range ? x : floor;
  constexpr float kRound = 12582912.0F;  // adding and subtracting 1.5 * 2^23 rounds to an integer
  const Quad n = (clamped * 1.44269504F + kRound) - kRound;
  const Quad r = (clamped - n * 0.693359375F) + n * 2.12194440e-4F;
  Quad p = r * 1.9875691500e-4F + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * r * r + r + 1.0F;
  const IntQuad exponent = (__builtin_convertvector(n, IntQuad) + 127) << 23;
  const Quad zero = {};
  return in_range ? p * std::bit_cast<Quad>(exponent) : zero;
}

// The largest value that is not NaN; -infinity when there is none.
inline float largest(std::span<const float> values) {
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  Quad best = {kNone, kNone, kNone, kNone};
  std::size_t i = 0;
  for (; i + 4 <= values.size(); i += 4) {
    const Quad quad = load(values.data() + i);
    best = quad > best ? quad : best;
  }
  float maximum = kNone;
  for (int lane = 0; lane < 4; ++lane) maximum = best[lane] > maximum ? best[lane] : maximum;
  for (; i < values.size(); ++i) maximum = values[i] > maximum ? values[i] : maximum;
  return maximum;
}

// visit(index) for every value >= threshold, in order; quick when there are few. `visit` may raise
// the threshold.
template <typename Visit>
void for_each_at_least(std::span<const float> values, const float& threshold, Visit&& visit) {
  constexpr std::size_t kGroup = 16;
  std::size_t i = 0;
  for (; i + kGroup <= values.size(); i += kGroup) {
    const float* group = values.data() + i;
    const Quad least = {threshold, threshold, threshold, threshold};
    const IntQuad hits = (load(group) >= least) | (load(group + 4) >= least) |
                         (load(group + 8) >= least) | (load(group + 12) >= least);
    if (!any(hits)) continue;
    for (std::size_t lane = 0; lane < kGroup; ++lane) {
      if (group[lane] >= threshold) visit(i + lane);
    }
  }
  for (; i < values.size(); ++i) {
    if (values[i] >= threshold) visit(i);
  }
}

}  // namespace levin::engine
