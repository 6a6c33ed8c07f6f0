// The kernel of prefill_gemm.h. Two or four warp groups multiply, one fetches; a block takes
// one tile of the output after the other, and fetching runs ahead across them.
#pragma once

#include "runtime/cuda/decode.cuh"
#include "runtime/cuda/prefill_gemm.h"
#include "runtime/cuda/prefill_wgmma.cuh"
#include "runtime/cuda/routing.cuh"

namespace levin::runtime::cuda {

inline constexpr int kGroupThreads = 128;
inline constexpr int kFetchWarps = kGroupThreads / 32;
inline constexpr int kGroupRows = 64;  // weight rows of one product

// kGroups: that multiply, each kRowBlocks times 64 weight rows.
template <UnitFormat kFormat, int kGroups, int kRowBlocks, int kTokens>
struct GemmLayout {
  static constexpr int kThreads = (kGroups + 1) * kGroupThreads;
  static constexpr int kRows = kGroups * kRowBlocks * kGroupRows;
  static constexpr int kTiles = kRows / kTileRows;
  static constexpr bool kFourBits = kFormat == UnitFormat::kNvfp4 || kFormat == UnitFormat::kInt4;
  static constexpr int kUnitBytes = kFormat == UnitFormat::kFp8     ? 512
                                    : kFormat == UnitFormat::kNvfp4 ? 288
                                    : kFormat == UnitFormat::kInt4  ? 320
                                                                    : 1024;  // at most
  static constexpr int kUnits = kRowBlocks == 1 || kFourBits ? 2 : 1;       // of a stage
  static_assert(kUnits * kRowBlocks > 1, "gemm_multiply gives a stage back at its second step");
  static constexpr int kTileBytes = kUnits * kUnitBytes;
  static constexpr int kTokenBytes = kTokens * Panels::kRowBytes;  // of a unit
  static constexpr int kWeights = kUnits * kTokenBytes;            // where they begin in a stage
  static constexpr int kStageBytes = (kWeights + kTiles * kTileBytes + 1023) / 1024 * 1024;
  static constexpr int kOutput = kGroups * kTokenBytes;
  static constexpr int kTable = (4 * (kMaxExperts + 1) + 127) / 128 * 128;
  // Small tiles leave a group waiting most of the time: two blocks on a multiprocessor then.
  static constexpr int kBlocks =
      kGroups * kRowBlocks == 2 && kTokens <= 32 && kUnitBytes < 1024 ? 2 : 1;
  // Of a thread that multiplies, and of one that fetches: together what the block is launched with.
  static constexpr int kRegisters = kBlocks == 2 || kGroups == 4 ? 104 : 232;
  static constexpr int kFetchRegisters = kBlocks == 2 ? 32 : 40;
  static constexpr int kMostShared = (kBlocks == 2 ? 112 : 227) * 1024;
  static constexpr int kMostStages = 8;
  static constexpr int kBarriers = 2 * 8 * kMostStages;
  static constexpr int kFit = (kMostShared - kOutput - kTable - kBarriers) / kStageBytes;
  static constexpr int kStages = kFit < kMostStages ? kFit : kMostStages;
  static constexpr int kShared = kStages * kStageBytes + kOutput + kTable + kBarriers;
  static_assert(kStages >= 3);
};

// One tile of the output.
struct GemmPlace {
  int part;
  int expert;
  int tile;   // first packed tile of the matrix
  int token;  // first row of the panels
  int tokens;
};

// Tiles of tokens of one part in groups that share their weights while those are in the L2 cache.
inline constexpr int kTokenTilesTogether = 8;

__device__ inline int gemm_row_tiles(const PackedMatrix& m, int rows) {
  return (m.rows + rows - 1) / rows;
}

// Whether there is a tile number `index`, and where.
template <typename Layout, int kTokens>
__device__ inline bool gemm_place(const Gemm& p, const int* tiles_before, int index,
                                  GemmPlace& place) {
  if (p.experts > 0) {
    const int row_tiles = gemm_row_tiles(p.parts[0].matrix, Layout::kRows);
    if (index >= tiles_before[p.experts] * row_tiles) return false;
    int low = 0;
    int high = p.experts;  // the expert is in [low, high)
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (tiles_before[middle] * row_tiles <= index) {
        low = middle;
      } else {
        high = middle;
      }
    }
    const int before = tiles_before[low];
    const int token_tiles = tiles_before[low + 1] - before;
    index -= before * row_tiles;
    const int token_tile = index % token_tiles;
    place.part = 0;
    place.expert = low;
    place.tile = index / token_tiles * Layout::kTiles;
    place.token = __ldg(p.expert_rows.first + low) + token_tile * kTokens;
    place.tokens = min(kTokens, __ldg(p.expert_rows.count + low) - token_tile * kTokens);
    return true;
  }
  const int token_tiles = (p.rows + kTokens - 1) / kTokens;
#pragma unroll 1
  for (int part = 0; part < p.part_count; ++part) {
    const int row_tiles = gemm_row_tiles(p.parts[part].matrix, Layout::kRows);
    if (index >= row_tiles * token_tiles) {
      index -= row_tiles * token_tiles;
      continue;
    }
    const int together = kTokenTilesTogether * row_tiles;
    const int group = index / together;
    index -= group * together;
    const int width = min(kTokenTilesTogether, token_tiles - group * kTokenTilesTogether);
    const int token_tile = group * kTokenTilesTogether + index % width;
    place.part = part;
    place.expert = 0;
    place.tile = index / width * Layout::kTiles;
    place.token = token_tile * kTokens;
    place.tokens = min(kTokens, p.rows - place.token);
    return true;
  }
  return false;
}

