// Attention of the tokens of a pass (attention.h), without positional encoding: NemotronH has none.
//
// Each warp takes every 16 positions in four of a chunk, and the block adds up its warps' results
// at the end. Everything is in the order the tensor cores want without a shuffle. Lane (g, t) of a
// warp reads dims t * kDim / 4 .. of a key and positions 4t .. 4t + 3 of a value row; the positions
// of score tile j, column 2u + v are 4u + 2j + v, so that a lane's scores are those of the value
// positions it reads.
#include "runtime/cuda/attention.h"

namespace levin::runtime::cuda {
namespace {

constexpr float kMinusInfinity = -INFINITY;

template <bool kFp8>
__device__ inline void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (kFp8) {
    ptx::mma_f16(c, a, b0, b1);
  } else {
    ptx::mma_bf16(c, a, b0, b1);
  }
}

template <bool kFp8>
__device__ inline uint32_t pack(float low, float high) {
  return kFp8 ? ptx::floats_to_f16x2(low, high) : ptx::floats_to_bf16x2(low, high);
}

// kCount consecutive cache elements as 16-bit pairs.
template <bool kFp8, int kCount>
__device__ inline void load_elements(const void* cache, int64_t at, uint32_t (&pairs)[kCount / 2]) {
  if constexpr (kFp8) {
    const auto* from = reinterpret_cast<const uint2*>(static_cast<const uint8_t*>(cache) + at);
#pragma unroll
    for (int i = 0; i < kCount / 8; ++i) {
      const uint2 codes = __ldcg(from + i);
      pairs[4 * i] = ptx::e4m3x2_to_f16x2(codes.x);
      pairs[4 * i + 1] = ptx::e4m3x2_to_f16x2(codes.x >> 16);
      pairs[4 * i + 2] = ptx::e4m3x2_to_f16x2(codes.y);
      pairs[4 * i + 3] = ptx::e4m3x2_to_f16x2(codes.y >> 16);
    }
  } else {
    const auto* from = reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(cache) + at);
#pragma unroll
    for (int i = 0; i < kCount / 8; ++i) {
      const uint4 v = __ldcg(from + i);
      pairs[4 * i] = v.x, pairs[4 * i + 1] = v.y, pairs[4 * i + 2] = v.z, pairs[4 * i + 3] = v.w;
    }
  }
}

// One block's work.
struct Piece {
  int token;
  int key_head;
  int head_block;
  int chunk;
};

// Items of a pass in an order that lets neighbours share keys: segment, chunk, key head, head
// block, token. Returns false when `index` is beyond the last.
__device__ inline bool locate(const Attention& p, int index, Piece& piece) {
  const Pass& pass = *p.pass;
  for (int s = 0; s < pass.segments; ++s) {
    const Segment& segment = pass.segment[s];
    const int last = segment.position + segment.rows - 1 + p.position_offset;
    const int chunks = last < 0 ? 0 : last / p.chunk + 1;
    const int per_chunk = p.keys.heads * p.head_blocks() * segment.rows;
    if (index >= chunks * per_chunk) {
      index -= chunks * per_chunk;
      continue;
    }
    piece.chunk = index / per_chunk;
    index %= per_chunk;
    piece.token = segment.first_row + index % segment.rows;
    index /= segment.rows;
    piece.head_block = index % p.head_blocks();
    piece.key_head = index / p.head_blocks();
    return true;
  }
  return false;
}

// What the warps of a block hand over: sums [warp][head][kDim], and for each head the largest score
// and the sum of weights.
template <int kDim>
struct Exchange {
  float sums[kAttentionWarps][kHeadsPerBlock][kDim];
  float largest[kAttentionWarps][kHeadsPerBlock];
  float weight[kAttentionWarps][kHeadsPerBlock];
};

template <int kDim, bool kFp8>
struct Warp {
  static constexpr int kSteps = kDim / 16;  // products along a head's dims
  static constexpr int kTiles = kWarpPositions / 8;
  static constexpr int kOutTiles = kDim / 8;

  const Attention& p;
  Piece piece;
  int lane, g, t;
  int64_t keys_at, values_at;
  uint32_t query[kSteps][4];
  float out[kOutTiles][4] = {};
  float largest[2] = {kMinusInfinity, kMinusInfinity};  // of heads g and g + 8
  float weight[2] = {0.0F, 0.0F};

