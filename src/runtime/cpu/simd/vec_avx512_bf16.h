// AVX-512 with BF16 dot products and byte permutes (BF16, VBMI): weights stay BF16 pairs.
#pragma once

#include "runtime/cpu/simd/vec_avx512.h"

namespace levin::runtime::cpu {
namespace {

// Upper or lower bytes of the BF16 numbers that the E4M3 codes 0..127 stand for.
struct Fp8Bytes {
  alignas(64) uint8_t upper[128];
  alignas(64) uint8_t lower[128];
};
constexpr Fp8Bytes make_fp8_bytes() {
  Fp8Bytes bytes{};
  for (unsigned code = 0; code < 128; ++code) {
    unsigned exponent = code >> 3;
    unsigned mantissa = code & 7u;
    if (exponent == 0 && mantissa != 0) {  // subnormal: BF16 has the range to normalize it
      exponent = 1;
      while ((mantissa & 8u) == 0) {
        mantissa <<= 1;
        --exponent;  // wraps below zero; the bias below makes it positive again
      }
      mantissa &= 7u;
    }
    const unsigned value = code == 0 ? 0 : ((exponent + 120u) << 7) | (mantissa << 4);
    bytes.upper[code] = static_cast<uint8_t>(value >> 8);
    bytes.lower[code] = static_cast<uint8_t>(value);
  }
  return bytes;
}
constexpr Fp8Bytes kFp8Bytes = make_fp8_bytes();

struct Avx512Bf16 : Avx512 {
  static void store_bf16(uint16_t* p, F x) {
    const __m256bh rounded = _mm512_cvtneps_pbh(x.v);
    __builtin_memcpy(p, &rounded, sizeof(rounded));
  }

  struct Pair {
    __m512i v;
  };
  static Pair load_pair(const void* p) { return {_mm512_load_si512(p)}; }
  static F even(Pair p) { return floats(shift_left<16>({p.v})); }
  static F odd(Pair p) { return floats(I{p.v} & set(0xffff0000u)); }
  using PairInput = Pair;
  static PairInput broadcast_pair(const uint32_t* p) { return {set(*p).v}; }
  static F dot(F sum, Pair w, PairInput x) {
    return {_mm512_dpbf16_ps(sum.v, bf16(w.v), bf16(x.v))};
  }

  // Integer products: 64 weights as unsigned bytes, 4 columns of 16 rows.
  static constexpr bool kIntegerProducts = true;
  struct Bytes {
    __m512i v;
  };
  struct ByteTable {
    __m512i values;
  };
  // The lookup uses six bits of each byte: all quarters of the table are the same.
  static ByteTable byte_table(const uint8_t* values) {
    return {_mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(values)))};
  }
  // Of each byte the lower nibble (0) or the upper one (1).
  template <int i>
  static Bytes nibble_bytes(Nibbles n, const ByteTable& t) {
    return {_mm512_permutexvar_epi8(i == 0 ? n.v : _mm512_srli_epi16(n.v, 4), t.values)};
  }
  // Adds the products with 4 signed bytes.
  static I dot(I sum, Bytes w, const int8_t* x) {
    int32_t four;
    __builtin_memcpy(&four, x, sizeof(four));
    return {_mm512_dpbusd_epi32(sum.v, w.v, _mm512_set1_epi32(four))};
  }
  static I permute(I x, const uint32_t* order) {
    return {_mm512_permutexvar_epi32(_mm512_loadu_si512(order), x.v)};
  }
  static void store_bytes(int8_t* p, I x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(x.v));
  }
  static I arithmetic_shift_right_8(I x) { return {_mm512_srai_epi32(x.v, 8)}; }
  static int32_t sum(I x) { return _mm512_reduce_add_epi32(x.v); }
  using Avx512::sum;
  static bool finite(F x) {
    constexpr int kNanOrInfinite = 0x99;
    return _mm512_fpclass_ps_mask(x.v, kNanOrInfinite) == 0;
  }

  struct Fp8Table {
    __m512i upper[2], lower[2];
  };
  static Fp8Table fp8_table() {
    return {{_mm512_load_si512(kFp8Bytes.upper), _mm512_load_si512(kFp8Bytes.upper + 64)},
            {_mm512_load_si512(kFp8Bytes.lower), _mm512_load_si512(kFp8Bytes.lower + 64)}};
  }
  struct Fp8Codes {
    __m512i upper, lower;
  };
  static Fp8Codes load_fp8(const uint8_t* p, const Fp8Table& t) {
    const __m512i codes = _mm512_load_si512(p);
    const __m512i upper = _mm512_permutex2var_epi8(t.upper[0], codes, t.upper[1]);
    const __m512i lower = _mm512_permutex2var_epi8(t.lower[0], codes, t.lower[1]);
    // upper | (codes & 0x80)
    return {_mm512_ternarylogic_epi32(upper, codes, _mm512_set1_epi8(-0x80), 0xf8), lower};
  }
  template <int i>
  static Pair fp8_pair(Fp8Codes codes, const Fp8Table& /*unused*/) {
    return {i == 0 ? _mm512_unpacklo_epi8(codes.lower, codes.upper)
                   : _mm512_unpackhi_epi8(codes.lower, codes.upper)};
  }

 private:
  static __m512bh bf16(__m512i v) { return __builtin_bit_cast(__m512bh, v); }
};

}  // namespace
}  // namespace levin::runtime::cpu
