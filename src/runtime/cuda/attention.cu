// Attention of the tokens of a pass (attention.h), without positional encoding: NemotronH has none.
//
// A block takes a chunk of positions for the tokens that it has teams for: four warps each, of
// which warp w takes positions 16w .. 16w + 15 of every tile of 64. Keys and values of a tile come
// by asynchronous copies into a ring in shared memory, where all teams read them; those that are
// older than the pass before the kernel waits for its predecessor. At the end of a chunk the warps'
// results are added up in their order.
//
// Everything is in the order the tensor cores want without a shuffle. Lane (g, t) of a warp reads
// dims t * kDim / 4 .. of a key and positions 4t .. 4t + 3 of a value row; the positions of score
// tile j, column 2u + v are 4u + 2j + v, so that a lane's scores are those of the value positions
// it reads.
#include "runtime/cuda/attention.h"

namespace levin::runtime::cuda {
namespace {

constexpr float kMinusInfinity = -INFINITY;
constexpr int kStages = 3;  // tiles in the ring

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

// A tile of the caches in shared memory: keys [position][dim], then values [dim][position], as in
// device memory. Pieces of 16 bytes are swapped within a row so that no two lanes of a load want
// the same bank.
template <int kDim, bool kFp8>
struct Tile {
  static_assert(kBlockPositions == kCacheTile);
  static constexpr int kElement = kFp8 ? 1 : 2;
  static constexpr int kKeyRow = kDim * kElement;  // bytes
  static constexpr int kValueRow = kBlockPositions * kElement;
  static constexpr int kKeyBytes = kBlockPositions * kKeyRow;
  static constexpr int kBytes = kKeyBytes + kDim * kValueRow;

  // Of the 16 bytes `piece` of a row.
  static __device__ int key(int position, int piece) {
    if constexpr (kKeyRow == 256) {
      piece = (piece & 8) | ((piece & 7) ^ piece >> 3 ^ (position & 1) << 1);
    } else if constexpr (kKeyRow == 128) {
      piece ^= position & 1;
    }
    return position * kKeyRow + 16 * piece;
  }
  static __device__ int value(int dim, int piece) {
    piece ^= kFp8 ? dim >> 1 & 3 : (dim & 3) << 1;
    return kKeyBytes + dim * kValueRow + 16 * piece;
  }
};

// What a block works on.
struct Piece {
  int first_token;
  int tokens;
  int key_head;
  int head_block;
  int chunk;
  int begin, end;  // positions
  int older;       // so many positions were there before this pass
};

// Pieces of a pass in an order that lets neighbours share keys: segment, chunk, key head, head
// block, tokens. Returns false when `index` is beyond the last.
__device__ inline bool locate(const Attention& p, int teams, int index, Piece& piece) {
  const Pass& pass = *p.pass;
#pragma unroll 1
  for (int s = 0; s < pass.segments; ++s) {
    const Segment& segment = pass.segment[s];
    const int first = segment.position + p.position_offset;
    const int last = first + segment.rows - 1;
    const int chunks = last < 0 ? 0 : p.chunks.of(last) + 1;
    const int groups = (segment.rows + teams - 1) / teams;
    const int per_chunk = p.keys.heads * p.head_blocks() * groups;
    if (index >= chunks * per_chunk) {
      index -= chunks * per_chunk;
      continue;
    }
    piece.chunk = index / per_chunk;
    piece.begin = p.chunks.begin(piece.chunk);
    index %= per_chunk;
    const int row = index % groups * teams;
    piece.tokens = min(teams, segment.rows - row);
    piece.first_token = segment.first_row + row;
    index /= groups;
    piece.head_block = index % p.head_blocks();
    piece.key_head = index / p.head_blocks();
    piece.end = min(p.chunks.begin(piece.chunk + 1), first + row + piece.tokens);
    piece.older = first;
    return true;
  }
  return false;
}

// Copies of a piece's tiles, in turn, by all threads of a block.
template <int kDim, bool kFp8, int kBlock>
struct Loader {
  using Of = Tile<kDim, kFp8>;
  static constexpr int kOfKey = Of::kKeyRow / 16;  // pieces of 16 bytes
  static constexpr int kOfValue = Of::kValueRow / 16;
  // Rows that the block copies at a time: the swapping of pieces repeats itself after 8.
  static constexpr int kKeys = kBlock / kOfKey;
  static constexpr int kValues = kBlock / kOfValue;
  static_assert(kKeys % 8 == 0 && kValues % 8 == 0);