  __device__ Warp(const Attention& params, const Piece& i) : p(params), piece(i) {
    lane = threadIdx.x % 32;
    g = lane / 4;
    t = lane % 4;
    const int slot = p.pass->slot[piece.token];
    const int64_t head_at = static_cast<int64_t>(piece.key_head) * p.keys.capacity * kDim;
    keys_at = slot * p.keys.slot_stride + head_at;
    values_at = slot * p.values.slot_stride + head_at;
  }

  // Query head of row `row` of the block's 16, or -1.
  __device__ int head(int row) const {
    const int in_key = piece.head_block * kHeadsPerBlock + row;
    return in_key < p.heads_per_key() ? piece.key_head * p.heads_per_key() + in_key : -1;
  }

  __device__ void load_query() {
    const int dim = p.keys.head_dim;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int h = head(g + 8 * half);
      const float* from =
          p.queries + (static_cast<int64_t>(piece.token) * p.heads + max(h, 0)) * dim;
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const int at = t * (kDim / 4) + 4 * step;
        // head_dim is a multiple of 4 (state.cu).
        const float4 v = h >= 0 && at < dim ? __ldcg(reinterpret_cast<const float4*>(from + at))
                                            : make_float4(0, 0, 0, 0);
        query[step][half] = pack<kFp8>(v.x, v.y);
        query[step][2 + half] = pack<kFp8>(v.z, v.w);
      }
    }
  }

  // Keys and values of 16 positions.
  struct Loaded {
    uint32_t key[kTiles][kDim / 8];
    uint32_t value[kOutTiles][2];
  };
  __device__ void load(int begin, int last, Loaded& to) const {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const int position = min(begin + 4 * (g / 2) + 2 * tile + g % 2, last);
      load_elements<kFp8, kDim / 4>(
          p.keys.data, keys_at + static_cast<int64_t>(position) * kDim + t * (kDim / 4),
          to.key[tile]);
    }
#pragma unroll
    for (int tile = 0; tile < kOutTiles; ++tile) {
      load_four(p.values.data,
                values_at + static_cast<int64_t>(8 * tile + g) * p.values.capacity + begin + 4 * t,
                to.value[tile]);
    }
  }
  __device__ static void load_four(const void* cache, int64_t at, uint32_t (&pairs)[2]) {
    if constexpr (kFp8) {
      const uint32_t codes =
          __ldcg(reinterpret_cast<const uint32_t*>(static_cast<const uint8_t*>(cache) + at));
      pairs[0] = ptx::e4m3x2_to_f16x2(codes);
      pairs[1] = ptx::e4m3x2_to_f16x2(codes >> 16);
    } else {
      const uint2 v =
          __ldcg(reinterpret_cast<const uint2*>(static_cast<const uint16_t*>(cache) + at));
      pairs[0] = v.x;
      pairs[1] = v.y;
    }
  }

  // Adds 16 positions from `begin` on; those after `last` do not count, whatever they hold.
  __device__ void add(int begin, int last, Loaded& from) {
    float scores[kTiles][4] = {};
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        mma<kFp8>(scores[tile], query[step], from.key[tile][2 * step],
                  from.key[tile][2 * step + 1]);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const bool in = begin + 4 * t + 2 * tile + i % 2 <= last;
        scores[tile][i] = in ? scores[tile][i] * p.scale : kMinusInfinity;
      }
    }
    soften(scores);
    const uint32_t a[4] = {
        pack<kFp8>(scores[0][0], scores[0][1]), pack<kFp8>(scores[0][2], scores[0][3]),
        pack<kFp8>(scores[1][0], scores[1][1]), pack<kFp8>(scores[1][2], scores[1][3])};
    if (begin + kWarpPositions - 1 > last) {
#pragma unroll
      for (int tile = 0; tile < kOutTiles; ++tile) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int position = begin + 4 * t + 2 * i;
          from.value[tile][i] &= position + 1 <= last ? ~0u : position <= last ? 0xffffu : 0u;
        }
      }
    }