// A ring of stages: which one is next, and in which round.
struct StageCounter {
  int stage = 0;
  uint32_t round = 0;
  __device__ void next(int stages) {
    if (++stage == stages) {
      stage = 0;
      round ^= 1;
    }
  }
};

template <typename Layout>
struct GemmMemory {
  uint8_t* base;
  __device__ uint32_t stage(int i) const {
    return ptx::shared_address(base) + i * Layout::kStageBytes;
  }
  __device__ uint8_t* output(int group) const {
    return base + Layout::kStages * Layout::kStageBytes + group * Layout::kTokenBytes;
  }
  __device__ int* table() const {
    return reinterpret_cast<int*>(base + Layout::kStages * Layout::kStageBytes + Layout::kOutput);
  }
  __device__ uint32_t full(int i) const {
    return ptx::shared_address(table()) + Layout::kTable + 8 * i;
  }
  __device__ uint32_t empty(int i) const { return full(i + Layout::kMostStages); }
};

// The warps that fetch: each some of the tiles' weights, and the activations of a unit. A bulk copy
// is issued by one lane after the other of a warp, about 70 cycles each, which is why several warps
// share them.
template <typename Layout, int kTokens>
__device__ inline void gemm_fetch(const Gemm& p, const GemmMemory<Layout>& memory) {
  constexpr int kTilesOfWarp = Layout::kTiles / kFetchWarps;
  static_assert(Layout::kUnits <= kFetchWarps && Layout::kTiles % kFetchWarps == 0);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x % kGroupThreads) / 32;
  const int tile = warp * kTilesOfWarp + lane;
  StageCounter at;
  GemmPlace place;
  for (int index = static_cast<int>(blockIdx.x);
       gemm_place<Layout, kTokens>(p, memory.table(), index, place);
       index += static_cast<int>(gridDim.x)) {
    const PackedMatrix& m = p.parts[place.part].matrix;
    const Panels& input = p.parts[place.part].input;
    const uint8_t* weights =
        m.data + place.expert * p.expert_stride + m.offset(min(place.tile + tile, m.tiles - 1), 0);
    const int tiles = min(Layout::kTiles, m.tiles - place.tile);
    for (int unit = 0; unit < m.units; unit += Layout::kUnits) {
      const int units = min(Layout::kUnits, m.units - unit);
      const int bytes = units * m.unit_bytes;
      const uint32_t full = memory.full(at.stage);
      ptx::barrier_wait(memory.empty(at.stage), at.round ^ 1);
      // The barrier waits for this arrival, whichever warp comes first.
      if (warp == 0 && lane == 0) {
        ptx::expect_bytes(full, units * Layout::kTokenBytes + tiles * bytes);
      }
      __syncwarp();
      const uint32_t stage = memory.stage(at.stage);
      if (warp < units && lane == 0) {
        ptx::bulk_copy(stage + warp * Layout::kTokenBytes, input.row(unit + warp, place.token),
                       Layout::kTokenBytes, full);
      }
      if (lane < kTilesOfWarp && tile < tiles) {
        ptx::bulk_copy(stage + Layout::kWeights + tile * Layout::kTileBytes,
                       weights + static_cast<int64_t>(unit) * m.unit_bytes, bytes, full);
      }
      at.next(Layout::kStages);
    }
  }
}