  // This thread's first piece of the next tile.
  const uint8_t* key;
  const uint8_t* value;
  uint32_t key_to, value_to;
  int at, end, older;  // positions
  int slot = 0;        // of the ring

  __device__ Loader(const Attention& p, const Piece& piece, uint32_t ring)
      : at(piece.begin), end(piece.end), older(piece.older) {
    const auto thread = static_cast<int>(threadIdx.x);
    const int64_t of_slot = p.pass->slot[piece.first_token];
    const int64_t head = static_cast<int64_t>(piece.key_head) * p.keys.capacity * kDim;
    const int64_t first = static_cast<int64_t>(at) * Of::kKeyRow + 16 * thread;
    key = static_cast<const uint8_t*>(p.keys.data) +
          (of_slot * p.keys.slot_stride + head) * Of::kElement + first;
    value = static_cast<const uint8_t*>(p.values.data) +
            (of_slot * p.values.slot_stride + head) * Of::kElement + first;
    key_to = ring + Of::key(thread / kOfKey, thread % kOfKey);
    value_to = ring + Of::value(thread / kOfValue, thread % kOfValue);
  }
  // The next tile holds nothing of this pass.
  __device__ bool is_older() const { return at < end && at + kBlockPositions <= older; }
  // The next tile, if there is one, as the next group of copies. Caches have whole tiles.
  __device__ void next() {
    if (at < end) copy();
    ptx::commit_copies();
  }

 private:
  __device__ void copy() {
#pragma unroll
    for (int i = 0; i < kBlockPositions / kKeys; ++i) {
      ptx::copy_16(key_to + slot * Of::kBytes + i * kKeys * Of::kKeyRow,
                   key + i * kKeys * Of::kKeyRow);
    }
#pragma unroll
    for (int i = 0; i < kDim / kValues; ++i) {
      ptx::copy_16(value_to + slot * Of::kBytes + i * kValues * Of::kValueRow,
                   value + i * kValues * Of::kValueRow);
    }
    key += kBlockPositions * Of::kKeyRow;
    value += kDim * Of::kValueRow;
    at += kBlockPositions;
    slot = slot + 1 == kStages ? 0 : slot + 1;
  }
};

// What the warps of a team hand over: sums [warp][head][kDim], and for each head the largest score
// and the sum of weights.
template <int kDim>
struct Exchange {
  float sums[kAttentionWarps][kHeadsPerBlock][kDim];
  float largest[kAttentionWarps][kHeadsPerBlock];
  float weight[kAttentionWarps][kHeadsPerBlock];
};

// One warp of a team: its sums over the positions that it has seen of a piece.
template <int kDim, bool kFp8>
struct Warp {
  using Of = Tile<kDim, kFp8>;
  static constexpr int kSteps = kDim / 16;  // products along a head's dims
  static constexpr int kTiles = kWarpPositions / 8;
  static constexpr int kOutTiles = kDim / 8;

  int g, t;
  int in_team;
  uint32_t query[kSteps][4];
  float out[kOutTiles][4] = {};
  float largest[2] = {kMinusInfinity, kMinusInfinity};  // of heads g and g + 8
  float weight[2] = {0.0F, 0.0F};

  __device__ Warp() {
    g = static_cast<int>(threadIdx.x % 32 / 4);
    t = static_cast<int>(threadIdx.x % 4);
    in_team = static_cast<int>(threadIdx.x / 32 % kAttentionWarps);
  }

