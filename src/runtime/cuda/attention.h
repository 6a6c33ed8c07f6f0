// Causal grouped-query attention over the caches: what the kernels take. Positions are cut into
// chunks; a block works on one chunk for one or two tokens and up to 16 query heads
// that share a key head, and a second kernel merges the chunks in order. Neither chunks nor the
// order of sums depend on how many tokens a pass has, so neither do results.
#pragma once

#include "runtime/cuda/linear.cuh"

namespace levin::runtime::cuda {

inline constexpr int kHeadsPerBlock = 16;
inline constexpr int kWarpPositions = 16;  // keys of one step of a warp
inline constexpr int kAttentionWarps = 4;  // of a token
inline constexpr int kBlockPositions = kAttentionWarps * kWarpPositions;
inline constexpr int kMaxChunks = 640;  // of a token

// Where chunks begin: short ones first, so that a short context is shared out over many blocks
// however long contexts may become; kOfLength of 64 positions, as many of 256, then of `rest`.
struct Chunks {
  static constexpr int kOfLength = 64;
  static constexpr int kSecond = kOfLength * kBlockPositions;  // position
  static constexpr int kThird = kSecond + kOfLength * 4 * kBlockPositions;
  int rest = 8 * kBlockPositions;

  // For positions below `longest`.
  static Chunks up_to(int64_t longest) {
    Chunks chunks;
    while (kThird + static_cast<int64_t>(kMaxChunks - 2 * kOfLength) * chunks.rest < longest) {
      chunks.rest *= 2;
    }
    return chunks;
  }
  __host__ __device__ int begin(int chunk) const {
    if (chunk <= kOfLength) return chunk * kBlockPositions;
    if (chunk <= 2 * kOfLength) return kSecond + (chunk - kOfLength) * 4 * kBlockPositions;
    return kThird + (chunk - 2 * kOfLength) * rest;
  }
  __host__ __device__ int of(int position) const {
    if (position < kSecond) return position / kBlockPositions;
    if (position < kThird) return kOfLength + (position - kSecond) / (4 * kBlockPositions);
    return 2 * kOfLength + (position - kThird) / rest;
  }
};

struct Attention {
  const Pass* pass = nullptr;
  const float* queries = nullptr;  // [tokens, heads * head_dim]
  KvView keys;
  KvView values;
  int position_offset = 0;  // added to the tokens' positions
  int heads = 0;
  Chunks chunks;
  int max_chunks = 0;  // per token
  float scale = 0.0F;  // of the scores: log2(e) / sqrt(head_dim), times the key scale of FP8
  // Partial results of a token's head and chunk: sums [.., padded_dim], largest score and sum of
  // weights [.., 2].
  float* sums = nullptr;
  float* weights = nullptr;
  float* out = nullptr;  // [tokens, heads * head_dim]
  Trace trace;

  __host__ __device__ int heads_per_key() const { return heads / keys.heads; }
  __host__ __device__ int head_blocks() const {
    return (heads_per_key() + kHeadsPerBlock - 1) / kHeadsPerBlock;
  }
  // Index of a partial result.
  __device__ int64_t at(int token, int head, int chunk_index) const {
    return (static_cast<int64_t>(token) * heads + head) * max_chunks + chunk_index;
  }
};

// Tokens of a block, in passes of up to `rows` tokens.
int attention_teams(int rows);
// Any grid, kAttentionWarps warps for each of the block's tokens. Two blocks fit on a
// multiprocessor, and a long context wants both: one waits for each of its steps.
Kernel<Attention> attend_kernel(const KvView& keys, int rows);
int attend_shared(const KvView& keys);
// Grid: heads * padded_dim / kMergeDims, tokens; kMergeThreads.
inline constexpr int kMergeDims = 32;
inline constexpr int kMergeThreads = 128;
Kernel<Attention> merge_chunks_kernel(const KvView& keys);

}  // namespace levin::runtime::cuda