// A's registers of the four products of one unit, from two tiles.
template <UnitFormat kFormat>
__device__ inline void gemm_decode(uint32_t tile, uint32_t tile_bytes, int lane, int unit_scales,
                                   uint32_t (&a)[4][4]) {
  LaneWeights<kFormat> upper;
  LaneWeights<kFormat> lower;
  upper.load(tile, lane, unit_scales);
  lower.load(tile + tile_bytes, lane, unit_scales);
  uint32_t x[2][4];
  uint32_t y[2][4];
  upper.expand(x);
  lower.expand(y);
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    a[step][0] = x[step % 2][step / 2];
    a[step][1] = y[step % 2][step / 2];
    a[step][2] = x[step % 2][step / 2 + 2];
    a[step][3] = y[step % 2][step / 2 + 2];
  }
}

__device__ inline uint32_t relu2_operand(OperandKind kind, float inverse, float a, float b) {
  a = fmaxf(a, 0.0F);
  b = fmaxf(b, 0.0F);
  a *= a;
  b *= b;
  if (kind == OperandKind::kBf16) return ptx::floats_to_bf16x2(a, b);
  if (kind == OperandKind::kF16) return to_f16x2(a * inverse, b * inverse);
  return to_e4m3_as_f16x2(a * inverse, b * inverse);
}

// What a group that multiplies does with its sums of 64 weight rows from `row` on.
template <int kTokens>
struct GemmFinish {
  const Gemm& p;
  const GemmPart& part;
  const GemmPlace& place;
  uint8_t* output;  // shared memory of the group
  int group;
  int row;
  int feature;  // of this lane, and 8 more
  int g, t;

  __device__ GemmFinish(const Gemm& gemm, const GemmPlace& at, uint8_t* memory, int of_group,
                        int first_row)
      : p(gemm), part(gemm.parts[at.part]), place(at), output(memory), group(of_group) {
    row = first_row;
    g = static_cast<int>(threadIdx.x % 32) / 4;
    t = static_cast<int>(threadIdx.x % 4);
    feature = row + static_cast<int>(threadIdx.x % kGroupThreads) / 32 * 16 + g;
  }
  __device__ bool exists(int half) const { return feature + 8 * half < part.matrix.rows; }
  __device__ float factor(int half) const {
    const float f = p.experts > 0 ? __ldg(p.expert_factors + place.expert) : part.factor;
    const float* scale = part.matrix.row_scale;
    if (scale == nullptr || !exists(half)) return f;
    return f *
           __ldg(scale + static_cast<int64_t>(place.expert) * p.row_stride + feature + 8 * half);
  }
  __device__ float bias(int half) const {
    const float* bias = part.matrix.bias;
    if (bias == nullptr || !exists(half)) return 0.0F;
    return __ldg(bias + static_cast<int64_t>(place.expert) * p.row_stride + feature + 8 * half);
  }
  __device__ float row_scale(int token) const {
    return part.row_scales == nullptr || token >= place.tokens
               ? 1.0F
               : __ldg(part.row_scales + place.token + token);
  }