  __device__ void load_query(const Attention& p, const Piece& piece, int token) {
    const int dim = p.keys.head_dim;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int h = head_of(p, piece, g + 8 * half);
      const float* from = p.queries + (static_cast<int64_t>(token) * p.heads + max(h, 0)) * dim;
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

  // Query head of row `row` of the block's 16, or -1.
  static __device__ int head_of(const Attention& p, const Piece& piece, int row) {
    const int in_key = piece.head_block * kHeadsPerBlock + row;
    return in_key < p.heads_per_key() ? piece.key_head * p.heads_per_key() + in_key : -1;
  }

  // Adds the warp's 16 positions of a tile, `begin` the first of them; those after `last` do not
  // count, whatever they hold.
  __device__ void add(uint32_t tile, int begin, int last, float scale) {
    float scores[kTiles][4] = {};
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      const int position = kWarpPositions * in_team + 4 * (g / 2) + 2 * j + g % 2;
      constexpr int kPieces = Of::kKeyRow / 64;  // of 16 bytes that a lane reads
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        const uint4 v = ptx::load_shared_16(tile + Of::key(position, kPieces * t + i));
        if constexpr (kFp8) {
          uint32_t pairs[8];
          ptx::e4m3x4_to_f16x2(v.x, pairs[0], pairs[1]);
          ptx::e4m3x4_to_f16x2(v.y, pairs[2], pairs[3]);
          ptx::e4m3x4_to_f16x2(v.z, pairs[4], pairs[5]);
          ptx::e4m3x4_to_f16x2(v.w, pairs[6], pairs[7]);
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            mma<kFp8>(scores[j], query[4 * i + k], pairs[2 * k], pairs[2 * k + 1]);
          }
        } else {
          mma<kFp8>(scores[j], query[2 * i], v.x, v.y);
          mma<kFp8>(scores[j], query[2 * i + 1], v.z, v.w);
        }
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const bool in = begin + 4 * t + 2 * j + i % 2 <= last;
        scores[j][i] = in ? scores[j][i] * scale : kMinusInfinity;
      }
    }
    soften(scores);
    const uint32_t a[4] = {
        pack<kFp8>(scores[0][0], scores[0][1]), pack<kFp8>(scores[0][2], scores[0][3]),
        pack<kFp8>(scores[1][0], scores[1][1]), pack<kFp8>(scores[1][2], scores[1][3])};
    // Weights of positions after `last` are 0, but their values may be no numbers.
    uint32_t kept[2] = {~0u, ~0u};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int position = begin + 4 * t + 2 * i;
      kept[i] = position + 1 <= last ? ~0u : position <= last ? 0xffffu : 0u;
    }
#pragma unroll
    for (int j = 0; j < kOutTiles; ++j) {
      uint32_t value[2];
      if constexpr (kFp8) {
        const uint32_t codes = ptx::load_shared_4(tile + Of::value(8 * j + g, in_team) + 4 * t);
        ptx::e4m3x4_to_f16x2(codes, value[0], value[1]);
      } else {
        const uint2 v =
            ptx::load_shared_8(tile + Of::value(8 * j + g, 2 * in_team + t / 2) + 8 * (t % 2));
        value[0] = v.x, value[1] = v.y;
      }
      mma<kFp8>(out[j], a, value[0] & kept[0], value[1] & kept[1]);
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
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = g + 8 * half;
#pragma unroll
      for (int tile = 0; tile < kOutTiles; ++tile) {
        *reinterpret_cast<float2*>(&exchange.sums[in_team][row][8 * tile + 2 * t]) =
            make_float2(out[tile][2 * half], out[tile][2 * half + 1]);
      }
      if (t == 0) {
        exchange.largest[in_team][row] = largest[half];
        exchange.weight[in_team][row] = weight[half];
      }
    }
  }
};

// Results of `tokens` tokens from `first` on from their warps', in the warps' order; by all threads
// of a block.
template <int kDim, int kThreadsOfBlock>
__device__ inline void store(const Attention& p, const Piece& piece, Exchange<kDim>* exchange,
                             int first, int tokens) {
  const int rows = min(kHeadsPerBlock, p.heads_per_key() - piece.head_block * kHeadsPerBlock);
  const int first_head = piece.key_head * p.heads_per_key() + piece.head_block * kHeadsPerBlock;
  const auto thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < tokens * rows; i += kThreadsOfBlock) {
    const int token = i / rows;
    const int row = i % rows;
    Exchange<kDim>& of = exchange[token];
    float most = kMinusInfinity;
#pragma unroll
    for (int w = 0; w < kAttentionWarps; ++w) most = fmaxf(most, of.largest[w][row]);
    float total = 0.0F;
#pragma unroll
    for (int w = 0; w < kAttentionWarps; ++w) {
      // A warp without positions has the largest -infinity and counts nothing. From here on its
      // place holds what its sums are multiplied by.
      const float factor = ptx::exp2_approx(of.largest[w][row] - most);
      of.largest[w][row] = factor;
      total += of.weight[w][row] * factor;
    }
    const int64_t at = p.at(piece.first_token + first + token, first_head + row, piece.chunk);
    *reinterpret_cast<float2*>(p.weights + at * 2) = make_float2(most, total);
  }
  __syncthreads();
  constexpr int kVectors = kDim / 4;
