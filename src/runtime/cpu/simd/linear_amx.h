// y = W x with the tile unit: the panels of kernels.h, once they are BF16 pairs, are the tiles that
// it multiplies. Any number of tokens takes this way, so a token's result does not depend on what
// it is batched with.
//
// Weights without block scales: a tile of sums stays in its register over all columns. With them,
// the products of 16 columns are to be scaled by themselves, and bringing sums out of a tile costs
// as much as two products. So activations are spread over rows of their own, zeros elsewhere: a
// token has one for each half of a block of 32 columns, and with few tokens several blocks share a
// tile of sums.
#pragma once

#include <cstdint>

#include "runtime/cpu/kernels.h"
#include "runtime/cpu/simd/linear.h"
#include "runtime/cpu/simd/tiles.h"
#include "runtime/cpu/simd/weights.h"

namespace levin::runtime::cpu {

// How far ahead of its loads a panel's packed weights and scales are fetched.
constexpr int64_t kTileFetchAhead = 2048;
constexpr int64_t kScaleFetchAhead = 256;
// Into the second level of the cache: the first one's few lines under way are for loads.
[[gnu::always_inline]] inline void fetch(const uint8_t* at) {
  __builtin_prefetch(at, 0, 1);
}

// Where weights become tiles. kBytes: of a panel's block of 32 columns.
struct StoredTiles {
  static constexpr bool kStored = true;
  static constexpr int64_t kBytes = kTileBytes;
  [[gnu::always_inline]] const uint8_t* operator()(const uint8_t* from, uint8_t* /*to*/) const {
    return from;
  }
};

template <class V, class Weights>
struct DecodedTiles {
  static constexpr bool kStored = false;
  static constexpr int kSteps = kBlockPairs / Weights::kPairs;
  static constexpr int64_t kBytes = kSteps * Weights::kStep;
  Weights w;
  [[gnu::always_inline]] const uint8_t* operator()(const uint8_t* from, uint8_t* to) const {
    auto* pairs = reinterpret_cast<typename V::Pair*>(to);
    unrolled<kSteps>([&]<int step>() __attribute__((always_inline)) {
      fetch(from + step * Weights::kStep + kTileFetchAhead);
      const auto raw = w.load(from + step * Weights::kStep);
      unrolled<Weights::kPairs>([&]<int i>() __attribute__((always_inline)) {
        pairs[step * Weights::kPairs + i] = w.template pair<i>(raw);
      });
    });
    return to;
  }
};

// Work space of a call in `scratch`: tiles of weights and of sums that are on their way, a tile of
// tokens spread out, panels decoded for many tokens.
struct TileScratch {
  uint8_t* weights;
  float* sums;
  uint8_t* inputs;
  uint8_t* panels;

  TileScratch(uint8_t* scratch, int64_t blocks)
      : weights(scratch),
        sums(reinterpret_cast<float*>(weights + 16 * kTileBytes)),
        inputs(scratch + 24 * kTileBytes),
        panels(inputs + blocks * kTileBytes) {}
};

// The first block of columns of some panels, `stride` bytes apart.
struct TilePanels {
  const uint8_t* weights;
  const uint8_t* scales;
  int64_t stride;
  int64_t blocks;
};

// Loads the sums of panel p from tiles stored at `stored`, 16 rows apart.
template <class V, int panels, int tokens>
inline Sums<V, panels, tokens> stored_sums(const float* stored, int tiles) {
  Sums<V, panels, tokens> sums;
  for (int p = 0; p < panels; ++p) {
    for (int t = 0; t < tokens; ++t) {
      sums.v[p][t] = V::load(stored + (p * tiles * 16 + t) * kLanes);
    }
  }
  return sums;
}

// Weights on their way to the tile unit: decoded a few blocks before they are loaded, since a tile
// is not loaded from stores that are still under way.
template <class Source, int panels>
struct WeightRing {
  static constexpr int64_t kBlocks = 16 / panels;
  static constexpr int64_t kAhead = kBlocks / 2;
  const Source& source;
  const TilePanels& w;
  uint8_t* ring;

