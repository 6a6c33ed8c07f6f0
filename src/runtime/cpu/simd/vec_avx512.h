// 16 lanes on AVX-512 F, BW, DQ, VL. Only translation units compiled for it include this; what each
// function does is documented where every CPU can read it, in vec_scalar.h.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "runtime/cpu/kernels.h"

namespace levin::runtime::cpu {
namespace {

struct Avx512 {
  struct F {
    __m512 v;
    friend F operator+(F a, F b) { return {_mm512_add_ps(a.v, b.v)}; }
    friend F operator-(F a, F b) { return {_mm512_sub_ps(a.v, b.v)}; }
    friend F operator*(F a, F b) { return {_mm512_mul_ps(a.v, b.v)}; }
    friend F operator/(F a, F b) { return {_mm512_div_ps(a.v, b.v)}; }
  };
  struct I {
    __m512i v;
    friend I operator+(I a, I b) { return {_mm512_add_epi32(a.v, b.v)}; }
    friend I operator-(I a, I b) { return {_mm512_sub_epi32(a.v, b.v)}; }
    friend I operator&(I a, I b) { return {_mm512_and_si512(a.v, b.v)}; }
    friend I operator|(I a, I b) { return {_mm512_or_si512(a.v, b.v)}; }
    friend I operator^(I a, I b) { return {_mm512_xor_si512(a.v, b.v)}; }
  };
  struct M {
    __mmask16 v;
  };

  static constexpr bool kIntegerProducts = false;
  static constexpr int kMaxTokens = 8;
  static constexpr int panels_at_once(int sums) { return sums <= 2 ? 4 : sums <= 10 ? 2 : 1; }

  static F zero() { return {_mm512_setzero_ps()}; }
  static F set(float x) { return {_mm512_set1_ps(x)}; }
  static I set(uint32_t x) { return {_mm512_set1_epi32(static_cast<int>(x))}; }
  static I lane_index() {
    return {_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)};
  }

  static F load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static void store(float* p, F x) { _mm512_storeu_ps(p, x.v); }
  static F load_first(const float* p, int64_t n) {
    return n >= kLanes ? load(p) : F{_mm512_maskz_loadu_ps(first(n), p)};
  }
  static void store_first(float* p, F x, int64_t n) {
    n >= kLanes ? store(p, x) : _mm512_mask_storeu_ps(p, first(n), x.v);
  }
  static I load(const uint32_t* p) { return {_mm512_loadu_si512(p)}; }