#pragma unroll 2
  for (int i = thread; i < tokens * rows * kVectors; i += kThreadsOfBlock) {
    const int of_token = i / kVectors;
    const int token = of_token / rows;
    const int row = of_token % rows;
    const int dim = i % kVectors * 4;
    const Exchange<kDim>& of = exchange[token];
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int w = 0; w < kAttentionWarps; ++w) {
      const float factor = of.largest[w][row];
      const float4 v = *reinterpret_cast<const float4*>(&of.sums[w][row][dim]);
      sum.x += v.x * factor;
      sum.y += v.y * factor;
      sum.z += v.z * factor;
      sum.w += v.w * factor;
    }
    const int64_t at = p.at(piece.first_token + first + token, first_head + row, piece.chunk);
    *reinterpret_cast<float4*>(p.sums + at * kDim + dim) = sum;
  }
}

}  // namespace

template <int kDim, bool kFp8, int kTeams>
__global__ void __launch_bounds__(32 * kAttentionWarps * kTeams, kTeams == 1 ? 3 : 2)
    attend(const __grid_constant__ Attention p) {
  p.trace.stamp(Trace::kStart);
  using Of = Tile<kDim, kFp8>;
  constexpr int kBlock = 32 * kAttentionWarps * kTeams;
  // The teams' results take the ring's place, of as many teams at a time as there is room for.
  constexpr int kAtOnce = (kTeams * sizeof(Exchange<kDim>) <= kStages * Of::kBytes)
                              ? kTeams
                              : static_cast<int>(kStages * Of::kBytes / sizeof(Exchange<kDim>));
  static_assert(kAtOnce > 0);
  extern __shared__ __align__(128) uint8_t attention_memory[];
  const uint32_t ring = ptx::shared_address(attention_memory);
  auto* exchange = reinterpret_cast<Exchange<kDim>*>(attention_memory);
  ptx::launch_dependents();
  const int team = static_cast<int>(threadIdx.x) / (32 * kAttentionWarps);
  Piece piece;
  auto index = static_cast<int>(blockIdx.x);
  if (!locate(p, kTeams, index, piece)) {
    ptx::wait_for_previous();
    p.trace.stamp(Trace::kReady);
    p.trace.stamp(Trace::kEnd);
    return;
  }
  Loader<kDim, kFp8, kBlock> loader(p, piece, ring);
  int ahead = 0;
  for (; ahead < kStages - 1 && loader.is_older(); ++ahead) loader.next();
  ptx::wait_for_previous();
  p.trace.stamp(Trace::kReady);
  while (true) {
    for (; ahead < kStages - 1; ++ahead) loader.next();
    const int token = piece.first_token + team;
    const bool mine = team < piece.tokens;
    const int last = mine ? p.pass->position[token] + p.position_offset : -1;
    Warp<kDim, kFp8> warp;
    if (mine) warp.load_query(p, piece, token);
    int stage = 0;
#pragma unroll 1
    for (int at = piece.begin; at < piece.end; at += kBlockPositions) {
      ptx::wait_for_copies<kStages - 2>();
      __syncthreads();  // all have what they copied, and nobody reads the tile before this one
      loader.next();
      const int begin = at + kWarpPositions * warp.in_team;
      if (begin <= last) warp.add(ring + stage * Of::kBytes, begin, last, p.scale);
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }
    __syncthreads();
#pragma unroll 1
    for (int first = 0; first < piece.tokens; first += kAtOnce) {
      if (mine && team >= first && team < first + kAtOnce) warp.hand_over(exchange[team - first]);
      __syncthreads();
      store<kDim, kBlock>(p, piece, exchange, first, min(kAtOnce, piece.tokens - first));
      __syncthreads();
    }
    index += static_cast<int>(gridDim.x);
    if (!locate(p, kTeams, index, piece)) break;
    loader = Loader<kDim, kFp8, kBlock>(p, piece, ring);
    ahead = 0;
  }
  p.trace.stamp(Trace::kEnd);
}

namespace {

template <int kTeams>
Kernel<Attention> attend_kernel_of(const KvView& keys) {
  if (keys.padded_dim == 64) return keys.fp8 ? attend<64, true, kTeams> : attend<64, false, kTeams>;
  return keys.fp8 ? attend<128, true, kTeams> : attend<128, false, kTeams>;
}

}  // namespace

int attention_teams(int rows) {
  return rows == 1 ? 1 : 2;
}
Kernel<Attention> attend_kernel(const KvView& keys, int rows) {
  return rows == 1 ? attend_kernel_of<1>(keys) : attend_kernel_of<2>(keys);
}
int attend_shared(const KvView& keys) {
  if (keys.padded_dim == 64)
    return kStages * (keys.fp8 ? Tile<64, true>::kBytes : Tile<64, false>::kBytes);
  return kStages * (keys.fp8 ? Tile<128, true>::kBytes : Tile<128, false>::kBytes);
}

}  // namespace levin::runtime::cuda