  __device__ void store(const float (&sums)[kTokens / 2]) const {
    if (part.output == GemmOutput::kRelu2) return relu2(sums);
    const float factors[2] = {factor(0), factor(1)};
    const float biases[2] = {bias(0), bias(1)};
#pragma unroll
    for (int j = 0; j < kTokens / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int token = 8 * j + 2 * t + e;
        if (token >= place.tokens) continue;
        const float scale = row_scale(token);
        float* to = part.data + static_cast<int64_t>(place.token + token) * part.stride + feature;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          if (!exists(half)) continue;
          const float y = sums[4 * j + 2 * half + e] * (factors[half] * scale) + biases[half];
          if (part.output == GemmOutput::kStore) {
            to[8 * half] = y;
          } else {
            atomicAdd(to + 8 * half, y);  // one addition to each element, as OutputKind::kAdd
          }
        }
      }
    }
  }

  // 64 features are one unit of the next operand: first into shared memory, then whole rows out.
  __device__ void relu2(const float (&sums)[kTokens / 2]) const {
    const float factors[2] = {factor(0), factor(1)};
    const float biases[2] = {bias(0), bias(1)};
    const float inverse =
        p.expert_inverses != nullptr ? __ldg(p.expert_inverses + place.expert) : part.inverse;
    const int column = feature - row;
    sync();
#pragma unroll
    for (int j = 0; j < kTokens / 8; ++j) {
      const int token = 8 * j + 2 * t;
      const float scales[2] = {row_scale(token), row_scale(token + 1)};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float y[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          y[e] = sums[4 * j + 2 * half + e] * (factors[half] * scales[e]) + biases[half];
          if (!exists(half)) y[e] = 0.0F;
        }
        const uint32_t bits = relu2_operand(part.kind, inverse, y[0], y[1]);
        const int at = (column + 8 * half) & ~1;
        const int odd = (column & 1) * 2;
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          *reinterpret_cast<uint16_t*>(output + (token + e) * Panels::kRowBytes +
                                       Panels::offset(token + e, at) + odd) =
              static_cast<uint16_t>(bits >> (16 * e));
        }
      }
    }
    sync();
    uint8_t* to = part.panels.row(row / kUnitColumns, place.token);
    const int pieces = place.tokens * Panels::kRowBytes / 16;
    for (int i = static_cast<int>(threadIdx.x % kGroupThreads); i < pieces; i += kGroupThreads) {
      reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(output)[i];
    }
  }
  __device__ void sync() const {
    ptx::sync_threads(1 + group, kGroupThreads);
  }
};

// A group that multiplies.
template <UnitFormat kFormat, int kGroups, int kRowBlocks, int kTokens>
__device__ inline void gemm_multiply(
    const Gemm& p, const GemmMemory<GemmLayout<kFormat, kGroups, kRowBlocks, kTokens>>& memory,
    int group) {
  using Layout = GemmLayout<kFormat, kGroups, kRowBlocks, kTokens>;
  using Products = ptx::Products<kFormat == UnitFormat::kBf16, kTokens>;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x % kGroupThreads) / 32;
  StageCounter at;
  StageCounter done;  // stages before this one have been given back
  const auto give_back = [&] {
    __syncwarp();
    if (lane == 0) ptx::barrier_arrive(memory.empty(done.stage));
    done.next(Layout::kStages);
  };
  GemmPlace place;
  for (int index = static_cast<int>(blockIdx.x);
       gemm_place<Layout, kTokens>(p, memory.table(), index, place);
       index += static_cast<int>(gridDim.x)) {
    const PackedMatrix& m = p.parts[place.part].matrix;
    const bool idle = (place.tile + group * 8) * kTileRows >= m.rows;
    float sums[kRowBlocks][kTokens / 2];
#pragma unroll
    for (int block = 0; block < kRowBlocks; ++block) {
#pragma unroll
      for (int i = 0; i < kTokens / 2; ++i) sums[block][i] = 0.0F;
    }
    uint32_t a[2][4][4];
#pragma unroll 1
    for (int unit = 0; unit < m.units; unit += Layout::kUnits) {
      ptx::barrier_wait(memory.full(at.stage), at.round);
      const uint32_t stage = memory.stage(at.stage);
#pragma unroll
      for (int i = 0; i < Layout::kUnits * kRowBlocks; ++i) {
        const int u = i / kRowBlocks;
        const int block = i % kRowBlocks;
        if (unit + u < m.units && !idle) {
          const uint32_t tile = stage + Layout::kWeights +
                                ((block * kGroups + group) * 8 + warp * 2) * Layout::kTileBytes +
                                u * m.unit_bytes;
          ptx::products_wait<1>();
          gemm_decode<kFormat>(tile, Layout::kTileBytes, lane, m.unit_scales, a[i % 2]);
          ptx::products_fence();
          const uint32_t tokens = stage + u * Layout::kTokenBytes;
#pragma unroll
          for (int step = 0; step < 4; ++step) {
            Products::add(sums[block], a[i % 2][step], ptx::operand_descriptor(tokens + 32 * step));
          }
          ptx::products_commit();
        }
        // The products of the stage before are over: at most those of i - 1 and i are not.
        if (i == 1 && unit > 0) {
          if (!idle) ptx::products_wait<1>();
          give_back();
        }
      }
      at.next(Layout::kStages);
    }
    ptx::products_wait<0>();
    give_back();
    if (!idle) {
#pragma unroll
      for (int block = 0; block < kRowBlocks; ++block) {
        const int row = place.tile * kTileRows + (block * kGroups + group) * kGroupRows;
        if (row >= m.rows) break;
        GemmFinish<kTokens>(p, place, memory.output(group), group, row).store(sums[block]);
      }
    }
  }
}

