// 16 lanes as two AVX2 registers (AVX2, FMA, F16C). Only translation units compiled for it include
// this; what each function does is documented in vec_scalar.h.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "runtime/cpu/kernels.h"

namespace levin::runtime::cpu {
namespace {

struct Avx2 {
  struct F {
    __m256 a, b;
    friend F operator+(F x, F y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
    friend F operator-(F x, F y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
    friend F operator*(F x, F y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
    friend F operator/(F x, F y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
  };
  struct I {
    __m256i a, b;
    friend I operator+(I x, I y) {
      return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)};
    }
    friend I operator-(I x, I y) {
      return {_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)};
    }
    friend I operator&(I x, I y) {
      return {_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)};
    }
    friend I operator|(I x, I y) { return {_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)}; }
    friend I operator^(I x, I y) {
      return {_mm256_xor_si256(x.a, y.a), _mm256_xor_si256(x.b, y.b)};
    }
  };
  using M = I;  // all ones or all zeros

  static constexpr bool kIntegerProducts = false;
  static constexpr int kMaxTokens = 4;
  static constexpr int panels_at_once(int sums) { return sums == 1 ? 2 : 1; }

  static F zero() { return set(0.0F); }
  static F set(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  static I set(uint32_t x) {
    const __m256i half = _mm256_set1_epi32(static_cast<int>(x));
    return {half, half};
  }
  static I lane_index() {
    return {_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7),
            _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15)};
  }

  static F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static void store(float* p, F x) {
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
  }
  static F load_first(const float* p, int64_t n) {
    if (n >= kLanes) return load(p);
    const I m = first(n);
    return {_mm256_maskload_ps(p, m.a),
            n > 8 ? _mm256_maskload_ps(p + 8, m.b) : _mm256_setzero_ps()};
  }
  static void store_first(float* p, F x, int64_t n) {
    if (n >= kLanes) return store(p, x);
    const I m = first(n);
    _mm256_maskstore_ps(p, m.a, x.a);
    if (n > 8) _mm256_maskstore_ps(p + 8, m.b, x.b);
  }
  static I load(const uint32_t* p) {
    const auto* q = reinterpret_cast<const __m256i*>(p);
    return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
  }

