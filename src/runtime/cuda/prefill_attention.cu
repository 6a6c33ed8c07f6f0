// Attention of many tokens (prefill_attention.h).
//
// Lane (g, t) has of each 16 dims of a query or a key the four from 4t on, and of each 16 positions
// of a value row as well; the positions of score tile 2i + j, column 2u + v are 16i + 4u + 2j + v,
// so that a lane's scores are those of the value positions it reads. Keys lie in shared memory in
// the order of the score columns.
#include <cmath>

#include "runtime/cuda/device.h"
#include "runtime/cuda/prefill_attention.h"
#include "runtime/cuda/prefill_mma.cuh"

namespace levin::runtime::cuda {
namespace {

constexpr int kWarpsPerBlock = kAttentionRows / 16;
constexpr int kBlockThreads = 32 * kWarpsPerBlock;
constexpr int kTilePositions = 64;
constexpr int kTransposeRows = 32;

// Grid: rows / 32, columns / 32; 32 x 8 threads. Keys as they come, values transposed.
__global__ void __launch_bounds__(256) store_kv_rows(const __grid_constant__ StoreKv p) {
  __shared__ float values[kTransposeRows][kTransposeRows + 1];
  const int width = p.key_cache.heads * p.key_cache.head_dim;
  const int first_row = static_cast<int>(blockIdx.x) * kTransposeRows;
  const int first_column = static_cast<int>(blockIdx.y) * kTransposeRows;
  const int x = static_cast<int>(threadIdx.x);
  for (int y = static_cast<int>(threadIdx.y); y < kTransposeRows; y += 8) {
    const int row = first_row + y;
    const int column = first_column + x;
    if (row >= p.chunk.rows || column >= width) continue;
    const int64_t at = static_cast<int64_t>(row) * width + column;
    store_kv(p.key_cache, false, p.chunk.slot[row], p.chunk.position[row] + p.position_offset,
             column, p.keys[at]);
    values[y][x] = p.values[at];
  }
  __syncthreads();
  for (int y = static_cast<int>(threadIdx.y); y < kTransposeRows; y += 8) {
    const int row = first_row + x;
    const int column = first_column + y;
    if (row >= p.chunk.rows || column >= width) continue;
    store_kv(p.value_cache, true, p.chunk.slot[row], p.chunk.position[row] + p.position_offset,
             column, values[x][y]);
  }
}

template <int kDim, bool kFp8>
struct AttentionTile {
  static constexpr int kElement = kFp8 ? 1 : 2;
  // Padding that spreads the rows over the banks, as a warp reads them.
  static constexpr int kPad = kFp8 ? 16 : 32;
  static constexpr int kKeyStride = kDim * kElement + kPad;
  static constexpr int kValueStride = kTilePositions * kElement + kPad;
  static constexpr int kKeyBytes = kTilePositions * kKeyStride;
  static constexpr int kBytes = kKeyBytes + kDim * kValueStride;
};

template <bool kFp8>
__device__ inline void attention_mma(float (&c)[4], const uint32_t (&a)[4], uint2 b) {
  if constexpr (kFp8) {
    ptx::mma_f16(c, a, b.x, b.y);
  } else {
    ptx::mma_bf16(c, a, b.x, b.y);
  }
}
template <bool kFp8>
__device__ inline uint32_t attention_pair(float low, float high) {
  return kFp8 ? ptx::floats_to_f16x2(low, high) : ptx::floats_to_bf16x2(low, high);
}
// Four consecutive elements in shared memory as pairs.
template <bool kFp8>
__device__ inline uint2 load_four(uint32_t address) {
  if constexpr (kFp8) {
    uint32_t codes;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(codes) : "r"(address) : "memory");
    return {ptx::e4m3x2_to_f16x2(codes), ptx::e4m3x2_to_f16x2(codes >> 16)};
  } else {
    return ptx::load_shared_8(address);
  }
}

template <int kDim, bool kFp8>
struct AttentionWarp {
  using Tile = AttentionTile<kDim, kFp8>;
  static constexpr int kSteps = kDim / 16;
  static constexpr int kOutTiles = kDim / 8;
  static constexpr int kScoreTiles = kTilePositions / 8;