#pragma unroll
    for (int tile = 0; tile < kOutTiles; ++tile) {
      mma<kFp8>(out[tile], a, from.value[tile][0], from.value[tile][1]);
    }
  }

  // Scores to weights 2^(score - largest), rescaling what was summed under the old largest.
  __device__ void soften(float (&scores)[kTiles][4]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float most = largest[half];
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        most = fmaxf(most, fmaxf(scores[tile][2 * half], scores[tile][2 * half + 1]));
      }
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
      const float old =
          largest[half] == kMinusInfinity ? 0.0F : ptx::exp2_approx(largest[half] - most);
      largest[half] = most;
      float sum = 0.0F;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          scores[tile][i] = ptx::exp2_approx(scores[tile][i] - most);
          sum += scores[tile][i];
        }
      }
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      weight[half] = weight[half] * old + sum;
#pragma unroll
      for (int tile = 0; tile < kOutTiles; ++tile) {
        out[tile][2 * half] *= old;
        out[tile][2 * half + 1] *= old;
      }
    }
  }

  __device__ void hand_over(Exchange<kDim>& exchange) const {
    const int warp = threadIdx.x / 32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = g + 8 * half;
#pragma unroll
      for (int tile = 0; tile < kOutTiles; ++tile) {
        *reinterpret_cast<float2*>(&exchange.sums[warp][row][8 * tile + 2 * t]) =
            make_float2(out[tile][2 * half], out[tile][2 * half + 1]);
      }
      if (t == 0) {
        exchange.largest[warp][row] = largest[half];
        exchange.weight[warp][row] = weight[half];
      }
    }
  }

  // The block's result from its warps', in their order; by all threads.
  __device__ void store(Exchange<kDim>& exchange) const {
    const int rows = min(kHeadsPerBlock, p.heads_per_key() - piece.head_block * kHeadsPerBlock);
    const int row_of_thread = static_cast<int>(threadIdx.x);
    if (row_of_thread < rows) {
      const int row = row_of_thread;
      float most = kMinusInfinity;
#pragma unroll
      for (int w = 0; w < kAttentionWarps; ++w) most = fmaxf(most, exchange.largest[w][row]);
      float total = 0.0F;
#pragma unroll
      for (int w = 0; w < kAttentionWarps; ++w) {
        // A warp without positions has the largest -infinity and counts nothing. From here on its
        // place holds what its sums are multiplied by.
        const float factor = ptx::exp2_approx(exchange.largest[w][row] - most);
        exchange.largest[w][row] = factor;
        total += exchange.weight[w][row] * factor;
      }
      const int64_t at = p.at(piece.token, head(row), piece.chunk);
      *reinterpret_cast<float2*>(p.weights + at * 2) = make_float2(most, total);
    }
    __syncthreads();
    constexpr int kVectors = kDim / 4;
#pragma unroll 2
    for (int i = threadIdx.x; i < rows * kVectors; i += 32 * kAttentionWarps) {
      const int row = i / kVectors;
      const int dim = i % kVectors * 4;
      float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
      for (int w = 0; w < kAttentionWarps; ++w) {
        const float factor = exchange.largest[w][row];
        const float4 v = *reinterpret_cast<const float4*>(&exchange.sums[w][row][dim]);
        sum.x += v.x * factor;
        sum.y += v.y * factor;
        sum.z += v.z * factor;
        sum.w += v.w * factor;
      }
      const int64_t at = p.at(piece.token, head(row), piece.chunk);
      *reinterpret_cast<float4*>(p.sums + at * kDim + dim) = sum;
    }
  }
};

// Brings keys and values of a chunk into the L2 cache: all but the newest do not depend on the
// kernel before.
template <int kDim, bool kFp8>
__device__ inline void prefetch(const Attention& p, const Piece& piece) {
  constexpr int kElement = kFp8 ? 1 : 2;
  constexpr int kLine = 128;
  const int begin = piece.chunk * p.chunk;
  const int end = min(begin + p.chunk, p.pass->position[piece.token] + p.position_offset + 1);
  if (begin >= end) return;
  const int64_t head_at = p.pass->slot[piece.token] * p.keys.slot_stride +
                          static_cast<int64_t>(piece.key_head) * p.keys.capacity * kDim;
  const auto* keys = static_cast<const uint8_t*>(p.keys.data) +
                     (head_at + static_cast<int64_t>(begin) * kDim) * kElement;
  const int key_bytes = (end - begin) * kDim * kElement;
  for (int at = threadIdx.x * kLine; at < key_bytes; at += 32 * kAttentionWarps * kLine) {
    ptx::prefetch_l2(keys + at);
  }
  const auto* values = static_cast<const uint8_t*>(p.values.data) + (head_at + begin) * kElement;
  const int value_bytes = (end - begin) * kElement;
  for (int dim = threadIdx.x; dim < kDim; dim += 32 * kAttentionWarps) {
    for (int at = 0; at < value_bytes; at += kLine) {
      ptx::prefetch_l2(values + static_cast<int64_t>(dim) * p.values.capacity * kElement + at);
    }
  }
}

}  // namespace

