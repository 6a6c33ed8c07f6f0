// Causal attention of one token over the cache of one key/value head. Keys are walked in blocks of
// 64 from position 0 with an online softmax, so that a token's result depends on nothing but the
// keys before it.
//
// A block of the cache is two small weight matrices in the panel layouts of the linear kernels
// (AttendCall in kernels.h), and attention multiplies them with those kernels: scores = K q, where
// rows are positions, and sums = V p, where columns are positions. The query heads that share the
// cache take the place of tokens.
#pragma once

#include <cstdint>

#include "runtime/cpu/kernels.h"
#include "runtime/cpu/simd/linear.h"
#include "runtime/cpu/simd/math.h"
#include "runtime/cpu/simd/rows.h"

namespace levin::runtime::cpu {

// The parts of AttendCall::work.
template <class Format>
struct AttendWork {
  float* scores;  // [heads][kKeyBlock]
  float* sums;    // [heads][head_dim rounded up to 16], weighted sums of V
  float* norms;   // [heads][16], sums of the weights, a lane for every 16th key
  float* peaks;   // [heads][16], in lane 0 the largest score so far
  uint8_t* q;     // packed queries, a tile of `heads` tokens
  uint8_t* p;     // packed weights of a block, likewise

  explicit AttendWork(const AttendCall& call)
      : scores(call.work),
        sums(scores + call.heads * kKeyBlock),
        norms(sums + call.heads * round_up(call.head_dim, kLanes)),
        peaks(norms + call.heads * kLanes),
        q(reinterpret_cast<uint8_t*>(peaks + call.heads * kLanes)),
        p(q + call.heads * round_up(call.head_dim, kBlock) / kBlock * Format::kTokenBytes) {}
};

// Puts 16 values of token `t` into a tile of `width` tokens, from column `column` on, and returns
// them as the products will see them.
template <class V, class Format>
inline typename V::F put_packed(uint8_t* tile, int64_t width, int64_t t, int64_t column,
                                typename V::F x) {
  uint8_t* at = tile + (column / kBlock * width + t) * Format::kTokenBytes +
                column % kBlock * Format::kTokenBytes / kBlock;
  if constexpr (Format::kTokenBytes == kF32TokenBytes) {
    V::store(reinterpret_cast<float*>(at), x);
    return x;
  } else {
    V::store_bf16(reinterpret_cast<uint16_t*>(at), x);
    return V::load_bf16(reinterpret_cast<const uint16_t*>(at));
  }
}

// Turns the scores of a block of `count` keys into weights; returns what the sums of earlier blocks
// must be multiplied by. Weights beyond `count` are zero.
template <class V, class Format>
inline float weigh_keys(const AttendCall& call, const AttendWork<Format>& work, int64_t head,
                        int64_t count) {
  using F = typename V::F;
  const float* scores = work.scores + head * kKeyBlock;
  const F never = V::set(-__builtin_inff());
  const auto masked = [&](int64_t i) {
    if (i >= count) return never;
    const F s = V::load(scores + i);
    if (i + kLanes <= count) return s;
    const auto valid = V::less(V::lane_index(), V::set(static_cast<uint32_t>(count - i)));
    return V::select(valid, s, never);
  };
  float& peak = work.peaks[head * kLanes];
  F largest = V::set(peak);
  for (int64_t i = 0; i < count; i += kLanes) largest = V::max(masked(i), largest);
  const float new_peak = V::largest(largest);
  const F shrink = exp<V>(V::set(peak - new_peak));
  peak = new_peak;
  F norm = V::load(work.norms + head * kLanes) * shrink;
  for (int64_t i = 0; i < kKeyBlock; i += kLanes) {
    const F weight = i < count ? exp<V>(masked(i) - V::set(new_peak)) : V::zero();
    norm = norm + put_packed<V, Format>(work.p, call.heads, head, i, weight);
  }
  V::store(work.norms + head * kLanes, norm);
  float result[kLanes];
  V::store(result, shrink);
  return result[0];
}

template <class V, class Format>
inline void attend_block(const AttendCall& call, const AttendWork<Format>& work,
                         const Format& format, int64_t begin) {
  constexpr int64_t kElement = Format::kElementBytes;
  const int64_t left = call.length - begin;
  const int64_t count = left < kKeyBlock ? left : kKeyBlock;
  const int64_t columns = round_up(call.head_dim, kBlock);
  const int64_t width = round_up(call.head_dim, kLanes);
  const uint8_t* keys = call.cache + begin / kKeyBlock * kv_block_bytes(call.head_dim, kElement);
  const uint8_t* values = keys + kKeyBlock * columns * kElement;

  const Panels k{keys, kLanes * columns * kElement, 0, 0};
  multiply_tile<V>(
      format, k, 0, (count + kLanes - 1) / kLanes, {work.q, call.heads, columns / kBlock},
      [&]<int panels, int heads>(int64_t panel, int64_t first, const Sums<V, panels, heads>& sums) {
        for (int h = 0; h < heads; ++h) {
          float* row = work.scores + (first + h) * kKeyBlock + panel * kLanes;
          for (int i = 0; i < panels; ++i) V::store(row + i * kLanes, sums.v[i][h]);
        }
      });
  for (int64_t head = 0; head < call.heads; ++head) {
    const float shrink = weigh_keys<V, Format>(call, work, head, count);
    float* sums = work.sums + head * width;
    scale_row<V>(sums, shrink, width, sums);
  }
  const Panels v{values, kLanes * kKeyBlock * kElement, 0, 0};
  multiply_tile<V>(
      format, v, 0, width / kLanes, {work.p, call.heads, (count + kBlock - 1) / kBlock},
      [&]<int panels, int heads>(int64_t panel, int64_t first, const Sums<V, panels, heads>& sums) {
        for (int h = 0; h < heads; ++h) {
          float* row = work.sums + (first + h) * width + panel * kLanes;
          for (int i = 0; i < panels; ++i) {
            V::store(row + i * kLanes, V::load(row + i * kLanes) + sums.v[i][h]);
          }
        }
      });
}

template <class V, class Format>
inline void attend_format(const AttendCall& call) {
  const AttendWork<Format> work(call);
  const Format format{};
  const int64_t width = round_up(call.head_dim, kLanes);
  for (int64_t head = 0; head < call.heads; ++head) {
    const float* q = call.q + head * call.head_dim;
    for (int64_t d = 0; d < round_up(call.head_dim, kBlock); d += kLanes) {
      const auto part = d < call.head_dim ? V::load_first(q + d, call.head_dim - d) : V::zero();
      put_packed<V, Format>(work.q, call.heads, head, d, part * V::set(call.score_scale));
      if (d < width) V::store(work.sums + head * width + d, V::zero());
    }
    V::store(work.norms + head * kLanes, V::zero());
    work.peaks[head * kLanes] = -0x1p120F;  // finite, so that no difference of peaks is a NaN
  }
  for (int64_t begin = 0; begin < call.length; begin += kKeyBlock) {
    attend_block<V>(call, work, format, begin);
  }
  for (int64_t head = 0; head < call.heads; ++head) {
    const float norm = V::sum(V::load(work.norms + head * kLanes));
    scale_row<V>(work.sums + head * width, call.value_scale / norm, call.head_dim,
                 call.out + head * call.head_dim);
  }
}

template <class V>
struct Bf16CacheFormat : PlainFormat<V, Bf16Weights<V>> {
  static constexpr bool kEveryCount = false;
  static constexpr int64_t kElementBytes = 2;
};
template <class V>
struct Fp8CacheFormat : PlainFormat<V, Fp8Weights<V>> {
  static constexpr bool kEveryCount = false;
  static constexpr int64_t kElementBytes = 1;
};
template <class V>
struct F32CacheFormat : WideFormat<V, F32Columns<V>> {
  static constexpr int64_t kElementBytes = 4;
};

template <class V>
void attend(const AttendCall& call) {
  switch (call.format) {
    case KvFormat::kBf16:
      return attend_format<V, Bf16CacheFormat<V>>(call);
    case KvFormat::kFp8:
      return attend_format<V, Fp8CacheFormat<V>>(call);
    case KvFormat::kF32:
      return attend_format<V, F32CacheFormat<V>>(call);
  }
}

}  // namespace levin::runtime::cpu