  const PrefillAttention& p;
  const Segment& segment;
  int key_head, g, t;
  int row[2];   // pair of token and head, of lane rows g and g + 8
  int last[2];  // position it sees up to
  bool real[2];
  uint32_t query[kSteps][4];
  float out[kOutTiles][4] = {};
  float largest[2] = {-INFINITY, -INFINITY};
  float weight[2] = {0.0F, 0.0F};

  __device__ AttentionWarp(const PrefillAttention& params, const Segment& s, int head,
                           int first_row, int block_last)
      : p(params), segment(s), key_head(head) {
    g = static_cast<int>(threadIdx.x % 32) / 4;
    t = static_cast<int>(threadIdx.x % 4);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      row[half] = first_row + static_cast<int>(threadIdx.x / 32) * 16 + g + 8 * half;
      real[half] = row[half] < segment.rows * p.heads_per_key();
      last[half] = real[half] ? segment.position + row[half] / p.heads_per_key() : block_last;
      load_query(half);
    }
  }
  // First element of the pair in queries and results.
  __device__ int64_t element(int half) const {
    const int per_key = p.heads_per_key();
    const int64_t token = segment.first_row + row[half] / per_key;
    return (token * p.heads + key_head * per_key + row[half] % per_key) * p.keys.head_dim;
  }
  __device__ void load_query(int half) {
    const float* from = real[half] ? p.queries + element(half) : p.queries;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int at = 16 * step + 4 * t;
      const float4 v = real[half] && at < p.keys.head_dim
                           ? __ldcg(reinterpret_cast<const float4*>(from + at))
                           : make_float4(0, 0, 0, 0);
      query[step][half] = attention_pair<kFp8>(v.x, v.y);
      query[step][2 + half] = attention_pair<kFp8>(v.z, v.w);
    }
  }

  __device__ void add(uint32_t tile, int begin) {
    float scores[kScoreTiles][4] = {};
    const uint32_t keys = tile + g * Tile::kKeyStride + 4 * t * Tile::kElement;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int i = 0; i < kScoreTiles; ++i) {
        const uint32_t at = keys + 8 * i * Tile::kKeyStride + 16 * step * Tile::kElement;
        attention_mma<kFp8>(scores[i], query[step], load_four<kFp8>(at));
      }
    }
    soften(scores, begin);
    const uint32_t values =
        tile + Tile::kKeyBytes + g * Tile::kValueStride + 4 * t * Tile::kElement;
#pragma unroll
    for (int step = 0; step < kTilePositions / 16; ++step) {
      const float(&x)[4] = scores[2 * step];
      const float(&y)[4] = scores[2 * step + 1];
      const uint32_t a[4] = {attention_pair<kFp8>(x[0], x[1]), attention_pair<kFp8>(x[2], x[3]),
                             attention_pair<kFp8>(y[0], y[1]), attention_pair<kFp8>(y[2], y[3])};
#pragma unroll
      for (int i = 0; i < kOutTiles; ++i) {
        const uint32_t at = values + 8 * i * Tile::kValueStride + 16 * step * Tile::kElement;
        attention_mma<kFp8>(out[i], a, load_four<kFp8>(at));
      }
    }
  }

  // Scores to weights 2^(score - largest), rescaling what was summed under the old largest.
  __device__ void soften(float (&scores)[kScoreTiles][4], int begin) {
    float most[2] = {largest[0], largest[1]};
#pragma unroll
    for (int i = 0; i < kScoreTiles; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int position = begin + i / 2 * 16 + 4 * t + i % 2 * 2 + j % 2;
        const bool in = position <= last[j / 2];
        scores[i][j] = in ? scores[i][j] * p.scale : -INFINITY;
        most[j / 2] = fmaxf(most[j / 2], scores[i][j]);
      }
    }
    float old[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      most[half] = fmaxf(most[half], __shfl_xor_sync(0xffffffffu, most[half], 1));
      most[half] = fmaxf(most[half], __shfl_xor_sync(0xffffffffu, most[half], 2));
      // Position 0 is seen by all, so nothing is -infinity after the first tile.
      old[half] = ptx::exp2_approx(largest[half] - most[half]);
      largest[half] = most[half];
      weight[half] *= old[half];
    }