  static F fma(F x, F y, F z) {
    return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
  }
  static F max(F x, F y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
  static F min(F x, F y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
  static float sum(F x) {
    const __m256 h = _mm256_add_ps(x.a, x.b);
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
  }
  static float largest(F x) {
    const __m256 h = _mm256_max_ps(x.a, x.b);
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
  }

  static I bits(F x) { return {_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)}; }
  static F floats(I x) { return {_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)}; }
  static I to_int(F x) { return {_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }
  static F to_float(I x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
  template <int n>
  static I shift_left(I x) {
    return {_mm256_slli_epi32(x.a, n), _mm256_slli_epi32(x.b, n)};
  }
  template <int n>
  static I shift_right(I x) {
    return {_mm256_srli_epi32(x.a, n), _mm256_srli_epi32(x.b, n)};
  }
  static void multiply_wide(I x, I y, I& high, I& low) {
    multiply_wide(x.a, y.a, high.a, low.a);
    multiply_wide(x.b, y.b, high.b, low.b);
  }

  static M less(F x, F y) { return compare<_CMP_LT_OQ>(x, y); }
  static M less_equal(F x, F y) { return compare<_CMP_LE_OQ>(x, y); }
  static M less(I x, I y) {
    const I flip = set(0x80000000u);  // unsigned order as signed order
    const I p = x ^ flip;
    const I q = y ^ flip;
    return {_mm256_cmpgt_epi32(q.a, p.a), _mm256_cmpgt_epi32(q.b, p.b)};
  }
  static F select(M m, F yes, F no) {
    return {_mm256_blendv_ps(no.a, yes.a, _mm256_castsi256_ps(m.a)),
            _mm256_blendv_ps(no.b, yes.b, _mm256_castsi256_ps(m.b))};
  }
  static I select(M m, I yes, I no) { return bits(select(m, floats(yes), floats(no))); }

  static F load_bf16(const uint16_t* p) {
    const auto* q = reinterpret_cast<const __m128i*>(p);
    return floats(shift_left<16>(I{_mm256_cvtepu16_epi32(_mm_loadu_si128(q)),
                                   _mm256_cvtepu16_epi32(_mm_loadu_si128(q + 1))}));
  }
  static void store_bf16(uint16_t* p, F x) {
    const I b = bits(x);
    const I rounded = shift_right<16>(b + set(0x7fffu) + (shift_right<16>(b) & set(1u)));
    const I nan = shift_right<16>(b) | set(0x40u);
    const I word = select(compare<_CMP_UNORD_Q>(x, x), nan, rounded);
    // The pack interleaves 64-bit pieces of both registers.
    const __m256i packed = _mm256_packus_epi32(word.a, word.b);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xd8));
  }
  static F load_f16(const uint16_t* p) {
    const auto* q = reinterpret_cast<const __m128i*>(p);
    return {_mm256_cvtph_ps(_mm_loadu_si128(q)), _mm256_cvtph_ps(_mm_loadu_si128(q + 1))};
  }
  static void store_f16(uint16_t* p, F x) {
    auto* q = reinterpret_cast<__m128i*>(p);
    _mm_storeu_si128(q, _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128(q + 1, _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT));
  }
  static F round_f16(F x) {
    return {_mm256_cvtph_ps(_mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT)),
            _mm256_cvtph_ps(_mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT))};
  }

  // An E4M3 code shifted into F16's place is 2^-8 times its value.
  static constexpr float kBlockScaleFactor = 256.0F;
  static F load_block_scale(const uint8_t* p) {
    const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const __m256i halves = _mm256_slli_epi16(_mm256_cvtepu8_epi16(codes), 7);
    return {_mm256_cvtph_ps(_mm256_castsi256_si128(halves)),
            _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1))};
  }

  struct Pair {
    F even, odd;
  };
  static Pair load_pair(const void* p) {
    const I words = load(static_cast<const uint32_t*>(p));
    return {floats(shift_left<16>(words)), floats(words & set(0xffff0000u))};
  }
  static F even(Pair p) { return p.even; }
  static F odd(Pair p) { return p.odd; }
  struct PairInput {
    __m256 even, odd;
  };
  static PairInput broadcast_pair(const uint32_t* p) {
    const __m256i words = _mm256_set1_epi32(static_cast<int>(*p));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(words, 16)),
            _mm256_castsi256_ps(
                _mm256_and_si256(words, _mm256_set1_epi32(static_cast<int>(0xffff0000u))))};
  }
  static F dot(F sum, Pair w, PairInput x) {
    return {_mm256_fmadd_ps(w.odd.a, x.odd, _mm256_fmadd_ps(w.even.a, x.even, sum.a)),
            _mm256_fmadd_ps(w.odd.b, x.odd, _mm256_fmadd_ps(w.even.b, x.even, sum.b))};
  }

  struct NibbleTable {
    __m256 low, high;
  };
  static NibbleTable nibble_table(const float* values) {
    return {_mm256_loadu_ps(values), _mm256_loadu_ps(values + 8)};
  }
  using Nibbles = I;
  static Nibbles load_nibbles(const uint8_t* p) {
    return load(reinterpret_cast<const uint32_t*>(p));
  }
  template <int i>
  static Pair nibble_pair(Nibbles n, const NibbleTable& t) {
    return {{lookup<4 * i>(n.a, t), lookup<4 * i>(n.b, t)},
            {lookup<16 + 4 * i>(n.a, t), lookup<16 + 4 * i>(n.b, t)}};
  }

  struct Fp8Table {};
  static Fp8Table fp8_table() { return {}; }
  using Fp8Codes = I;
  static Fp8Codes load_fp8(const uint8_t* p, const Fp8Table& /*unused*/) {
    return load(reinterpret_cast<const uint32_t*>(p));
  }
  template <int i>
  static Pair fp8_pair(Fp8Codes codes, const Fp8Table& /*unused*/) {
    const I words = {fp8_halves<i>(codes.a), fp8_halves<i>(codes.b)};
    return {half_floats(words & set(0xffffu)), half_floats(shift_right<16>(words))};
  }

 private:
  static I first(int64_t n) {
    const __m256i count = _mm256_set1_epi32(static_cast<int>(n));
    const I lanes = lane_index();
    return {_mm256_cmpgt_epi32(count, lanes.a), _mm256_cmpgt_epi32(count, lanes.b)};
  }
  template <int predicate>
  static M compare(F x, F y) {
    return {_mm256_castps_si256(_mm256_cmp_ps(x.a, y.a, predicate)),
            _mm256_castps_si256(_mm256_cmp_ps(x.b, y.b, predicate))};
  }
  static void multiply_wide(__m256i x, __m256i y, __m256i& high, __m256i& low) {
    const __m256i even = _mm256_mul_epu32(x, y);
    const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(x, 32), _mm256_srli_epi64(y, 32));
    high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
    low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
  }
  // Values of the nibble at bit `shift` of each lane.
  template <int shift>
  static __m256 lookup(__m256i words, const NibbleTable& t) {
    const __m256i index = _mm256_srli_epi32(words, shift);
    const __m256 bit3 = _mm256_castsi256_ps(_mm256_slli_epi32(words, 28 - shift));
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(t.low, index),
                            _mm256_permutevar8x32_ps(t.high, index), bit3);
  }
  // Bytes 8 i + j of each 128 bits to 16-bit lanes, as F16 numbers 2^-8 times their values.
  template <int i>
  static __m256i fp8_halves(__m256i codes) {
    const __m256i zero = _mm256_setzero_si256();
    const __m256i words =
        i == 0 ? _mm256_unpacklo_epi8(zero, codes) : _mm256_unpackhi_epi8(zero, codes);
    const __m256i sign = _mm256_and_si256(words, _mm256_set1_epi16(-0x8000));
    const __m256i magnitude =
        _mm256_and_si256(_mm256_srli_epi16(words, 1), _mm256_set1_epi16(0x3f80));
    return _mm256_or_si256(sign, magnitude);
  }
  static F half_floats(I words) {
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(words.a, words.b), 0xd8);
    const F halves = {_mm256_cvtph_ps(_mm256_castsi256_si128(packed)),
                      _mm256_cvtph_ps(_mm256_extracti128_si256(packed, 1))};
    return halves * set(256.0F);
  }
};

}  // namespace
}  // namespace levin::runtime::cpu
