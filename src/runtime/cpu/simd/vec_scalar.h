// 16 lanes in plain C++: the definition that the other vector headers follow, and the path for
// CPUs that have none of them.
#pragma once

#include <cstdint>

#include "runtime/cpu/kernels.h"

namespace levin::runtime::cpu {
namespace {

struct Scalar {
  struct F {  // 16 floats
    float v[kLanes];
    friend F operator+(F a, F b) {
      return map([&](int i) { return a.v[i] + b.v[i]; });
    }
    friend F operator-(F a, F b) {
      return map([&](int i) { return a.v[i] - b.v[i]; });
    }
    friend F operator*(F a, F b) {
      return map([&](int i) { return a.v[i] * b.v[i]; });
    }
    friend F operator/(F a, F b) {
      return map([&](int i) { return a.v[i] / b.v[i]; });
    }
  };
  struct I {  // 16 uint32
    uint32_t v[kLanes];
    friend I operator+(I a, I b) {
      return imap([&](int i) { return a.v[i] + b.v[i]; });
    }
    friend I operator-(I a, I b) {
      return imap([&](int i) { return a.v[i] - b.v[i]; });
    }
    friend I operator&(I a, I b) {
      return imap([&](int i) { return a.v[i] & b.v[i]; });
    }
    friend I operator|(I a, I b) {
      return imap([&](int i) { return a.v[i] | b.v[i]; });
    }
    friend I operator^(I a, I b) {
      return imap([&](int i) { return a.v[i] ^ b.v[i]; });
    }
  };
  struct M {  // all ones or all zeros
    uint32_t v[kLanes];
  };

  // Lane i of the result is f(i).
  template <typename Function>
  static F map(Function&& f) {
    F result;
    for (int i = 0; i < kLanes; ++i) result.v[i] = f(i);
    return result;
  }
  template <typename Function>
  static I imap(Function&& f) {
    I result;
    for (int i = 0; i < kLanes; ++i) result.v[i] = f(i);
    return result;
  }
  template <typename Function>
  static M mask(Function&& f) {
    M result;
    for (int i = 0; i < kLanes; ++i) result.v[i] = f(i) ? ~uint32_t{0} : 0u;
    return result;
  }

  // Tokens that one pass over the weights serves, and panels that it walks at once when each needs
  // `sums` vectors of sums: as many as the registers hold.
  // Whether 4-bit weights are multiplied as integers (linear_integer.h).
  static constexpr bool kIntegerProducts = false;
  static constexpr int kMaxTokens = 2;
  static constexpr int panels_at_once(int /*sums*/) { return 1; }

  static F zero() { return set(0.0F); }
  static F set(float x) {
    return map([&](int) { return x; });
  }
  static I set(uint32_t x) {
    return imap([&](int) { return x; });
  }
  static I lane_index() {
    return imap([](int i) { return static_cast<uint32_t>(i); });
  }

  // Pointers need no alignment except where said.
  static F load(const float* p) {
    return map([&](int i) { return p[i]; });
  }
  static void store(float* p, F x) { store_first(p, x, kLanes); }
  // Only the first n lanes, which may be more than 16; the others are zero.
  static F load_first(const float* p, int64_t n) {
    return map([&](int i) { return i < n ? p[i] : 0.0F; });
  }
  static void store_first(float* p, F x, int64_t n) {
    for (int i = 0; i < kLanes && i < n; ++i) p[i] = x.v[i];
  }
  static I load(const uint32_t* p) {
    return imap([&](int i) { return p[i]; });
  }