#pragma unroll
    for (int i = 0; i < kScoreTiles; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        scores[i][j] = ptx::exp2_approx(scores[i][j] - most[j / 2]);
        weight[j / 2] += scores[i][j];
      }
    }
#pragma unroll
    for (int i = 0; i < kOutTiles; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) out[i][j] *= old[j / 2];
    }
  }

  __device__ void store() {
    const float value_scale = p.values.fp8 ? p.values.scale : 1.0F;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      weight[half] += __shfl_xor_sync(0xffffffffu, weight[half], 1);
      weight[half] += __shfl_xor_sync(0xffffffffu, weight[half], 2);
      if (!real[half]) continue;
      const float factor = value_scale / weight[half];
      float* to = p.out + element(half);
#pragma unroll
      for (int i = 0; i < kOutTiles; ++i) {
        const int dim = 8 * i + 2 * t;
        if (dim >= p.keys.head_dim) continue;
        *reinterpret_cast<float2*>(to + dim) =
            make_float2(out[i][2 * half] * factor, out[i][2 * half + 1] * factor);
      }
    }
  }
};

// Keys and values of 64 positions from `begin` on; those after `last` exist in the cache but hold
// whatever was there.
template <int kDim, bool kFp8>
__device__ inline void fetch_tile(const PrefillAttention& p, const Segment& segment, int key_head,
                                  int begin, uint32_t to) {
  using Tile = AttentionTile<kDim, kFp8>;
  constexpr int kElement = Tile::kElement;
  const int64_t head_at =
      segment.slot * p.keys.slot_stride + static_cast<int64_t>(key_head) * p.keys.capacity * kDim;
  const auto* keys = static_cast<const uint8_t*>(p.keys.data) +
                     (head_at + static_cast<int64_t>(begin) * kDim) * kElement;
  constexpr int kKeyPieces = kDim * kElement / 16;
  for (int i = static_cast<int>(threadIdx.x); i < kTilePositions * kKeyPieces; i += kBlockThreads) {
    const int position = i / kKeyPieces;
    const int row =
        position / 16 * 16 + position % 4 / 2 * 8 + position % 16 / 4 * 2 + position % 2;
    ptx::copy_16_or_zero(to + row * Tile::kKeyStride + i % kKeyPieces * 16, keys + i * 16, true);
  }
  const auto* values = static_cast<const uint8_t*>(p.values.data) +
                       (head_at + static_cast<int64_t>(begin) * kDim) * kElement;
  static_assert(kTilePositions == kCacheTile);
  constexpr int kValuePieces = kTilePositions * kElement / 16;
  for (int i = static_cast<int>(threadIdx.x); i < kDim * kValuePieces; i += kBlockThreads) {
    const int dim = i / kValuePieces;
    const int piece = i % kValuePieces * 16;
    ptx::copy_16_or_zero(to + Tile::kKeyBytes + dim * Tile::kValueStride + piece, values + i * 16,
                         true);
  }
}

// Zeroes the values of positions that nobody may look at: times a weight of zero they would still
// count if they were no numbers.
template <int kDim, bool kFp8>
__device__ inline void clear_values(uint8_t* tile, int first) {
  using Tile = AttentionTile<kDim, kFp8>;
  for (int i = static_cast<int>(threadIdx.x); i < kDim * kTilePositions; i += kBlockThreads) {
    const int position = i % kTilePositions;
    if (position < first) continue;
    uint8_t* at = tile + Tile::kKeyBytes + i / kTilePositions * Tile::kValueStride +
                  position * Tile::kElement;
    if constexpr (kFp8) {
      *at = 0;
    } else {
      *reinterpret_cast<uint16_t*>(at) = 0;
    }
  }
}

