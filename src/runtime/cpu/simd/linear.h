// y = W x over panels of 16 rows. One template serves every format, number of tokens and vector
// type; a row's sum always takes its columns in order, so a token's result does not depend on what
// it is batched with.
#pragma once

#include <cstdint>

#include "runtime/cpu/kernels.h"
#include "runtime/cpu/simd/linear_integer.h"
#include "runtime/cpu/simd/walk.h"
#include "runtime/cpu/simd/weights.h"

namespace levin::runtime::cpu {

constexpr int kBlockPairs = static_cast<int>(kBlock / 2);
constexpr int kHalfPairs = static_cast<int>(kScaleBlock / 2);
constexpr int64_t kBf16TokenBytes = kBlock * 2;  // of a block of activations
constexpr int64_t kF32TokenBytes = kBlock * 4;

// How far ahead of its loads a kernel for several tokens fetches packed weights: it is busy with
// arithmetic and would not keep enough loads under way by itself. Measured on Zen 4, 2 to 8 tokens,
// FP8 and 4-bit formats: 10 to 20 % faster than without, flat from 1024 to 4096. One token and BF16
// weights are faster without.
constexpr int64_t kFetchAhead = 1024;

// Adds the products of `pairs` pairs of columns.
template <class V, class Weights, int pairs, int panels, int tokens>
[[gnu::always_inline]] inline void add_pairs(const Weights& w, const uint8_t* weights,
                                             int64_t panel_stride, const uint8_t* x,
                                             Sums<V, panels, tokens>& sums) {
  for (int step = 0; step < pairs / Weights::kPairs; ++step) {
    typename Weights::Raw raw[panels];
    for (int p = 0; p < panels; ++p) {
      raw[p] = w.load(weights + p * panel_stride);
      if (Weights::kPrefetch && tokens > 1) {
        __builtin_prefetch(weights + p * panel_stride + kFetchAhead);
      }
    }
    unrolled<Weights::kPairs>([&]<int i>() __attribute__((always_inline)) {
      typename V::Pair pair[panels];
      for (int p = 0; p < panels; ++p) pair[p] = w.template pair<i>(raw[p]);
      for (int t = 0; t < tokens; ++t) {
        const uint8_t* at = x + t * kBf16TokenBytes + i * 4;
        const auto input = V::broadcast_pair(reinterpret_cast<const uint32_t*>(at));
        for (int p = 0; p < panels; ++p) sums.v[p][t] = V::dot(sums.v[p][t], pair[p], input);
      }
    });
    weights += Weights::kStep;
    x += Weights::kPairs * 4;
  }
}

// BF16 activations, weights without block scales.
template <class V, class Weights>
struct PlainFormat {
  static constexpr bool kEveryCount = true;  // a kernel for every number of tokens, see below
  static constexpr int64_t kTokenBytes = kBf16TokenBytes;
  static constexpr int panels_at_once(int tokens) { return V::panels_at_once(tokens); }
  static constexpr float kFactor = 1.0F;
  Weights w;

  template <int panels, int tokens>
  [[gnu::always_inline]] void sum(const Walk& walk, Sums<V, panels, tokens>& sums) const {
    const uint8_t* weights = walk.weights;
    const uint8_t* x = walk.x;
    sums.clear();
    for (int64_t b = 0; b < walk.blocks; ++b) {
      add_pairs<V, Weights, kBlockPairs>(w, weights, walk.panel_stride, x, sums);
      weights += kBlockPairs / Weights::kPairs * Weights::kStep;
      x += walk.x_stride;
    }
  }
};

// BF16 activations, weights with block scales: the products of a group of columns are summed by
// themselves, then scaled.
template <class V, class Weights, class Scales>
struct ScaledFormat {
  static constexpr bool kEveryCount = true;
  static constexpr int64_t kTokenBytes = kBf16TokenBytes;
  static constexpr int panels_at_once(int tokens) { return V::panels_at_once(2 * tokens); }
  static constexpr float kFactor = Scales::kFactor;
  Weights w;

  template <int panels, int tokens>
  [[gnu::always_inline]] void sum(const Walk& walk, Sums<V, panels, tokens>& sums) const {
    constexpr int64_t kHalfBytes = kHalfPairs / Weights::kPairs * Weights::kStep;
    sum_groups<V, Scales, kHalfBytes, kTokenBytes>(
        walk, sums,
        [&](const uint8_t* weights, const uint8_t* x, auto& part) __attribute__((always_inline)) {
          add_pairs<V, Weights, kHalfPairs>(w, weights, walk.panel_stride, x, part);
        });
  }
};

// Float32 activations.
template <class V, class Columns>
struct WideFormat {
  static constexpr bool kEveryCount = false;
  static constexpr int64_t kTokenBytes = kF32TokenBytes;
  static constexpr int panels_at_once(int tokens) { return V::panels_at_once(tokens); }
  static constexpr float kFactor = 1.0F;

