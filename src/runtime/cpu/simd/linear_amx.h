// y = W x with the tile unit: the panels of kernels.h, once they are BF16 pairs, are the tiles that
// it multiplies. Any number of tokens takes this way, so a token's result does not depend on what
// it is batched with.
// Weights of 4 bits are integers instead (linear_integer.h): under block scales the products of 16
// columns are to be scaled by themselves, and bringing sums out of a tile costs as much as two
// products.
#pragma once

#include <cstdint>

#include "runtime/cpu/kernels.h"
#include "runtime/cpu/simd/linear.h"
#include "runtime/cpu/simd/tiles.h"
#include "runtime/cpu/simd/weights.h"

namespace levin::runtime::cpu {
// As in every file that is compiled for some instructions: what has no V in its type must not be
// visible outside either.
namespace {

// How far ahead of its loads a panel's weights are fetched.
constexpr int64_t kTileFetchAhead = 2048;
// Into the second level of the cache: the first one's few lines under way are for loads.
[[gnu::always_inline]] inline void fetch(const uint8_t* at) {
  __builtin_prefetch(at, 0, 1);
}

// Where weights become tiles. kBytes: of a panel's block of 32 columns. kFetch: read from memory.
template <bool fetch_ahead>
struct StoredTiles {
  static constexpr bool kStored = true;
  static constexpr bool kFetch = fetch_ahead;
  static constexpr int64_t kBytes = kTileBytes;
  [[gnu::always_inline]] const uint8_t* operator()(const uint8_t* from, const uint8_t* /*ahead*/,
                                                   uint8_t* /*to*/) const {
    return from;
  }
};

template <class V, class Weights>
struct DecodedTiles {
  static constexpr bool kStored = false;
  static constexpr int kSteps = kBlockPairs / Weights::kPairs;
  static constexpr int64_t kBytes = kSteps * Weights::kStep;
  Weights w;
  // `ahead`: what to fetch meanwhile.
  [[gnu::always_inline]] const uint8_t* operator()(const uint8_t* from, const uint8_t* ahead,
                                                   uint8_t* to) const {
    auto* pairs = reinterpret_cast<typename V::Pair*>(to);
    unrolled<kSteps>([&]<int step>() __attribute__((always_inline)) {
      fetch(ahead + step * Weights::kStep);
      const auto raw = w.load(from + step * Weights::kStep);
      unrolled<Weights::kPairs>([&]<int i>() __attribute__((always_inline)) {
        pairs[step * Weights::kPairs + i] = w.template pair<i>(raw);
      });
    });
    return to;
  }
};

// Work space of a call in `scratch`: tiles of weights and of sums that are on their way, panels
// decoded for many tokens.
struct TileScratch {
  uint8_t* weights;
  float* sums;
  uint8_t* panels;

  explicit TileScratch(uint8_t* scratch)
      : weights(scratch),
        sums(reinterpret_cast<float*>(weights + 16 * kTileBytes)),
        panels(scratch + 24 * kTileBytes) {}
};

// The first block of columns of some panels, `stride` bytes apart.
struct TilePanels {
  const uint8_t* weights;
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
    const uint8_t* from = w.weights + b * Source::kBytes;
    const uint8_t* ahead = this->ahead(b * Source::kBytes);
    unrolled<panels>([&]<int p>() __attribute__((always_inline)) {
      source(from + p * w.stride, ahead + p * w.stride, at(b, p));
    });
  }
  // What to fetch into the cache while the bytes at `offset` of each panel are at work: after the
  // last ones of these panels the first ones of the next.
  const uint8_t* ahead(int64_t offset) const {
    const int64_t bytes = w.blocks * Source::kBytes;
    const int64_t at = offset + kTileFetchAhead;
    return w.weights + (at < bytes ? at : at - bytes + panels * w.stride);
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
      if constexpr (Source::kFetch) {
        const uint8_t* next = ahead(b * kTileBytes) + p * w.stride;
        unrolled<16>([&]<int i>() { fetch(next + i * kTileRowBytes); });
      }
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

// Decodes the weights of a panel to tiles.
template <class Source>
inline void decode_panel_tiles(const Source& source, const uint8_t* from, int64_t blocks,
                               uint8_t* to) {
  for (int64_t b = 0; b < blocks; ++b) {
    const uint8_t* block = from + b * Source::kBytes;
    source(block, block + kTileFetchAhead, to + b * kTileBytes);
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
    plain_sums<Source, panels, tiles, count>(source, {data, w.stride, blocks}, x, tile_stride,
                                             scratch);
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

template <class V, class Source>
inline void run_plain_amx(const LinearCall& call, const Source& source) {
  const PanelMatrix& m = call.matrix;
  const TileScratch scratch(call.scratch);
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
      run_plain_tiles<V>(call, StoredTiles<false>{}, kDecoded ? decoded : stored,
                         kDecoded ? panel : 0, panel, end, token, tokens, scratch);
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

template <class V>
void linear_amx(const PanelMatrix& matrix, const PackedInput& input, const LinearOutput& output,
                int64_t panel_begin, int64_t panel_end, uint8_t* scratch) {
  const LinearCall call{matrix, input, output, panel_begin, panel_end, scratch};
  switch (matrix.format) {
    case PanelFormat::kBf16:
      run_plain_amx<V>(call, StoredTiles<true>{});
      break;
    case PanelFormat::kFp8:
      run_plain_amx<V>(call, DecodedTiles<V, Fp8Weights<V>>{});
      break;
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
  release_tiles();
}

}  // namespace
}  // namespace levin::runtime::cpu
