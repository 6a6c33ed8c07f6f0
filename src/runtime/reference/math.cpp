#include "runtime/reference/math.h"

#include <array>
#include <cstring>

namespace levin::runtime::reference {
namespace {

// Four floats that GCC and Clang keep in one register on every machine; the arithmetic is element
// by element, so the bits do not depend on the instruction set.
using Quad = float __attribute__((vector_size(16)));

Quad load(const float* from) {
  Quad quad;
  std::memcpy(&quad, from, sizeof(quad));
  return quad;
}

}  // namespace

float dot(const float* a, const float* b, int64_t n) {
  constexpr int kLanes = 16;
  std::array<Quad, 4> sums{};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    sums[0] += load(a + i) * load(b + i);
    sums[1] += load(a + i + 4) * load(b + i + 4);
    sums[2] += load(a + i + 8) * load(b + i + 8);
    sums[3] += load(a + i + 12) * load(b + i + 12);
  }
  float rest = 0.0F;
  for (; i < n; ++i) rest += a[i] * b[i];
  const Quad sum = (sums[0] + sums[2]) + (sums[1] + sums[3]);
  return ((sum[0] + sum[2]) + (sum[1] + sum[3])) + rest;
}

int32_t argmax(std::span<const float> values) {
  std::size_t best = 0;
  for (std::size_t i = 1; i < values.size(); ++i) {
    if (values[i] > values[best]) best = i;
  }
  return static_cast<int32_t>(best);
}

}  // namespace levin::runtime::reference
