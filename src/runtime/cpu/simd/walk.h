// What a linear kernel walks over and where it adds up.
#pragma once

#include <cstdint>

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

}  // namespace levin::runtime::cpu
