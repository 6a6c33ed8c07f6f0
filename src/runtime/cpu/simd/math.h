// Elementwise mathematics on any vector type V of this folder.
#pragma once

#include <cstdint>

namespace levin::runtime::cpu {

// exp(x) to about 2 units in the last place. Results below 2^-126 are zero, above 2^127 infinite.
template <class V>
inline typename V::F exp(typename V::F x) {
  using F = typename V::F;
  using I = typename V::I;
  // x = n ln 2 + r, |r| <= ln 2 / 2; ln 2 in two parts so that r is exact to float32.
  const F clamped = V::min(V::max(x, V::set(-104.0F)), V::set(104.0F));
  const I n = V::to_int(clamped * V::set(1.44269504088896341F));
  const F steps = V::to_float(n);
  F r = V::fma(steps, V::set(-0.693145751953125F), clamped);
  r = V::fma(steps, V::set(-1.42860682030941723e-6F), r);
  // Taylor's series to r^7 / 7!: its remainder is below 6e-9 relative.
  F p = V::set(1.0F / 5040);
  p = V::fma(p, r, V::set(1.0F / 720));
  p = V::fma(p, r, V::set(1.0F / 120));
  p = V::fma(p, r, V::set(1.0F / 24));
  p = V::fma(p, r, V::set(1.0F / 6));
  p = V::fma(p, r, V::set(0.5F));
  p = V::fma(p, r, V::set(1.0F));
  p = V::fma(p, r, V::set(1.0F));
  const F result = V::floats(V::bits(p) + V::template shift_left<23>(n));
  const F low = V::select(V::less(x, V::set(-87.3F)), V::zero(), result);
  return V::select(V::less(V::set(88.3F), x), V::floats(V::set(0x7f800000u)), low);
}

// 1 / (1 + exp(-x))
template <class V>
inline typename V::F sigmoid(typename V::F x) {
  const auto one = V::set(1.0F);
  return one / (one + exp<V>(V::zero() - x));
}

template <class V>
inline typename V::F silu(typename V::F x) {
  return x / (V::set(1.0F) + exp<V>(V::zero() - x));
}

// log(1 + exp(x)) with small relative error also where the result is tiny.
template <class V>
inline typename V::F softplus(typename V::F x) {
  using F = typename V::F;
  const F one = V::set(1.0F);
  const F u = exp<V>(V::min(x, V::zero() - x));  // exp(-|x|), in (0, 1]
  // log(1 + u) = 2 atanh(s), s = u / (2 + u) <= 1/3; the series' remainder is below 1e-9.
  const F s = u / (one + one + u);
  const F s2 = s * s;
  F p = V::set(1.0F / 17);
  p = V::fma(p, s2, V::set(1.0F / 15));
  p = V::fma(p, s2, V::set(1.0F / 13));
  p = V::fma(p, s2, V::set(1.0F / 11));
  p = V::fma(p, s2, V::set(1.0F / 9));
  p = V::fma(p, s2, V::set(1.0F / 7));
  p = V::fma(p, s2, V::set(1.0F / 5));
  p = V::fma(p, s2, V::set(1.0F / 3));
  p = V::fma(p, s2, one);
  return V::fma(s + s, p, V::max(x, V::zero()));
}

template <class V>
inline typename V::F absolute(typename V::F x) {
  return V::floats(V::bits(x) & V::set(0x7fffffffu));
}

// `magnitude` with the sign of `x`.
template <class V>
inline typename V::F with_sign_of(typename V::F x, typename V::F magnitude) {
  return V::floats(V::bits(magnitude) | (V::bits(x) & V::set(0x80000000u)));
}

// The nearest E4M3 value, ties to even, saturating at +-448.
template <class V>
inline typename V::F round_e4m3(typename V::F x) {
  using F = typename V::F;
  using I = typename V::I;
  const F a = V::min(absolute<V>(x), V::set(448.0F));
  const I b = V::bits(a);
  const I tie = V::template shift_right<20>(b) & V::set(1u);
  const F normal = V::floats((b + V::set(0x7ffffu) + tie) & V::set(0xfff00000u));
  // Below 2^-6 the values are multiples of 2^-9, the spacing of float32 at 2^14.
  const F subnormal = (a + V::set(0x1p14F)) - V::set(0x1p14F);
  return with_sign_of<V>(x, V::select(V::less(a, V::set(0x1p-6F)), subnormal, normal));
}

// The nearest E2M1 value, ties to the even code, saturating at +-6.
template <class V>
inline typename V::F round_e2m1(typename V::F x) {
  using F = typename V::F;
  const F a = absolute<V>(x);
  F r = V::select(V::less(V::set(0.25F), a), V::set(0.5F), V::zero());
  r = V::select(V::less_equal(V::set(0.75F), a), V::set(1.0F), r);
  r = V::select(V::less(V::set(1.25F), a), V::set(1.5F), r);
  r = V::select(V::less_equal(V::set(1.75F), a), V::set(2.0F), r);
  r = V::select(V::less(V::set(2.5F), a), V::set(3.0F), r);
  r = V::select(V::less_equal(V::set(3.5F), a), V::set(4.0F), r);
  r = V::select(V::less(V::set(5.0F), a), V::set(6.0F), r);
  return with_sign_of<V>(x, r);
}

}  // namespace levin::runtime::cpu