  [[gnu::always_inline]] void decode(int64_t b) const {
    if (b >= w.blocks) return;
    unrolled<panels>([&]<int p>() __attribute__((always_inline)) {
      source(w.weights + p * w.stride + b * Source::kBytes, at(b, p));
    });
  }
  uint8_t* at(int64_t b, int p) const { return ring + (b % kBlocks * panels + p) * kTileBytes; }
  void begin() const {
    if (Source::kStored) return;
    for (int64_t b = 0; b < kAhead; ++b) decode(b);
  }
  // Tile p of block b; takes one more block on its way when p is 0.
  template <int p>
  [[gnu::always_inline]] const uint8_t* tile(int64_t b) const {
    if constexpr (Source::kStored) {
      return w.weights + p * w.stride + b * kTileBytes;
    } else {
      if constexpr (p == 0) decode(b + kAhead);
      return at(b, p);
    }
  }
};

// Sums of `panels` panels for `tiles` tiles of `tokens` tokens, tile_stride bytes apart, stored at
// scratch.sums: panel by panel, a tile of sums for each tile of tokens.
template <class Source, int panels, int tiles, int tokens>
inline void plain_sums(const Source& source, const TilePanels& w, const uint8_t* x,
                       int64_t tile_stride, const TileScratch& scratch) {
  static_assert(panels * tiles <= 4 && tiles <= 2);
  const WeightRing<Source, panels> ring{source, w, scratch.weights};
  unrolled<panels * tiles>([&]<int i>() { clear_tile<kSumTile + i>(); });
  ring.begin();
  for (int64_t b = 0; b < w.blocks; ++b) {
    unrolled<tiles>([&]<int i>() {
      load_tile<kInputTile + i>(x + i * tile_stride + b * tokens * kTileRowBytes);
    });
    unrolled<panels>([&]<int p>() __attribute__((always_inline)) {
      load_tile<kWeightTile + p % 2>(ring.template tile<p>(b));
      unrolled<tiles>([&]<int i>() {
        multiply_tiles<kSumTile + p * tiles + i, kInputTile + i, kWeightTile + p % 2>();
      });
    });
  }
  unrolled<panels * tiles>(
      [&]<int i>() { store_tile<kSumTile + i>(scratch.sums + i * kTileBytes / 4); });
}

// How the products of `tokens` tokens with weights under block scales are spread over a tile of
// sums: a row for each group of columns, token by token. A group never lies across tiles: a tile
// covers kPeriods periods, a period being the fewest blocks that hold whole groups (kGroups of
// them). With few tokens several share a tile, up to 8 rows, which are multiplied in 3/5 of the
// time of 16.
template <int tokens, int groups_per_period>
struct Spread {
  static constexpr int kGroups = groups_per_period;  // 1 or 2
  static constexpr int kPeriods = tokens * kGroups < 8 ? 8 / (tokens * kGroups) : 1;
  static constexpr int kTileGroups = kPeriods * kGroups;
  static constexpr int kRows = kTileGroups * tokens;
};

// Columns of a matrix as tiles of sums see them.
struct GroupWalk {
  int64_t blocks;
  int64_t group;          // columns
  int64_t groups;         // of the matrix
  int64_t period_blocks;  // blocks of a period