  static F fma(F a, F b, F c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
  static F max(F a, F b) { return {_mm512_max_ps(a.v, b.v)}; }
  static F min(F a, F b) { return {_mm512_min_ps(a.v, b.v)}; }
  static float sum(F a) { return _mm512_reduce_add_ps(a.v); }
  static float largest(F a) { return _mm512_reduce_max_ps(a.v); }

  static I bits(F a) { return {_mm512_castps_si512(a.v)}; }
  static F floats(I a) { return {_mm512_castsi512_ps(a.v)}; }
  static I to_int(F a) { return {_mm512_cvtps_epi32(a.v)}; }
  static F to_float(I a) { return {_mm512_cvtepi32_ps(a.v)}; }
  template <int n>
  static I shift_left(I a) {
    return {_mm512_slli_epi32(a.v, n)};
  }
  template <int n>
  static I shift_right(I a) {
    return {_mm512_srli_epi32(a.v, n)};
  }
  // 64-bit products of 32-bit lanes.
  static void multiply_wide(I a, I b, I& high, I& low) {
    const __m512i even = _mm512_mul_epu32(a.v, b.v);
    const __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(a.v, 32), _mm512_srli_epi64(b.v, 32));
    high.v = _mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd);
    low.v = _mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32));
  }

  static M less(F a, F b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
  static M less_equal(F a, F b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LE_OQ)}; }
  static M less(I a, I b) { return {_mm512_cmplt_epu32_mask(a.v, b.v)}; }
  static F select(M m, F yes, F no) { return {_mm512_mask_blend_ps(m.v, no.v, yes.v)}; }
  static I select(M m, I yes, I no) { return {_mm512_mask_blend_epi32(m.v, no.v, yes.v)}; }

  static F load_bf16(const uint16_t* p) { return floats(shift_left<16>({load_words(p)})); }
  static void store_bf16(uint16_t* p, F x) {
    const I b = bits(x);
    const I rounded = shift_right<16>(b + set(0x7fffu) + (shift_right<16>(b) & set(1u)));
    const I nan = shift_right<16>(b) | set(0x40u);
    const I word = {
        _mm512_mask_blend_epi32(_mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q), rounded.v, nan.v)};
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(word.v));
  }
  static F load_f16(const uint16_t* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
  }
  static void store_f16(uint16_t* p, F x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(x.v, kNearest));
  }
  static F round_f16(F x) { return {_mm512_cvtph_ps(_mm512_cvtps_ph(x.v, kNearest))}; }

  // An E4M3 code shifted into F16's place is 2^-8 times its value.
  static constexpr float kBlockScaleFactor = 256.0F;
  static F load_block_scale(const uint8_t* p) {
    const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {_mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(codes), 7))};
  }

  struct Pair {
    F even, odd;
  };
  static Pair load_pair(const void* p) {
    const I words = {_mm512_load_si512(p)};
    return {floats(shift_left<16>(words)), floats(words & set(0xffff0000u))};
  }
  static F even(Pair p) { return p.even; }
  static F odd(Pair p) { return p.odd; }
  using PairInput = Pair;
  static PairInput broadcast_pair(const uint32_t* p) {
    const I words = set(*p);
    return {floats(shift_left<16>(words)), floats(words & set(0xffff0000u))};
  }
  static F dot(F sum, Pair w, PairInput x) { return fma(w.odd, x.odd, fma(w.even, x.even, sum)); }

  struct NibbleTable {
    __m512 values;
  };
  static NibbleTable nibble_table(const float* values) { return {_mm512_loadu_ps(values)}; }
  using Nibbles = I;
  static Nibbles load_nibbles(const uint8_t* p) { return {_mm512_load_si512(p)}; }
  template <int i>
  static Pair nibble_pair(Nibbles n, const NibbleTable& t) {
    return {{_mm512_permutexvar_ps(_mm512_srli_epi32(n.v, 4 * i), t.values)},
            {_mm512_permutexvar_ps(_mm512_srli_epi32(n.v, 16 + 4 * i), t.values)}};
  }

  struct Fp8Table {};
  static Fp8Table fp8_table() { return {}; }
  using Fp8Codes = I;
  static Fp8Codes load_fp8(const uint8_t* p, const Fp8Table& /*unused*/) {
    return {_mm512_load_si512(p)};
  }
  template <int i>
  static Pair fp8_pair(Fp8Codes codes, const Fp8Table& /*unused*/) {
    // Bytes 8 i + j of each 128 bits to 16-bit lanes, as the upper byte: an E4M3 code there, with
    // its seven lower bits one place down, is an F16 number, 2^-8 times its value.
    const __m512i words = i == 0 ? _mm512_unpacklo_epi8(_mm512_setzero_si512(), codes.v)
                                 : _mm512_unpackhi_epi8(_mm512_setzero_si512(), codes.v);
    const __m512i sign = _mm512_and_si512(words, _mm512_set1_epi16(-0x8000));
    const __m512i magnitude =
        _mm512_and_si512(_mm512_srli_epi16(words, 1), _mm512_set1_epi16(0x3f80));
    const __m512i halves = _mm512_or_si512(sign, magnitude);
    const F factor = set(256.0F);
    return {F{_mm512_cvtph_ps(_mm512_cvtepi32_epi16(halves))} * factor,
            F{_mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(halves, 16)))} * factor};
  }

 private:
  static constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  static __mmask16 first(int64_t n) { return static_cast<__mmask16>((1u << n) - 1u); }
  static __m512i load_words(const uint16_t* p) {
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
};

}  // namespace
}  // namespace levin::runtime::cpu
