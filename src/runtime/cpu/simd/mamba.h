// The Mamba-2 mixer between its two projections: step sizes, convolution, state recurrence.
#pragma once

#include <cstdint>

#include "runtime/cpu/kernels.h"
#include "runtime/cpu/simd/math.h"
#include "runtime/cpu/simd/rows.h"
#include "runtime/cpu/simd/weights.h"

namespace levin::runtime::cpu {

template <class V>
void ssm_dt(const float* raw, const float* bias, const float* a, int64_t count, float low,
            float high, float* dt, float* decay) {
  for_lanes(count, [&](int64_t i, int64_t n) {
    const auto sum = V::load_first(raw + i, n) + V::load_first(bias + i, n);
    const auto step = V::min(V::max(softplus<V>(sum), V::set(low)), V::set(high));
    V::store_first(dt + i, step, n);
    V::store_first(decay + i, exp<V>(step * V::load_first(a + i, n)), n);
  });
}

template <class V>
void conv(const ConvCall& call) {
  for_lanes(call.channels, [&](int64_t i, int64_t n) {
    auto sum = V::load_first(call.bias + i, n);
    for (int64_t k = 0; k < call.taps; ++k) {
      const auto weight = V::load_first(call.weight + k * call.weight_stride + i, n);
      sum = V::fma(V::load_first(call.inputs[k] + i, n), weight, sum);
    }
    V::store_first(call.out + i, silu<V>(sum), n);
  });
}

// Four Philox words for 16 counters (core/philox.h): counter = (offset, 0 above 32 bits is the
// caller's, stream).
template <class V>
struct PhiloxWords {
  typename V::I word[4];
};

template <class V>
inline PhiloxWords<V> philox(uint64_t seed, typename V::I offset, uint64_t stream, int rounds) {
  using I = typename V::I;
  I c0 = offset;
  I c1 = V::set(0u);
  I c2 = V::set(static_cast<uint32_t>(stream));
  I c3 = V::set(static_cast<uint32_t>(stream >> 32));
  auto key0 = static_cast<uint32_t>(seed);
  auto key1 = static_cast<uint32_t>(seed >> 32);
  for (int i = 0; i < rounds; ++i) {
    I high_a, low_a, high_b, low_b;
    V::multiply_wide(V::set(0xCD9E8D57u), c2, high_a, low_a);
    V::multiply_wide(V::set(0xD2511F53u), c0, high_b, low_b);
    c0 = high_a ^ c1 ^ V::set(key0);
    c2 = high_b ^ c3 ^ V::set(key1);
    c1 = low_a;
    c3 = low_b;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

// `x` rounded to F16 with 13 random bits (runtime/ssm_rounding.h), as float32.
template <class V>
inline typename V::F round_f16_stochastic(typename V::F x, typename V::I random) {
  using I = typename V::I;
  const I bits = V::bits(x);
  const I sign = bits & V::set(0x80000000u);
  const I magnitude = bits & V::set(0x7fffffffu);
  const I infinity = V::set(0x7f800000u);
  const I added = magnitude + (random & V::set(0x1fffu));
  const I kept = added & V::set(0xffffe000u);
  I result = V::select(V::less(added, V::set(113u << 23)), V::set(0u), kept);
  result = V::select(V::less(added, V::set(143u << 23)), result, infinity);
  result = V::select(V::less(magnitude, infinity), result, infinity);
  result = V::select(V::less(infinity, magnitude), V::set(0x7fc00000u), result);
  return V::floats(sign | result);
}

// A vector of 16 head_dim lanes of the state as it is kept between tokens.
template <class V, SsmRounding rounding>
struct StateCells {
  static typename V::F load(const void* state, int64_t at) {
    if (state == nullptr) return V::zero();
    if constexpr (rounding == SsmRounding::kNone) {
      return V::load(static_cast<const float*>(state) + at);
    } else {
      return V::load_f16(static_cast<const uint16_t*>(state) + at);
    }
  }
  static void store(void* state, int64_t at, typename V::F x) {
    if (state == nullptr) return;
    if constexpr (rounding == SsmRounding::kNone) {
      V::store(static_cast<float*>(state) + at, x);
    } else {
      V::store_f16(static_cast<uint16_t*>(state) + at, x);
    }
  }
};

// The random half-words of the elements of rows n .. n + 7 of the state, for 16 lanes from p on:
// element e = (p + lane) * state + n takes half-word e % 8 of the Philox words of counter e / 8
// (runtime/ssm_rounding.h). With a state size that is a multiple of 8 and n too, those eight rows
// share their counters.
template <class V>
struct RowNoise {
  PhiloxWords<V> words;

  RowNoise(const SsmCall& call, uint64_t stream, int64_t p, int64_t n) {
    using I = typename V::I;
    I first, unused;
    V::multiply_wide(V::lane_index() + V::set(static_cast<uint32_t>(p)),
                     V::set(static_cast<uint32_t>(call.state)), unused, first);
    first = first + V::set(static_cast<uint32_t>(call.first_element + static_cast<uint64_t>(n)));
    words = philox<V>(call.seed, V::template shift_right<3>(first), stream, call.philox_rounds);
  }
  template <int row>
  typename V::I bits() const {
    if constexpr (row % 2 == 0) return words.word[row / 2];
    return V::template shift_right<16>(words.word[row / 2]);
  }
};

// The state after a step, as F16 holds it. Eight rows n .. n + 7 of the state, 16 lanes from p on.
template <class V>
inline void round_rows(const SsmCall& call, uint64_t stream, int64_t p, int64_t n,
                       typename V::F (&rows)[8]) {
  const RowNoise<V> noise(call, stream, p, n);
  unrolled<8>([&]<int row>() {
    rows[row] = round_f16_stochastic<V>(rows[row], noise.template bits<row>());
  });
}

template <class V>
inline typename V::F advance(const SsmStep& step, typename V::F state, int64_t p, int64_t n) {
  return V::fma(state, V::set(step.decay), V::load(step.dt_x + p) * V::set(step.b[n]));
}

template <class V>
inline void put_output(const SsmCall& call, const SsmStep& step, int64_t p, typename V::F y) {
  V::store_first(step.y + p, y + V::load(step.skip + p), call.head_dim - p);
}

// The recurrence for `vectors` * 16 lanes of head_dim from p on. Time is the innermost loop, so
// the state is read and written once whatever the number of steps.
template <class V, SsmRounding rounding, int vectors, int outputs>
inline void ssm_lanes(const SsmCall& call, int64_t p) {
  using F = typename V::F;
  using Cells = StateCells<V, rounding>;
  const int64_t stride = round_up(call.head_dim, kLanes);
  const auto keep = [](F s) {
    if constexpr (rounding == SsmRounding::kNone) return s;
    return V::round_f16(s);
  };
  F y[outputs > 0 ? outputs : 1][vectors];
  for (auto& row : y) {
    for (F& v : row) v = V::zero();
  }
  for (int64_t n = 0; n < call.state; ++n) {
    F s[vectors];
    const int64_t cell = n * stride + p;
    for (int v = 0; v < vectors; ++v) s[v] = Cells::load(call.in, cell + v * kLanes);
    for (int64_t i = 0; i < call.replay; ++i) {
      for (int v = 0; v < vectors; ++v) {
        s[v] = keep(advance<V>(call.steps[i], s[v], p + v * kLanes, n));
      }
    }
    for (int v = 0; v < vectors; ++v) Cells::store(call.replayed, cell + v * kLanes, s[v]);
    for (int i = 0; i < outputs; ++i) {
      const SsmStep& step = call.steps[call.replay + i];
      const F c = V::set(step.c[n]);
      for (int v = 0; v < vectors; ++v) {
        s[v] = advance<V>(step, s[v], p + v * kLanes, n);
        y[i][v] = V::fma(s[v], c, y[i][v]);
        s[v] = keep(s[v]);
      }
    }
    for (int v = 0; v < vectors; ++v) Cells::store(call.out, cell + v * kLanes, s[v]);
  }
  for (int i = 0; i < outputs; ++i) {
    for (int v = 0; v < vectors; ++v) {
      put_output<V>(call, call.steps[call.replay + i], p + v * kLanes, y[i][v]);
    }
  }
}

// The same with stochastic rounding, eight rows of the state at a time.
template <class V, int outputs>
inline void ssm_lanes_stochastic(const SsmCall& call, int64_t p) {
  using F = typename V::F;
  using Cells = StateCells<V, SsmRounding::kStochastic>;
  constexpr int kRows = 8;
  const int64_t stride = round_up(call.head_dim, kLanes);
  F y[outputs > 0 ? outputs : 1];
  for (F& v : y) v = V::zero();
  for (int64_t n = 0; n < call.state; n += kRows) {
    F s[kRows];
    for (int r = 0; r < kRows; ++r) s[r] = Cells::load(call.in, (n + r) * stride + p);
    for (int64_t i = 0; i < call.replay; ++i) {
      for (int r = 0; r < kRows; ++r) s[r] = advance<V>(call.steps[i], s[r], p, n + r);
      round_rows<V>(call, call.steps[i].stream, p, n, s);
    }
    for (int r = 0; r < kRows; ++r) Cells::store(call.replayed, (n + r) * stride + p, s[r]);
    for (int i = 0; i < outputs; ++i) {
      const SsmStep& step = call.steps[call.replay + i];
      for (int r = 0; r < kRows; ++r) {
        s[r] = advance<V>(step, s[r], p, n + r);
        y[i] = V::fma(s[r], V::set(step.c[n + r]), y[i]);
      }
      round_rows<V>(call, step.stream, p, n, s);
    }
    for (int r = 0; r < kRows; ++r) Cells::store(call.out, (n + r) * stride + p, s[r]);
  }
  for (int i = 0; i < outputs; ++i) {
    put_output<V>(call, call.steps[call.replay + i], p, y[i]);
  }
}

template <class V, SsmRounding rounding, int outputs>
inline void ssm_outputs(const SsmCall& call) {
  constexpr int kVectors = 4;
  int64_t p = 0;
  if constexpr (rounding == SsmRounding::kStochastic) {
    for (; p < call.head_dim; p += kLanes) ssm_lanes_stochastic<V, outputs>(call, p);
    return;
  }
  for (; p + kVectors * kLanes <= call.head_dim; p += kVectors * kLanes) {
    ssm_lanes<V, rounding, kVectors, outputs>(call, p);
  }
  for (; p < call.head_dim; p += kLanes) ssm_lanes<V, rounding, 1, outputs>(call, p);
}

template <class V, SsmRounding rounding>
inline void ssm_rounded(const SsmCall& call) {
  switch (call.outputs) {
    case 0:
      return ssm_outputs<V, rounding, 0>(call);
    case 1:
      return ssm_outputs<V, rounding, 1>(call);
    case 2:
      return ssm_outputs<V, rounding, 2>(call);
    case 3:
      return ssm_outputs<V, rounding, 3>(call);
    default:
      return ssm_outputs<V, rounding, kMaxSsmOutputs>(call);
  }
}

template <class V>
void ssm(const SsmCall& call) {
  switch (call.rounding) {
    case SsmRounding::kNone:
      return ssm_rounded<V, SsmRounding::kNone>(call);
    case SsmRounding::kNearest:
      return ssm_rounded<V, SsmRounding::kNearest>(call);
    case SsmRounding::kStochastic:
      return ssm_rounded<V, SsmRounding::kStochastic>(call);
  }
}

}  // namespace levin::runtime::cpu
