// Products of 4-bit weights with activations of one or two 8-bit digits (kernels.h, IntegerHalf):
// exact integer sums of 16 columns, which are then scaled. Decoding a weight is one byte lookup,
// and 4 columns of 16 rows are multiplied at once, where BF16 takes a lookup and a product for 2.
//
// A sum of 16 products is below 2^24, so that it is exact as a float32, too.
#pragma once

#include <cstdint>

#include "runtime/cpu/kernels.h"
#include "runtime/cpu/simd/walk.h"
#include "runtime/cpu/simd/weights.h"

namespace levin::runtime::cpu {

// Codes 0..15 as unsigned bytes; a byte less kWeightOffset, times kFactor, is the code's value.
struct E2m1Integers {
  static constexpr float kFactor = 0.5F;
  static constexpr uint8_t kBytes[kLanes] = {12, 13, 14, 15, 16, 18, 20, 24,
                                             12, 11, 10, 9,  8,  6,  4,  0};
};
struct Int4Integers {
  static constexpr float kFactor = 1.0F;
  static constexpr uint8_t kBytes[kLanes] = {4,  5,  6,  7,  8,  9,  10, 11,
                                             12, 13, 14, 15, 16, 17, 18, 19};
};

template <class V, class Codes, class Scales, int digits>
struct IntegerFormat {
  using Half = IntegerHalf<digits>;
  static constexpr bool kEveryCount = true;
  static constexpr int64_t kTokenBytes = 2 * sizeof(Half);
  // Two at least, so that a broadcast serves two products.
  static constexpr int panels_at_once(int tokens) { return tokens == 1 ? 4 : 2; }
  static constexpr float kFactor = Codes::kFactor * Scales::kFactor;
  static constexpr int64_t kHalfBytes = kLanes * kScaleBlock / 2;
  typename V::ByteTable table;

  // Adds the sums of 16 columns, times the activations' scales. `ahead`: what to fetch meanwhile.
  template <int panels, int tokens>
  [[gnu::always_inline]] void half(const uint8_t* weights, const uint8_t* ahead,
                                   int64_t panel_stride, const uint8_t* x,
                                   Sums<V, panels, tokens>& part) const {
    typename V::Bytes w[panels][4];
    for (int p = 0; p < panels; ++p) {
      const uint8_t* from = weights + p * panel_stride;
      unrolled<2>([&]<int i>() __attribute__((always_inline)) {
        const auto raw = V::load_nibbles(from + i * kHalfBytes / 2);
        __builtin_prefetch(ahead + p * panel_stride + i * kHalfBytes / 2);
        w[p][2 * i] = V::template nibble_bytes<0>(raw, table);
        w[p][2 * i + 1] = V::template nibble_bytes<1>(raw, table);
      });
    }
    // So many sums at a time that the next product need not wait for the one before.
    constexpr int kTogether = digits * panels < 8 ? 8 / (digits * panels) : 1;
    for (int first = 0; first < tokens; first += kTogether) {
      typename V::I sums[digits][panels][kTogether];
      const auto each = [&](const auto& f) __attribute__((always_inline)) {
        for (int t = 0; t < kTogether && first + t < tokens; ++t) {
          f(t, *reinterpret_cast<const Half*>(x + (first + t) * kTokenBytes));
        }
      };
      each([&](int t, const Half& in) __attribute__((always_inline)) {
        for (int p = 0; p < panels; ++p) {
          if constexpr (digits == 2) sums[0][p][t] = V::set(0U);
          sums[digits - 1][p][t] = V::set(static_cast<uint32_t>(in.offset));
        }
      });
      for (int i = 0; i < 4; ++i) {
        each([&](int t, const Half& in) __attribute__((always_inline)) {
          for (int d = 0; d < digits; ++d) {
            for (int p = 0; p < panels; ++p) {
              sums[d][p][t] = V::dot(sums[d][p][t], w[p][i], in.digits[d] + 4 * i);
            }
          }
        });
      }
      each([&](int t, const Half& in) __attribute__((always_inline)) {
        const auto scale = V::set(in.scale);
        for (int p = 0; p < panels; ++p) {
          auto sum = sums[digits - 1][p][t];
          if constexpr (digits == 2) sum = sum + V::template shift_left<8>(sums[0][p][t]);
          auto& to = part.v[p][first + t];
          to = V::fma(V::to_float(sum), scale, to);
        }
      });
    }
  }

  template <int panels, int tokens>
  [[gnu::always_inline]] void sum(const Walk& walk, Sums<V, panels, tokens>& sums) const {
    // How far ahead of its loads weights are fetched: for several tokens from half as many panels,
    // so as many bytes ahead in all.
    constexpr int64_t kAhead = tokens == 1 ? 1024 : 2048;
    // After the last weights of these panels the first ones of the next are fetched.
    const int64_t bytes = 2 * walk.blocks * kHalfBytes;
    const uint8_t* const end = walk.weights + bytes;
    const int64_t to_next = panels * walk.panel_stride - bytes;
    sum_groups<V, Scales, kHalfBytes, kTokenBytes>(
        walk, sums,
        [&](const uint8_t* weights, const uint8_t* x, auto& part) __attribute__((always_inline)) {
          const uint8_t* ahead = weights + kAhead;
          if (ahead >= end) ahead += to_next;
          half(weights, ahead, walk.panel_stride, x, part);
        });
  }
};

}  // namespace levin::runtime::cpu