  GroupWalk(int64_t block_count, int64_t columns)
      : blocks(block_count),
        group(columns),
        groups((block_count * kBlock + columns - 1) / columns),
        period_blocks(columns % kBlock == 0 ? columns / kBlock : columns / kScaleBlock) {}
};

// Spreads out the tile of tokens at `x`, [blocks][tokens][32]: for each block a tile of kRows rows,
// with zeros in the rows of other groups.
template <class V, class S, int tokens>
inline void spread_inputs(const uint8_t* x, const GroupWalk& walk, uint8_t* to) {
  const int64_t tile_columns = walk.group * S::kTileGroups;
  for (int64_t b = 0; b < walk.blocks; ++b) {
    auto* rows = reinterpret_cast<typename V::Pair*>(to + b * S::kRows * kTileRowBytes);
    for (int row = 0; row < S::kRows; ++row) rows[row] = V::zero_pair();
    const int64_t column = b * kBlock % tile_columns;
    const int64_t first = column / walk.group * tokens;
    const int64_t second = (column + kScaleBlock) / walk.group * tokens;
    for (int t = 0; t < tokens; ++t) {
      const auto pair = V::load_pair(x + (b * tokens + t) * kTileRowBytes);
      rows[first + t] = first == second ? pair : V::first_half(pair);
      if (first != second) rows[second + t] = V::second_half(pair);
    }
  }
}

// Sums with block scales of `panels` panels, for a tile of tokens that is spread out at
// scratch.inputs. Tiles of sums are added to the result one tile later, when they have arrived.
template <class V, class Source, class Scales, class S, int panels, int tokens>
[[gnu::always_inline]] inline void scaled_sums(const Source& source, const TilePanels& w,
                                               const GroupWalk& walk, const TileScratch& scratch,
                                               Sums<V, panels, tokens>& result) {
  static_assert(panels <= 4);
  constexpr int64_t kFloats = kTileBytes / 4;
  const WeightRing<Source, panels> ring{source, w, scratch.weights};
  Sums<V, panels, tokens> sums;  // in registers: nobody else may know its address
  const auto add = [&](const float* stored, int64_t first_group) __attribute__((always_inline)) {
    const uint8_t* scales = w.scales + first_group * Scales::kStep;
    if constexpr (!Source::kStored) {
      unrolled<panels>([&]<int p>() { fetch(scales + p * w.stride + kScaleFetchAhead); });
    }
    unrolled<S::kTileGroups>([&]<int g>() __attribute__((always_inline)) {
      if (g > 0 && first_group + g >= walk.groups) return;
      unrolled<panels>([&]<int p>() __attribute__((always_inline)) {
        const auto scale = Scales::load(scales + g * Scales::kStep + p * w.stride);
        unrolled<tokens>([&]<int t>() __attribute__((always_inline)) {
          const auto sum = V::load(stored + p * kFloats + (g * tokens + t) * kLanes);
          sums.v[p][t] = V::fma(sum, scale, sums.v[p][t]);
        });
      });
    });
  };
  unrolled<panels>([&]<int p>() __attribute__((always_inline)) {
    unrolled<tokens>([&]<int t>() __attribute__((always_inline)) { sums.v[p][t] = V::zero(); });
  });
  ring.begin();
  const int64_t tile_blocks = walk.period_blocks * S::kPeriods;
  int64_t group = 0;
  int64_t set = 0;
  for (int64_t begin = 0; begin < walk.blocks; begin += tile_blocks) {
    const int64_t end = begin + tile_blocks < walk.blocks ? begin + tile_blocks : walk.blocks;
    unrolled<panels>([&]<int p>() { clear_tile<kSumTile + p>(); });
    for (int64_t b = begin; b < end; ++b) {
      load_tile<kInputTile>(scratch.inputs + b * S::kRows * kTileRowBytes);
      unrolled<panels>([&]<int p>() __attribute__((always_inline)) {
        load_tile<kWeightTile + p % 2>(ring.template tile<p>(b));
        multiply_tiles<kSumTile + p, kInputTile, kWeightTile + p % 2>();
      });
    }
    if (begin > 0) add(scratch.sums + (4 - set) * kFloats, group - S::kTileGroups);
    unrolled<panels>(
        [&]<int p>() { store_tile<kSumTile + p>(scratch.sums + (set + p) * kFloats); });
    set = 4 - set;
    group += S::kTileGroups;
  }
  add(scratch.sums + (4 - set) * kFloats, group - S::kTileGroups);
  result = sums;
}

// Decodes the weights of a panel to tiles.
template <class Source>
inline void decode_panel_tiles(const Source& source, const uint8_t* from, int64_t blocks,
                               uint8_t* to) {
  for (int64_t b = 0; b < blocks; ++b) {
    source(from + b * Source::kBytes, to + b * kTileBytes);
  }
}

// Calls f<panels>(panel) for the panels from `begin` to `end`, as many at a time as `most`. Three
// at a time once keep any from being left alone, which takes as long as all four: a tile of sums
// waits for the product before.
template <int most, class Function>
inline void for_panels(int64_t begin, int64_t end, const Function& f) {
  while (begin < end) {
    const int64_t left = end - begin;
    const int64_t wanted = left % most == 1 && left > 2 ? 3 : most;
    const int64_t taken = left < wanted ? left : wanted;
    unrolled<most == 2 ? 3 : most>([&]<int i>() {
      if (taken == i + 1) f.template operator()<i + 1>(begin);
    });
    begin += taken;
  }
}

// Calls f<tokens>() for the number of tokens of a tile.
template <class Function>
inline void for_tokens(int64_t tokens, const Function& f) {
  unrolled<static_cast<int>(kTile)>([&]<int i>() {
    if (tokens == i + 1) f.template operator()<i + 1>();
  });
}

// Panels [begin, end) of `w` for the tiles of tokens from `token` on, `tiles` of them.
template <class V, class Source>
inline void run_plain_tiles(const LinearCall& call, const Source& source, const Panels& w,
                            int64_t first_panel, int64_t begin, int64_t end, int64_t token,
                            int64_t tokens, const TileScratch& scratch) {
  const int64_t blocks = call.matrix.blocks;
  const int64_t tile_stride = kTile * blocks * kTileRowBytes;
  const uint8_t* x = static_cast<const uint8_t*>(call.input.x) + token * blocks * kTileRowBytes;
  const auto run = [&]<int panels, int tiles, int count>(int64_t panel) {
    const uint8_t* data = w.data + (panel - first_panel) * w.stride;
    plain_sums<Source, panels, tiles, count>(source, {data, nullptr, w.stride, blocks}, x,
                                             tile_stride, scratch);
    for (int i = 0; i < tiles; ++i) {
      const auto sums = stored_sums<V, panels, count>(scratch.sums + i * kTileBytes / 4, tiles);
      put_out(call.matrix, call.input, call.output, panel, token + i * kTile, 1.0F, sums);
    }
  };
  if (tokens == 2 * kTile) {
    int64_t panel = begin;
    for (; panel + 2 <= end; panel += 2) run.template operator()<2, 2, kTile>(panel);
    for (; panel < end; ++panel) run.template operator()<1, 2, kTile>(panel);
    return;
  }
  for_tokens(tokens, [&]<int count>() {
    for_panels<4>(begin, end, [&]<int panels>(int64_t panel) {
      run.template operator()<panels, 1, count>(panel);
    });
  });
}

// Panels [begin, end) of `w` for the tile of tokens from `token` on.
template <class V, class Scales, int tokens, int groups_per_period, class Source>
inline void run_scaled_tile(const LinearCall& call, const Source& source, const Panels& w,
                            int64_t first_panel, int64_t begin, int64_t end, int64_t token,
                            const TileScratch& scratch) {
  using S = Spread<tokens, groups_per_period>;
  const int64_t blocks = call.matrix.blocks;
  const GroupWalk walk(blocks, call.matrix.group);
  const auto* x = static_cast<const uint8_t*>(call.input.x) + token * blocks * kTileRowBytes;
  spread_inputs<V, S, tokens>(x, walk, scratch.inputs);
  configure_tiles(tile_config(S::kRows));
  const auto run = [&]<int panels>(int64_t panel) {
    const uint8_t* data = w.data + (panel - first_panel) * w.stride;
    Sums<V, panels, tokens> sums;
    scaled_sums<V, Source, Scales, S>(source, {data, data + w.scale_offset, w.stride, blocks}, walk,
                                      scratch, sums);
    put_out(call.matrix, call.input, call.output, panel, token, Scales::kFactor, sums);
  };
  for_panels<tokens <= 4 ? 4 : 2>(
      begin, end, [&]<int panels>(int64_t panel) { run.template operator()<panels>(panel); });
}

template <class V, class Source>
inline void run_plain_amx(const LinearCall& call, const Source& source) {
  const PanelMatrix& m = call.matrix;
  const TileScratch scratch(call.scratch, m.blocks);
  const int64_t count = call.input.count;
  const Panels stored{m.data, m.panel_bytes, 0, 0};
  if (count <= kTile) {
    configure_tiles(tile_config(static_cast<int>(count)));
    return run_plain_tiles<V>(call, source, stored, 0, call.begin, call.end, 0, count, scratch);
  }
  constexpr bool kDecoded = Source::kBytes != kTileBytes;
  const Panels decoded{scratch.panels, m.blocks * kTileBytes, 0, 0};
  const int64_t whole = count / kTile * kTile;
  for (int64_t panel = call.begin; panel < call.end; panel += kGroupPanels) {
    const int64_t end = panel + kGroupPanels < call.end ? panel + kGroupPanels : call.end;
    for (int64_t p = panel; kDecoded && p < end; ++p) {
      decode_panel_tiles(source, m.data + p * m.panel_bytes, m.blocks,
                         scratch.panels + (p - panel) * decoded.stride);
    }
    const auto run = [&](int64_t token, int64_t tokens) {
      run_plain_tiles<V>(call, StoredTiles{}, kDecoded ? decoded : stored, kDecoded ? panel : 0,
                         panel, end, token, tokens, scratch);
    };
    configure_tiles(tile_config(static_cast<int>(kTile)));
    int64_t token = 0;
    for (; token + 2 * kTile <= whole; token += 2 * kTile) run(token, 2 * kTile);
    for (; token < whole; token += kTile) run(token, kTile);
    if (whole == count) continue;
    configure_tiles(tile_config(static_cast<int>(count - whole)));
    run(whole, count - whole);
  }
}

template <class V, class Scales, int groups_per_period>
inline void run_scaled_amx(const LinearCall& call, const float* table) {
  using Source = DecodedTiles<V, NibbleWeights<V>>;
  const Source source{{V::nibble_table(table)}};
  const PanelMatrix& m = call.matrix;
  const TileScratch scratch(call.scratch, m.blocks);
  const int64_t count = call.input.count;
  if (count <= kTile) {
    const Panels stored{m.data, m.panel_bytes, m.scale_offset, m.group};
    return for_tokens(count, [&]<int tokens>() {
      run_scaled_tile<V, Scales, tokens, groups_per_period>(call, source, stored, 0, call.begin,
                                                            call.end, 0, scratch);
    });
  }
  const int64_t groups = GroupWalk(m.blocks, m.group).groups;
  const int64_t weight_bytes = m.blocks * kTileBytes;
  const Panels decoded{scratch.panels, weight_bytes + groups * 4 * kLanes, weight_bytes, m.group};
  for (int64_t panel = call.begin; panel < call.end; panel += kGroupPanels) {
    const int64_t end = panel + kGroupPanels < call.end ? panel + kGroupPanels : call.end;
    for (int64_t p = panel; p < end; ++p) {
      uint8_t* to = scratch.panels + (p - panel) * decoded.stride;
      decode_panel_tiles(source, m.data + p * m.panel_bytes, m.blocks, to);
      decode_scales<V, Scales>(m.data + p * m.panel_bytes + m.scale_offset, groups,
                               to + weight_bytes);
    }
    for (int64_t token = 0; token < count; token += kTile) {
      for_tokens(count - token < kTile ? count - token : kTile, [&]<int tokens>() {
        run_scaled_tile<V, DecodedScales<V, Scales>, tokens, groups_per_period>(
            call, StoredTiles{}, decoded, panel, panel, end, token, scratch);
      });
    }
  }
}

template <class V>
void linear_amx(const PanelMatrix& matrix, const PackedInput& input, const LinearOutput& output,
                int64_t panel_begin, int64_t panel_end, uint8_t* scratch) {
  const LinearCall call{matrix, input, output, panel_begin, panel_end, scratch};
  switch (matrix.format) {
    case PanelFormat::kBf16:
      run_plain_amx<V>(call, StoredTiles{});
      break;
    case PanelFormat::kFp8:
      run_plain_amx<V>(call, DecodedTiles<V, Fp8Weights<V>>{});
      break;
    case PanelFormat::kNvfp4:
      run_scaled_amx<V, E4m3Scales<V>, 2>(call, kE2M1Table);
      break;
    case PanelFormat::kInt4:
      if (matrix.group % kBlock == 0) {
        run_scaled_amx<V, Bf16Scales<V>, 1>(call, kInt4Table);
      } else {
        run_scaled_amx<V, Bf16Scales<V>, 2>(call, kInt4Table);
      }
      break;
    case PanelFormat::kBf16ByF32:
      return run_direct<V>(call, WideFormat<V, Bf16Columns<V>>{});
    case PanelFormat::kF16ByF32:
      return run_direct<V>(call, WideFormat<V, F16Columns<V>>{});
    case PanelFormat::kF32ByF32:
      return run_direct<V>(call, WideFormat<V, F32Columns<V>>{});
  }
  release_tiles();
}

}  // namespace levin::runtime::cpu