template <UnitFormat kFormat, int kGroups, int kRowBlocks, int kTokens>
__global__ void __launch_bounds__(GemmLayout<kFormat, kGroups, kRowBlocks, kTokens>::kThreads,
                                  GemmLayout<kFormat, kGroups, kRowBlocks, kTokens>::kBlocks)
    prefill_gemm(const __grid_constant__ Gemm p) {
#ifndef __CUDA_ARCH_FEAT_SM90_ALL
  __trap();  // PTX for later GPUs, which have no such products: prefill.h does not come here
#else
  using Layout = GemmLayout<kFormat, kGroups, kRowBlocks, kTokens>;
  extern __shared__ __align__(1024) uint8_t gemm_memory[];
  const GemmMemory<Layout> memory = {gemm_memory};
  for (int i = static_cast<int>(threadIdx.x); i <= p.experts && p.experts > 0;
       i += Layout::kThreads) {
    memory.table()[i] = __ldg(p.expert_rows.tiles_before + i);
  }
  if (threadIdx.x == 0) {
    for (int i = 0; i < Layout::kStages; ++i) {
      ptx::barrier_init(memory.full(i), 1);
      ptx::barrier_init(memory.empty(i), kGroups * kGroupThreads / 32);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  const int group = static_cast<int>(threadIdx.x) / kGroupThreads;
  if (group == kGroups) {
    ptx::give_registers<Layout::kFetchRegisters>();
    gemm_fetch<Layout, kTokens>(p, memory);
    return;
  }
  ptx::take_registers<Layout::kRegisters>();
  gemm_multiply<kFormat, kGroups, kRowBlocks, kTokens>(p, memory, group);
#endif
}

template <UnitFormat kFormat, int kGroups, int kRowBlocks, int kTokens>
GemmInstance gemm_instance() {
  using Layout = GemmLayout<kFormat, kGroups, kRowBlocks, kTokens>;
  return {prefill_gemm<kFormat, kGroups, kRowBlocks, kTokens>, Layout::kThreads, Layout::kShared,
          Layout::kBlocks};
}

template <UnitFormat kFormat>
GemmInstance gemm_instance_of(GemmShape shape) {
  if (shape.rows == 128) {
    return shape.tokens <= 16   ? gemm_instance<kFormat, 2, 1, 16>()
           : shape.tokens <= 32 ? gemm_instance<kFormat, 2, 1, 32>()
                                : gemm_instance<kFormat, 2, 1, 64>();
  }
  // With four bits tiles of 64 tokens take as long as decoding does (prefill_gemm.cu): more warps,
  // each with less to keep in registers, hide one behind the other.
  if constexpr (kFormat == UnitFormat::kNvfp4 || kFormat == UnitFormat::kInt4) {
    return shape.tokens <= 64   ? gemm_instance<kFormat, 4, 1, 64>()
           : shape.tokens <= 96 ? gemm_instance<kFormat, 4, 1, 96>()
                                : gemm_instance<kFormat, 2, 2, 128>();
  } else {
    return shape.tokens <= 64   ? gemm_instance<kFormat, 2, 2, 64>()
           : shape.tokens <= 96 ? gemm_instance<kFormat, 2, 2, 96>()
                                : gemm_instance<kFormat, 2, 2, 128>();
  }
}

}  // namespace levin::runtime::cuda