  static F fma(F a, F b, F c) { return a * b + c; }
  // The second operand when one is NaN.
  static F max(F a, F b) {
    return map([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
  }
  static F min(F a, F b) {
    return map([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
  }
  static float sum(F a) {
    for (int half = kLanes / 2; half > 0; half /= 2) {
      for (int i = 0; i < half; ++i) a.v[i] += a.v[i + half];
    }
    return a.v[0];
  }
  static float largest(F a) {
    float result = a.v[0];
    for (const float x : a.v) result = x > result ? x : result;
    return result;
  }

  static I bits(F a) {
    return imap([&](int i) { return __builtin_bit_cast(uint32_t, a.v[i]); });
  }
  static F floats(I a) {
    return map([&](int i) { return __builtin_bit_cast(float, a.v[i]); });
  }
  // Signed, to nearest even.
  static I to_int(F a) {
    return imap([&](int i) {
      // The last mantissa bit of a float in [2^23, 2^24) is 1: adding 1.5 * 2^23 rounds.
      const float shifted = a.v[i] + 12582912.0F;
      return __builtin_bit_cast(uint32_t, shifted) - 0x4b400000u;
    });
  }
  static F to_float(I a) {
    return map([&](int i) { return static_cast<float>(static_cast<int32_t>(a.v[i])); });
  }
  template <int n>
  static I shift_left(I a) {
    return imap([&](int i) { return a.v[i] << n; });
  }
  template <int n>
  static I shift_right(I a) {
    return imap([&](int i) { return a.v[i] >> n; });
  }
  // 64-bit products of 32-bit lanes.
  static void multiply_wide(I a, I b, I& high, I& low) {
    for (int i = 0; i < kLanes; ++i) {
      const uint64_t product = uint64_t{a.v[i]} * b.v[i];
      high.v[i] = static_cast<uint32_t>(product >> 32);
      low.v[i] = static_cast<uint32_t>(product);
    }
  }

  static M less(F a, F b) {
    return mask([&](int i) { return a.v[i] < b.v[i]; });
  }
  static M less_equal(F a, F b) {
    return mask([&](int i) { return a.v[i] <= b.v[i]; });
  }
  static M less(I a, I b) {
    return mask([&](int i) { return a.v[i] < b.v[i]; });
  }
  static F select(M m, F yes, F no) { return floats(select(m, bits(yes), bits(no))); }
  static I select(M m, I yes, I no) {
    return imap([&](int i) { return (yes.v[i] & m.v[i]) | (no.v[i] & ~m.v[i]); });
  }

  static F load_bf16(const uint16_t* p) {
    return map([&](int i) { return __builtin_bit_cast(float, uint32_t{p[i]} << 16); });
  }
  static void store_bf16(uint16_t* p, F x) {
    for (int i = 0; i < kLanes; ++i) {
      const auto b = __builtin_bit_cast(uint32_t, x.v[i]);
      const bool nan = (b & 0x7fffffffu) > 0x7f800000u;
      p[i] =
          static_cast<uint16_t>(nan ? (b >> 16) | 0x40u : (b + 0x7fffu + ((b >> 16) & 1u)) >> 16);
    }
  }
  static F load_f16(const uint16_t* p) {
    return map([&](int i) { return f16_value(p[i]); });
  }
  static void store_f16(uint16_t* p, F x) {
    for (int i = 0; i < kLanes; ++i) p[i] = f16_code(x.v[i]);
  }
  static F round_f16(F x) {
    return map([&](int i) { return f16_value(f16_code(x.v[i])); });
  }

  // Block scales are E4M3 without sign; this returns them divided by kBlockScaleFactor.
  static constexpr float kBlockScaleFactor = 1.0F;
  static F load_block_scale(const uint8_t* p) {
    return map([&](int i) { return e4m3_value(p[i]); });
  }

  // 16 rows times two neighbouring columns of weights. Pointers are aligned to 64 bytes.
  struct Pair {
    F even, odd;
  };
  static Pair load_pair(const void* p) {
    const auto* words = static_cast<const uint32_t*>(p);
    return pair_of([&](int i) { return words[i] << 16; },
                   [&](int i) { return words[i] & 0xffff0000u; });
  }
  static F even(Pair p) { return p.even; }
  static F odd(Pair p) { return p.odd; }
  // The same two columns of one token.
  struct PairInput {
    float even, odd;
  };
  static PairInput broadcast_pair(const uint32_t* p) {
    return {__builtin_bit_cast(float, *p << 16), __builtin_bit_cast(float, *p & 0xffff0000u)};
  }
  static F dot(F sum, Pair w, PairInput x) {
    return map([&](int i) { return (sum.v[i] + w.even.v[i] * x.even) + w.odd.v[i] * x.odd; });
  }

  // Values of the 16 codes of a 4-bit format.
  struct NibbleTable {
    const float* values;
  };
  static NibbleTable nibble_table(const float* values) { return {values}; }
  using Nibbles = I;
  static Nibbles load_nibbles(const uint8_t* p) {
    return load(reinterpret_cast<const uint32_t*>(p));
  }
  // Columns 2 i and 2 i + 1 of the eight.
  template <int i>
  static Pair nibble_pair(Nibbles n, const NibbleTable& t) {
    return {map([&](int lane) { return t.values[(n.v[lane] >> (4 * i)) & 15u]; }),
            map([&](int lane) { return t.values[(n.v[lane] >> (16 + 4 * i)) & 15u]; })};
  }

  struct Fp8Table {};
  static Fp8Table fp8_table() { return {}; }
  using Fp8Codes = const uint8_t*;
  static Fp8Codes load_fp8(const uint8_t* p, const Fp8Table& /*unused*/) { return p; }
  // Columns 2 i and 2 i + 1 of the four.
  template <int i>
  static Pair fp8_pair(Fp8Codes p, const Fp8Table& /*unused*/) {
    const auto at = [&](int lane, int column) {
      return e4m3_value(p[16 * (lane / 4) + 8 * i + 2 * (lane % 4) + column]);
    };
    return {map([&](int lane) { return at(lane, 0); }), map([&](int lane) { return at(lane, 1); })};
  }

 private:
  template <typename Even, typename Odd>
  static Pair pair_of(Even&& even_bits, Odd&& odd_bits) {
    return {map([&](int i) { return __builtin_bit_cast(float, even_bits(i)); }),
            map([&](int i) { return __builtin_bit_cast(float, odd_bits(i)); })};
  }

  static float e4m3_value(uint8_t code) {
    const uint32_t magnitude = code & 0x7fu;
    const float value = magnitude < 8
                            ? static_cast<float>(magnitude) * 0x1p-9F
                            : __builtin_bit_cast(float, (magnitude << 20) + (uint32_t{120} << 23));
    return (code & 0x80u) != 0 ? -value : value;
  }
  static float f16_value(uint16_t code) {
    const uint32_t sign = uint32_t{code & 0x8000u} << 16;
    const uint32_t magnitude = code & 0x7fffu;
    uint32_t bits = (magnitude << 13) + (uint32_t{112} << 23);
    if (magnitude >= 0x7c00u) bits += uint32_t{112} << 23;
    if (magnitude < 0x0400u) {
      bits = __builtin_bit_cast(uint32_t, static_cast<float>(magnitude) * 0x1p-24F);
    }
    return __builtin_bit_cast(float, sign | bits);
  }
  static uint16_t f16_code(float value) {
    const auto bits = __builtin_bit_cast(uint32_t, value);
    const uint32_t sign = (bits >> 16) & 0x8000u;
    const uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
    if (magnitude >= 0x47800000u) return static_cast<uint16_t>(sign | 0x7c00u);
    if (magnitude < 0x38800000u) {
      // Below 2^-14 the codes are multiples of 2^-24, the spacing of float32 at 1/2.
      const float steps = __builtin_bit_cast(float, magnitude) + 0.5F;
      return static_cast<uint16_t>(sign | (__builtin_bit_cast(uint32_t, steps) - 0x3f000000u));
    }
    const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    return static_cast<uint16_t>(sign | ((rounded >> 13) - (uint32_t{112} << 10)));
  }
};

}  // namespace
}  // namespace levin::runtime::cpu
