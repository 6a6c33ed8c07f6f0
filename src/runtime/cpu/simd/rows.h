// Work on rows of activations: normalization, packing for the linear kernels, and the formats that
// activations are quantized to (definitions: codec/nvfp4.h, codec/fp8.h).
#pragma once

#include <cstdint>

#include "runtime/cpu/kernels.h"
#include "runtime/cpu/simd/math.h"

namespace levin::runtime::cpu {

// Calls f(offset, lanes) for 16 values at a time; the last call may have fewer.
template <class Function>
[[gnu::always_inline]] inline void for_lanes(int64_t count, const Function& f) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) f(i, kLanes);
  if (i < count) f(i, count - i);
}

template <class V>
inline float reciprocal_rms(typename V::F sum_of_squares, int64_t count, float eps) {
  const float mean = V::sum(sum_of_squares) / static_cast<float>(count);
  return 1.0F / __builtin_sqrtf(mean + eps);
}

template <class V>
void rms_norm(const float* x, const float* weight, int64_t count, float eps, float* out) {
  auto squares = V::zero();
  for_lanes(count, [&](int64_t i, int64_t n) {
    const auto v = V::load_first(x + i, n);
    squares = V::fma(v, v, squares);
  });
  const auto factor = V::set(reciprocal_rms<V>(squares, count, eps));
  for_lanes(count, [&](int64_t i, int64_t n) {
    const auto v = V::load_first(x + i, n) * factor;
    V::store_first(out + i, v * V::load_first(weight + i, n), n);
  });
}

template <class V>
void gated_norm(const float* y, const float* z, const float* weight, int64_t count, int64_t group,
                float eps, float* out) {
  for (int64_t begin = 0; begin < count; begin += group) {
    auto squares = V::zero();
    for_lanes(group, [&](int64_t i, int64_t n) {
      const auto v = V::load_first(y + begin + i, n) * silu<V>(V::load_first(z + begin + i, n));
      squares = V::fma(v, v, squares);
      V::store_first(out + begin + i, v, n);
    });
    const auto factor = V::set(reciprocal_rms<V>(squares, group, eps));
    for_lanes(group, [&](int64_t i, int64_t n) {
      const auto v = V::load_first(out + begin + i, n) * factor;
      V::store_first(out + begin + i, v * V::load_first(weight + begin + i, n), n);
    });
  }
}

template <class V>
void scale_row(const float* x, float factor, int64_t count, float* out) {
  const auto f = V::set(factor);
  for_lanes(count,
            [&](int64_t i, int64_t n) { V::store_first(out + i, V::load_first(x + i, n) * f, n); });
}

template <class V>
void sigmoid_row(const float* x, int64_t count, float* out) {
  for_lanes(count, [&](int64_t i, int64_t n) {
    V::store_first(out + i, sigmoid<V>(V::load_first(x + i, n)), n);
  });
}

template <class V>
int64_t argmax(const float* x, int64_t count) {
  // Every lane keeps the first of its own largest values, then the lanes compete.
  auto best = V::set(-__builtin_inff());
  auto best_at = V::set(0u);
  auto at = V::lane_index();
  for_lanes(count, [&](int64_t i, int64_t n) {
    const auto v = n == kLanes
                       ? V::load(x + i)
                       : V::select(V::less(V::lane_index(), V::set(static_cast<uint32_t>(n))),
                                   V::load_first(x + i, n), V::set(-__builtin_inff()));
    const auto larger = V::less(best, v);
    best = V::select(larger, v, best);
    best_at = V::select(larger, at, best_at);
    at = at + V::set(static_cast<uint32_t>(kLanes));
  });
  float values[kLanes];
  float positions[kLanes];
  V::store(values, best);
  V::store(positions, V::floats(best_at));
  int64_t result = 0;
  float largest = -__builtin_inff();
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    const int64_t position = __builtin_bit_cast(uint32_t, positions[lane]);
    if (values[lane] > largest || (values[lane] == largest && position < result)) {
      largest = values[lane];
      result = position;
    }
  }
  return result;
}

// One token's activations, 16 at a time: what the products see.
template <class V>
struct Quantizer {
  PackAs as;
  float scale;  // of the token
  float block_scale_of(typename V::F x) const {
    const float wanted = V::largest(absolute<V>(x)) / 6.0F / scale;
    float rounded[kLanes];
    V::store(rounded, round_e4m3<V>(V::set(wanted)));
    return rounded[0];
  }
  // E2M1 values of 16 numbers under `block_scale`.
  typename V::F e2m1(typename V::F x, float block_scale) const {
    if (block_scale * scale == 0.0F) return V::zero();
    return round_e2m1<V>(x / V::set(block_scale * scale));
  }
  typename V::F operator()(typename V::F x) const {
    if (as == PackAs::kFp8Static || as == PackAs::kFp8PerToken) {
      return round_e4m3<V>(x / V::set(scale));
    }
    if (as == PackAs::kNvfp4) {
      const float block_scale = block_scale_of(x);
      return e2m1(x, block_scale) * V::set(block_scale);
    }
    return x;
  }
};