template <int kDim, bool kFp8>
__global__ void __launch_bounds__(32 * kAttentionWarps)
    attend(const __grid_constant__ Attention p) {
  p.trace.stamp(Trace::kStart);
  extern __shared__ __align__(16) uint8_t attention_memory[];
  auto& exchange = *reinterpret_cast<Exchange<kDim>*>(attention_memory);
  ptx::launch_dependents();
  Piece piece;
  int index = static_cast<int>(blockIdx.x);
  bool found = locate(p, index, piece);
  if (found) prefetch<kDim, kFp8>(p, piece);
  ptx::wait_for_previous();
  p.trace.stamp(Trace::kReady);
  for (; found; found = locate(p, index += static_cast<int>(gridDim.x), piece)) {
    const int last = p.pass->position[piece.token] + p.position_offset;
    const int begin = piece.chunk * p.chunk;
    if (begin > last) continue;  // an earlier token of a segment that ends in this chunk
    Warp<kDim, kFp8> warp(p, piece);
    const int end = min(begin + p.chunk, last + 1);
    int at = begin + static_cast<int>(threadIdx.x / 32) * kWarpPositions;
    typename Warp<kDim, kFp8>::Loaded loaded;
    if (at < end) warp.load(at, last, loaded);
    warp.load_query();
    while (at < end) {
      warp.add(at, last, loaded);
      at += kBlockPositions;
      if (at < end) warp.load(at, last, loaded);
    }
    warp.hand_over(exchange);
    __syncthreads();
    warp.store(exchange);
    __syncthreads();
  }
  p.trace.stamp(Trace::kEnd);
}

// The chunks of one head of one token, in their order.
template <int kDim>
__global__ void __launch_bounds__(kDim) merge_chunks(const __grid_constant__ Attention p) {
  p.trace.stamp(Trace::kStart);
  __shared__ float factors[kMaxChunks];
  __shared__ float totals[kMaxChunks];
  ptx::launch_dependents();
  const int head = static_cast<int>(blockIdx.x);
  const int token = static_cast<int>(blockIdx.y);
  const int rows = p.pass->rows;
  const int last = token < rows ? p.pass->position[token] + p.position_offset : -1;
  ptx::wait_for_previous();
  p.trace.stamp(Trace::kReady);
  if (token >= rows) return;
  const int dim = static_cast<int>(threadIdx.x);
  const int chunks = last < 0 ? 0 : last / p.chunk + 1;
  const int64_t first = p.at(token, head, 0);
  for (int chunk = dim; chunk < chunks; chunk += kDim) {
    const float2 of_chunk = __ldcg(reinterpret_cast<const float2*>(p.weights) + first + chunk);
    factors[chunk] = of_chunk.x;
    totals[chunk] = of_chunk.y;
  }
  __syncthreads();
  float most = kMinusInfinity;
  for (int chunk = 0; chunk < chunks; ++chunk) most = fmaxf(most, factors[chunk]);
  __syncthreads();
  for (int chunk = dim; chunk < chunks; chunk += kDim)
    factors[chunk] = ptx::exp2_approx(factors[chunk] - most);
  __syncthreads();
  float weight = 0.0F;
  float sum = 0.0F;
#pragma unroll 16
  for (int chunk = 0; chunk < chunks; ++chunk) {
    weight += totals[chunk] * factors[chunk];
    sum += __ldcg(p.sums + (first + chunk) * kDim + dim) * factors[chunk];
  }
  if (dim < p.keys.head_dim) {
    const float value_scale = p.values.fp8 ? p.values.scale : 1.0F;
    p.out[(static_cast<int64_t>(token) * p.heads + head) * p.keys.head_dim + dim] =
        chunks == 0 ? 0.0F : sum / weight * value_scale;
  }
  p.trace.stamp(Trace::kEnd);
}

Kernel<Attention> attend_kernel(const KvView& keys) {
  if (keys.padded_dim == 64) return keys.fp8 ? attend<64, true> : attend<64, false>;
  return keys.fp8 ? attend<128, true> : attend<128, false>;
}
int attend_shared(const KvView& keys) {
  return static_cast<int>(keys.padded_dim == 64 ? sizeof(Exchange<64>) : sizeof(Exchange<128>));
}
Kernel<Attention> merge_chunks_kernel(const KvView& keys) {
  return keys.padded_dim == 64 ? merge_chunks<64> : merge_chunks<128>;
}

}  // namespace levin::runtime::cuda
