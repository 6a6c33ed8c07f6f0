// What a linear kernel walks over and where it adds up.
#pragma once

#include <cstdint>

#include "runtime/cpu/kernels.h"

namespace levin::runtime::cpu {

// Sums of some panels for some tokens, kept in registers.
template <class V, int panels, int tokens>
struct Sums {
  typename V::F v[panels][tokens];
  [[gnu::always_inline]] void clear() {
    for (auto& row : v) {
      for (auto& x : row) x = V::zero();
    }
  }
};

// Where a kernel starts and how it walks on. Panels lie `panel_stride` bytes apart, activations of
// a block of columns `x_stride` bytes from those of the next.
struct Walk {
  const uint8_t* weights;
  const uint8_t* scales;
  int64_t panel_stride;
  const uint8_t* x;
  int64_t x_stride;
  int64_t blocks;
  int64_t group;
};

// How far ahead of their loads block scales are fetched.
constexpr int64_t kScaleFetchAhead = 256;

// Sums under block scales: the products of a group of columns are added up by themselves, then
// scaled. add(weights, x, part) adds those of 16 columns, of which a panel has `half_bytes`.
template <class V, class Scales, int64_t half_bytes, int64_t token_bytes, int panels, int tokens,
          class Add>
[[gnu::always_inline]] inline void sum_groups(const Walk& walk, Sums<V, panels, tokens>& sums,
                                              const Add& add) {
  const uint8_t* weights = walk.weights;
  const uint8_t* scales = walk.scales;
  const uint8_t* x = walk.x;
  const int64_t halves = 2 * walk.blocks;
  const int64_t halves_per_group = Scales::kEveryHalf ? 1 : walk.group / kScaleBlock;
  sums.clear();
  for (int64_t half = 0; half < halves;) {
    Sums<V, panels, tokens> part;
    part.clear();
    const int64_t end = half + halves_per_group < halves ? half + halves_per_group : halves;
    for (; half < end; ++half) {
      add(weights, x, part);
      weights += half_bytes;
      x += half % 2 == 0 ? token_bytes / 2 : walk.x_stride - token_bytes / 2;
    }
    for (int p = 0; p < panels; ++p) {
      const auto scale = Scales::load(scales + p * walk.panel_stride);
      __builtin_prefetch(scales + p * walk.panel_stride + kScaleFetchAhead);
      for (int t = 0; t < tokens; ++t) sums.v[p][t] = V::fma(part.v[p][t], scale, sums.v[p][t]);
    }
    scales += Scales::kStep;
  }
}

}  // namespace levin::runtime::cpu