// Grid: blocks of all segments, key heads.
template <int kDim, bool kFp8>
__global__ void __launch_bounds__(kBlockThreads, 1)
    prefill_attend(const __grid_constant__ PrefillAttention p) {
  if constexpr (!ptx::kChunks) return __trap();
  using Tile = AttentionTile<kDim, kFp8>;
  extern __shared__ __align__(16) uint8_t attend_memory[];
  int block = static_cast<int>(blockIdx.x);
  int which = 0;
  while (true) {
    const int of_segment = attention_blocks(p.segments[which].rows, p.heads_per_key());
    if (block < of_segment) {
      block = of_segment - 1 - block;  // those with the most to do first
      break;
    }
    block -= of_segment;
    ++which;
  }
  const Segment& segment = p.segments[which];
  const int key_head = static_cast<int>(blockIdx.y);
  const int first_row = block * kAttentionRows;
  const int last_row = min(first_row + kAttentionRows, segment.rows * p.heads_per_key()) - 1;
  const int last = segment.position + last_row / p.heads_per_key();
  const uint32_t memory = ptx::shared_address(attend_memory);

  fetch_tile<kDim, kFp8>(p, segment, key_head, 0, memory);
  ptx::commit_copies();
  AttentionWarp<kDim, kFp8> warp(p, segment, key_head, first_row, last);
  int buffer = 0;
#pragma unroll 1
  for (int begin = 0; begin <= last; begin += kTilePositions) {
    ptx::wait_for_copies<0>();
    __syncthreads();
    if (begin + kTilePositions <= last) {
      fetch_tile<kDim, kFp8>(p, segment, key_head, begin + kTilePositions,
                             memory + (buffer ^ 1) * Tile::kBytes);
      ptx::commit_copies();
    }
    if (begin + kTilePositions - 1 > last) {
      clear_values<kDim, kFp8>(attend_memory + buffer * Tile::kBytes, last + 1 - begin);
      __syncthreads();
    }
    warp.add(memory + buffer * Tile::kBytes, begin);
    buffer ^= 1;
  }
  warp.store();
}

template <int kDim, bool kFp8>
void launch_attend(cudaStream_t stream, const PrefillAttention& attention, int blocks) {
  constexpr int kShared = 2 * AttentionTile<kDim, kFp8>::kBytes;
  check(cudaFuncSetAttribute(prefill_attend<kDim, kFp8>,
                             cudaFuncAttributeMaxDynamicSharedMemorySize, kShared));
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(attention.keys.heads));
  prefill_attend<kDim, kFp8><<<grid, kBlockThreads, kShared, stream>>>(attention);
  check(cudaGetLastError());
}

}  // namespace

void launch_store_kv(cudaStream_t stream, const StoreKv& store) {
  const int width = store.key_cache.heads * store.key_cache.head_dim;
  const dim3 grid(static_cast<unsigned>((store.chunk.rows + kTransposeRows - 1) / kTransposeRows),
                  static_cast<unsigned>((width + kTransposeRows - 1) / kTransposeRows));
  store_kv_rows<<<grid, dim3(kTransposeRows, 8), 0, stream>>>(store);
  check(cudaGetLastError());
}

void launch_prefill_attention(cudaStream_t stream, const PrefillAttention& attention, int blocks) {
  if (attention.keys.padded_dim == 64) {
    if (attention.keys.fp8) return launch_attend<64, true>(stream, attention, blocks);
    return launch_attend<64, false>(stream, attention, blocks);
  }
  if (attention.keys.fp8) return launch_attend<128, true>(stream, attention, blocks);
  launch_attend<128, false>(stream, attention, blocks);
}

}  // namespace levin::runtime::cuda