  template <int panels, int tokens>
  [[gnu::always_inline]] void sum(const Walk& walk, Sums<V, panels, tokens>& sums) const {
    constexpr int kSteps = static_cast<int>(kBlock) / Columns::kColumns;
    const uint8_t* weights = walk.weights;
    const uint8_t* x = walk.x;
    sums.clear();
    for (int64_t b = 0; b < walk.blocks; ++b) {
      for (int step = 0; step < kSteps; ++step) {
        typename Columns::Raw raw[panels];
        for (int p = 0; p < panels; ++p) raw[p] = Columns::load(weights + p * walk.panel_stride);
        unrolled<Columns::kColumns>([&]<int i>() __attribute__((always_inline)) {
          for (int t = 0; t < tokens; ++t) {
            const auto* at = reinterpret_cast<const float*>(x + t * kTokenBytes);
            const auto input = V::set(at[step * Columns::kColumns + i]);
            for (int p = 0; p < panels; ++p) {
              sums.v[p][t] = V::fma(Columns::template column<i>(raw[p]), input, sums.v[p][t]);
            }
          }
        });
        weights += Columns::kStep;
      }
      x += walk.x_stride;
    }
  }
};

// Weights of some panels, in memory or decoded in scratch memory.
struct Panels {
  const uint8_t* data;  // of panel 0
  int64_t stride;
  int64_t scale_offset;
  int64_t group;
};

// A tile of packed activations: `width` tokens.
struct Tile {
  const uint8_t* x;
  int64_t width;
  int64_t blocks;
};

// Panels [begin, end) times `tokens` tokens of the tile from `first` on; finish(panel, first, sums)
// takes the results.
template <class V, class Format, int tokens, class Finish>
inline void multiply_tokens(const Format& format, const Panels& w, int64_t begin, int64_t end,
                            const Tile& tile, int64_t first, const Finish& finish) {
  int64_t panel = begin;
  const auto run = [&]<int panels>() {
    const uint8_t* data = w.data + panel * w.stride;
    const Walk walk{data,
                    data + w.scale_offset,
                    w.stride,
                    tile.x + first * Format::kTokenBytes,
                    tile.width * Format::kTokenBytes,
                    tile.blocks,
                    w.group};
    Sums<V, panels, tokens> sums;
    format.template sum<panels, tokens>(walk, sums);
    finish(panel, first, sums);
  };
  // One left alone would take about as long as all that go together.
  constexpr int kPanels = Format::panels_at_once(tokens);
  while (panel < end) {
    const int64_t left = end - panel;
    const int64_t wanted = kPanels > 3 && left == kPanels + 1 ? kPanels - 1 : kPanels;
    const int64_t taken = left < wanted ? left : wanted;
    unrolled<kPanels>([&]<int i>() {
      if (taken == i + 1) run.template operator()<i + 1>();
    });
    panel += taken;
  }
}

// Matrices that a step reads from memory get a kernel for every number of tokens, so that each
// weight is read once. For the others powers of two do, which keeps the program small.
template <class V, class Format, class Finish>
inline void multiply_tile(const Format& format, const Panels& w, int64_t begin, int64_t end,
                          const Tile& tile, const Finish& finish) {
  for (int64_t first = 0; first < tile.width;) {
    int64_t taken = 0;
    unrolled<V::kMaxTokens>([&]<int i>() {
      constexpr int kTokens = V::kMaxTokens - i;
      if constexpr (Format::kEveryCount || (kTokens & (kTokens - 1)) == 0) {
        if (taken > 0 || tile.width - first < kTokens) return;
        multiply_tokens<V, Format, kTokens>(format, w, begin, end, tile, first, finish);
        taken = kTokens;
      }
    });
    first += taken;
  }
}

// Scales sums and hands them to the output: those of the panels from `panel` on, for the tokens of
// the input from `token` on.
template <class V, int panels, int tokens>
inline void put_out(const PanelMatrix& matrix, const PackedInput& input, const LinearOutput& out,
                    int64_t panel, int64_t token, float factor,
                    const Sums<V, panels, tokens>& sums) {
  for (int t = 0; t < tokens; ++t) {
    const int64_t i = token + t;
    float* row = out.base + (out.rows != nullptr ? out.rows[i] : i) * out.stride;
    for (int p = 0; p < panels; ++p) {
      const int64_t at = (panel + p) * kLanes;
      const auto row_scale = V::load(matrix.row_scale + at) * V::set(factor);
      auto y = sums.v[p][t] * row_scale * V::set(input.scale[i]);
      if (matrix.bias != nullptr) y = y + V::load(matrix.bias + at);
      if (out.weight != nullptr) y = y * V::set(out.weight[i]);
      if (out.epilogue == Epilogue::kAdd) y = y + V::load(row + at);
      if (out.epilogue == Epilogue::kRelu2) {
        y = V::max(y, V::zero());
        y = y * y;
      }
      V::store(row + at, y);
    }
  }
}

// One call of a kernel: panels [begin, end) of the matrix for all tokens.
struct LinearCall {
  const PanelMatrix& matrix;
  const PackedInput& input;
  const LinearOutput& output;
  int64_t begin;
  int64_t end;
  uint8_t* scratch;
};

// Panels [begin, end) for the tile that begins at `token`; `w` holds panel `first_panel` first.
template <class V, class Format>
inline void run_tile(const LinearCall& call, const Format& format, const Panels& w,
                     int64_t first_panel, int64_t begin, int64_t end, int64_t token) {
  const int64_t left = call.input.count - token;
  const Tile tile{
      static_cast<const uint8_t*>(call.input.x) + token * call.matrix.blocks * Format::kTokenBytes,
      left < kTile ? left : kTile, call.matrix.blocks};
  multiply_tile<V>(format, w, begin - first_panel, end - first_panel, tile,
                   [&]<int panels, int tokens>(int64_t panel, int64_t first,
                                               const Sums<V, panels, tokens>& sums) {
                     put_out(call.matrix, call.input, call.output, panel + first_panel,
                             token + first, Format::kFactor, sums);
                   });
}

// Panels that stay in the cache while all tiles pass.
inline constexpr int64_t kGroupPanels = 4;

template <class V, class Format>
inline void run_direct(const LinearCall& call, const Format& format) {
  const PanelMatrix& m = call.matrix;
  const Panels w{m.data, m.panel_bytes, m.scale_offset, m.group};
  if (call.input.count <= kTile) return run_tile<V>(call, format, w, 0, call.begin, call.end, 0);
  for (int64_t panel = call.begin; panel < call.end; panel += kGroupPanels) {
    const int64_t group_end = panel + kGroupPanels < call.end ? panel + kGroupPanels : call.end;
    for (int64_t token = 0; token < call.input.count; token += kTile) {
      run_tile<V>(call, format, w, 0, panel, group_end, token);
    }
  }
}

// A format that only ever sees whole tiles.
template <class Format>
struct WholeTiles : Format {
  static constexpr bool kEveryCount = false;
};

// Decodes the weights of a panel to pairs.
template <class V, class Weights>
inline void decode_weights(const Weights& w, const uint8_t* from, int64_t blocks, uint8_t* to) {
  using Pair = typename V::Pair;
  auto* pairs = reinterpret_cast<Pair*>(to);
  const int64_t steps = blocks * kBlockPairs / Weights::kPairs;
  for (int64_t step = 0; step < steps; ++step) {
    const auto raw = w.load(from + step * Weights::kStep);
    unrolled<Weights::kPairs>([&]<int i>() { *pairs++ = w.template pair<i>(raw); });
  }
}

template <class V, class Scales>
inline void decode_scales(const uint8_t* from, int64_t groups, uint8_t* to) {
  for (int64_t g = 0; g < groups; ++g) {
    V::store(reinterpret_cast<float*>(to) + g * kLanes, Scales::load(from + g * Scales::kStep));
  }
}

// With several tiles, weights are decoded once for all of them. `decoded` reads what
// `decode(from, to)` writes; a decoded panel takes `bytes`. The last tile, when it is not whole,
// goes the way of a single one.
template <class V, class Format, class Decoded, class Decode>
inline void run_decoded(const LinearCall& call, const Format& format, const Decoded& decoded,
                        int64_t bytes, int64_t scale_offset, const Decode& decode) {
  const PanelMatrix& m = call.matrix;
  const Panels stored{m.data, m.panel_bytes, m.scale_offset, m.group};
  const Panels scratch{call.scratch, bytes, scale_offset, m.group};
  const int64_t whole = call.input.count / kTile * kTile;
  for (int64_t panel = call.begin; panel < call.end; panel += kGroupPanels) {
    const int64_t group_end = panel + kGroupPanels < call.end ? panel + kGroupPanels : call.end;
    for (int64_t p = panel; p < group_end; ++p) {
      decode(m.data + p * m.panel_bytes, call.scratch + (p - panel) * bytes);
    }
    for (int64_t token = 0; token < whole; token += kTile) {
      run_tile<V>(call, decoded, scratch, panel, panel, group_end, token);
    }
    if (whole < call.input.count) run_tile<V>(call, format, stored, 0, panel, group_end, whole);
  }
}

template <class V, class Weights>
inline void run_plain(const LinearCall& call, const Weights& w) {
  const PlainFormat<V, Weights> format{w};
  if (call.input.count <= kTile) return run_direct<V>(call, format);
  const int64_t blocks = call.matrix.blocks;
  const WholeTiles<PlainFormat<V, DecodedWeights<V>>> decoded{};
  run_decoded<V>(call, format, decoded, blocks * kBlockPairs * DecodedWeights<V>::kStep, 0,
                 [&](const uint8_t* from, uint8_t* to) { decode_weights<V>(w, from, blocks, to); });
}

template <class V, class Scales>
inline void run_scaled(const LinearCall& call, const float* table) {
  const ScaledFormat<V, NibbleWeights<V>, Scales> format{{V::nibble_table(table)}};
  if (call.input.count <= kTile) return run_direct<V>(call, format);
  const PanelMatrix& m = call.matrix;
  const int64_t groups = (m.blocks * kBlock + m.group - 1) / m.group;
  const int64_t weight_bytes = m.blocks * kBlockPairs * DecodedWeights<V>::kStep;
  const WholeTiles<ScaledFormat<V, DecodedWeights<V>, DecodedScales<V, Scales>>> decoded{};
  run_decoded<V>(call, format, decoded, weight_bytes + groups * 4 * kLanes, weight_bytes,
                 [&](const uint8_t* from, uint8_t* to) {
                   decode_weights<V>(format.w, from, m.blocks, to);
                   decode_scales<V, Scales>(from + m.scale_offset, groups, to + weight_bytes);
                 });
}

// Decoding is so cheap for integers that many tokens take the way of few.
template <class V, class Codes, class Scales>
inline void run_integer(const LinearCall& call) {
  const auto table = V::byte_table(Codes::kBytes);
  call.matrix.digits == 1 ? run_direct<V>(call, IntegerFormat<V, Codes, Scales, 1>{table})
                          : run_direct<V>(call, IntegerFormat<V, Codes, Scales, 2>{table});
}

template <class V>
inline void run_nibbles(const LinearCall& call) {
  const bool nvfp4 = call.matrix.format == PanelFormat::kNvfp4;
  if constexpr (V::kIntegerProducts) {
    nvfp4 ? run_integer<V, E2m1Integers, E4m3Scales<V>>(call)
          : run_integer<V, Int4Integers, Bf16Scales<V>>(call);
  } else {
    nvfp4 ? run_scaled<V, E4m3Scales<V>>(call, kE2M1Table)
          : run_scaled<V, Bf16Scales<V>>(call, kInt4Table);
  }
}

template <class V>
void linear(const PanelMatrix& matrix, const PackedInput& input, const LinearOutput& output,
            int64_t panel_begin, int64_t panel_end, uint8_t* scratch) {
  const LinearCall call{matrix, input, output, panel_begin, panel_end, scratch};
  switch (matrix.format) {
    case PanelFormat::kBf16:
      return run_direct<V>(call, PlainFormat<V, Bf16Weights<V>>{});
    case PanelFormat::kFp8:
      return run_plain<V>(call, Fp8Weights<V>{});
    case PanelFormat::kNvfp4:
    case PanelFormat::kInt4:
      return run_nibbles<V>(call);
    case PanelFormat::kBf16ByF32:
      return run_direct<V>(call, WideFormat<V, Bf16Columns<V>>{});
    case PanelFormat::kF16ByF32:
      return run_direct<V>(call, WideFormat<V, F16Columns<V>>{});
    case PanelFormat::kF32ByF32:
      return run_direct<V>(call, WideFormat<V, F32Columns<V>>{});
  }
}

}  // namespace levin::runtime::cpu
