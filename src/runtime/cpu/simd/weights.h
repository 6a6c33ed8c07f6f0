// How the bytes of a panel become operands (layouts: kernels.h), for any vector type V.
//
// A weight format says how many bytes a step takes (kStep), how many column pairs it holds
// (kPairs), whether to fetch it ahead (kPrefetch), how to load a step and how to get a pair out of
// it.
#pragma once

#include <cstdint>

#include "runtime/cpu/kernels.h"

namespace levin::runtime::cpu {

// Calls f.operator()<0>() ... f.operator()<n - 1>(), unrolled.
template <int n, int i = 0, class Function>
[[gnu::always_inline]] inline void unrolled(const Function& f) {
  if constexpr (i < n) {
    f.template operator()<i>();
    unrolled<n, i + 1>(f);
  }
}

template <class V>
struct Bf16Weights {
  static constexpr int kStep = 64;
  static constexpr int kPairs = 1;
  static constexpr bool kPrefetch = false;
  using Raw = typename V::Pair;
  Raw load(const uint8_t* p) const { return V::load_pair(p); }
  template <int i>
  typename V::Pair pair(const Raw& raw) const {
    return raw;
  }
};

template <class V>
struct Fp8Weights {
  static constexpr int kStep = 64;
  static constexpr int kPairs = 2;
  static constexpr bool kPrefetch = true;
  using Raw = typename V::Fp8Codes;
  typename V::Fp8Table table = V::fp8_table();
  Raw load(const uint8_t* p) const { return V::load_fp8(p, table); }
  template <int i>
  typename V::Pair pair(const Raw& raw) const {
    return V::template fp8_pair<i>(raw, table);
  }
};

template <class V>
struct NibbleWeights {
  static constexpr int kStep = 64;
  static constexpr int kPairs = 4;
  static constexpr bool kPrefetch = true;
  using Raw = typename V::Nibbles;
  typename V::NibbleTable table;
  Raw load(const uint8_t* p) const { return V::load_nibbles(p); }
  template <int i>
  typename V::Pair pair(const Raw& raw) const {
    return V::template nibble_pair<i>(raw, table);
  }
};

// What decode_panel() leaves in scratch memory: pairs as this instruction set multiplies them.
template <class V>
struct DecodedWeights {
  using Raw = typename V::Pair;
  static constexpr int kStep = sizeof(Raw);
  static constexpr int kPairs = 1;
  static constexpr bool kPrefetch = false;
  Raw load(const uint8_t* p) const { return *reinterpret_cast<const Raw*>(p); }
  template <int i>
  typename V::Pair pair(const Raw& raw) const {
    return raw;
  }
};

// Values of the codes 0..15.
alignas(64) constexpr float kE2M1Table[kLanes] = {0.0F,  0.5F,  1.0F,  1.5F,  2.0F,  3.0F,
                                                  4.0F,  6.0F,  -0.0F, -0.5F, -1.0F, -1.5F,
                                                  -2.0F, -3.0F, -4.0F, -6.0F};
alignas(64) constexpr float kInt4Table[kLanes] = {-8, -7, -6, -5, -4, -3, -2, -1,
                                                  0,  1,  2,  3,  4,  5,  6,  7};

// Block scales, one vector per group of columns; what is loaded times kFactor is the scale.
// kEveryHalf: a group is 16 columns.
template <class V>
struct E4m3Scales {
  static constexpr bool kEveryHalf = true;
  static constexpr int kStep = kLanes;
  static constexpr float kFactor = V::kBlockScaleFactor;
  static typename V::F load(const uint8_t* p) { return V::load_block_scale(p); }
};

template <class V>
struct Bf16Scales {
  static constexpr bool kEveryHalf = false;
  static constexpr int kStep = 2 * kLanes;
  static constexpr float kFactor = 1.0F;
  static typename V::F load(const uint8_t* p) {
    return V::load_bf16(reinterpret_cast<const uint16_t*>(p));
  }
};

template <class V, class Encoded>
struct DecodedScales {
  static constexpr bool kEveryHalf = Encoded::kEveryHalf;
  static constexpr int kStep = 4 * kLanes;
  static constexpr float kFactor = Encoded::kFactor;
  static typename V::F load(const uint8_t* p) { return V::load(reinterpret_cast<const float*>(p)); }
};

// Formats that meet float32 activations: a step holds kColumns columns.
template <class V>
struct Bf16Columns {
  static constexpr int kStep = 64;
  static constexpr int kColumns = 2;
  using Raw = typename V::Pair;
  static Raw load(const uint8_t* p) { return V::load_pair(p); }
  template <int i>
  static typename V::F column(const Raw& raw) {
    return i == 0 ? V::even(raw) : V::odd(raw);
  }
};

template <class V>
struct F16Columns {
  static constexpr int kStep = 32;
  static constexpr int kColumns = 1;
  using Raw = typename V::F;
  static Raw load(const uint8_t* p) { return V::load_f16(reinterpret_cast<const uint16_t*>(p)); }
  template <int i>
  static typename V::F column(const Raw& raw) {
    return raw;
  }
};

template <class V>
struct F32Columns {
  static constexpr int kStep = 64;
  static constexpr int kColumns = 1;
  using Raw = typename V::F;
  static Raw load(const uint8_t* p) { return V::load(reinterpret_cast<const float*>(p)); }
  template <int i>
  static typename V::F column(const Raw& raw) {
    return raw;
  }
};

}  // namespace levin::runtime::cpu