// amax / 448, at least the smallest normal number; 1 for a row of zeros (codec/fp8.h).
template <class V>
inline float fp8_row_scale(const float* row, int64_t columns) {
  auto largest = V::zero();
  for_lanes(columns, [&](int64_t i, int64_t n) {
    largest = V::max(largest, absolute<V>(V::load_first(row + i, n)));
  });
  const float amax = V::largest(largest);
  if (amax == 0.0F) return 1.0F;
  const float scale = amax / 448.0F;
  return scale > 0x1p-126F ? scale : 0x1p-126F;
}

// A power of two, such that numbers of magnitude up to `largest` are at most 32640 times as large:
// more would not fit two signed digits. So what is just below the next power of two counts as it.
inline float integer_scale(float largest) {
  constexpr uint32_t kExponent = 0x7f800000u;
  constexpr uint32_t kAlmost = 0x11000u;  // 2 - 0.0083 and more
  const uint32_t bits = __builtin_bit_cast(uint32_t, largest) + kAlmost;
  const float power = __builtin_bit_cast(float, bits& kExponent);
  return (power > 0x1p-100F ? power : 0x1p-100F) * 0x1p-14F;
}

// 16 activations as integers. What is not finite makes their scale, and thereby every sum, NaN.
template <class V, int digits>
inline void pack_half(const Quantizer<V>& quantize, typename V::F x, IntegerHalf<digits>& to) {
  typename V::I q;
  if constexpr (digits == 1) {
    const float block_scale = quantize.block_scale_of(x);
    q = V::to_int(quantize.e2m1(x, block_scale) * V::set(2.0F));
    to.scale = block_scale * 0.5F;
  } else {
    const auto value = quantize(x);
    to.scale = integer_scale(V::largest(absolute<V>(value)));
    q = V::to_int(value * V::set(1.0F / to.scale));
  }
  if (!V::finite(x)) to.scale = __builtin_nanf("");
  to.offset = -kWeightOffset * V::sum(q);
  q = V::permute(q, kIntegerColumns);
  V::store_bytes(to.digits[digits - 1], q);
  if constexpr (digits == 2) {
    V::store_bytes(to.digits[0], V::arithmetic_shift_right_8(q + V::set(128u)));
  }
}

template <class V, int digits>
inline void pack_integers(const Quantizer<V>& quantize, const float* row, int64_t tokens, int64_t t,
                          int64_t columns, void* tile) {
  auto* halves = static_cast<IntegerHalf<digits>*>(tile);
  for (int64_t half = 0; half < 2 * round_up(columns, kBlock) / kBlock; ++half) {
    const int64_t left = columns - half * kScaleBlock;
    const auto x = left > 0 ? V::load_first(row + half * kScaleBlock, left) : V::zero();
    pack_half<V>(quantize, x, halves[(half / 2 * tokens + t) * 2 + half % 2]);
  }
}

template <class V>
void pack(const float* const* rows, int64_t tokens, int64_t columns, PackAs as, int digits,
          float input_scale, void* tile, float* scales) {
  const int64_t blocks = (columns + kBlock - 1) / kBlock;
  for (int64_t t = 0; t < tokens; ++t) {
    const float* row = rows[t];
    float scale = 1.0F;
    if (as == PackAs::kFp8Static || as == PackAs::kNvfp4) scale = input_scale;
    if (as == PackAs::kFp8PerToken) scale = fp8_row_scale<V>(row, columns);
    scales[t] = scale;
    const Quantizer<V> quantize{as, scale};
    if constexpr (V::kIntegerProducts) {
      if (digits == 1) pack_integers<V, 1>(quantize, row, tokens, t, columns, tile);
      if (digits == 2) pack_integers<V, 2>(quantize, row, tokens, t, columns, tile);
    }
    if (digits > 0) continue;
    for (int64_t half = 0; half < 2 * blocks; ++half) {
      const int64_t left = columns - half * kScaleBlock;
      const auto x = left > 0 ? V::load_first(row + half * kScaleBlock, left) : V::zero();
      const int64_t at = (half / 2 * tokens + t) * kBlock + half % 2 * kScaleBlock;
      if (as == PackAs::kF32) {
        V::store(static_cast<float*>(tile) + at, x);
      } else {
        V::store_bf16(static_cast<uint16_t*>(tile) + at, quantize(x));
      }
    }
  }
}

}  // namespace levin::runtime::cpu
