// Causal grouped-query attention over the caches: what the kernels take. Positions are cut into
// chunks of a fixed size; a block works on one chunk for one token and up to 16 query heads that
// share a key head, and a second kernel merges the chunks in order. Chunks do not depend on how
// many tokens a pass has, so neither do results.
#pragma once

#include "runtime/cuda/linear.cuh"

namespace levin::runtime::cuda {

inline constexpr int kHeadsPerBlock = 16;
inline constexpr int kWarpPositions = 16;  // keys of one step of a warp
inline constexpr int kAttentionWarps = 4;
inline constexpr int kBlockPositions = kAttentionWarps * kWarpPositions;
inline constexpr int kMaxChunks = 512;  // of a token

struct Attention {
  const Pass* pass = nullptr;
  const float* queries = nullptr;  // [tokens, heads * head_dim]
  KvView keys;
  KvView values;
  int position_offset = 0;  // added to the tokens' positions
  int heads = 0;
  int chunk = 0;       // positions, a multiple of kBlockPositions
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

// Any grid, kAttentionWarps warps.
Kernel<Attention> attend_kernel(const KvView& keys);
int attend_shared(const KvView& keys);
// Grid: heads, tokens; padded_dim threads.
Kernel<Attention> merge_chunks_kernel(const KvView& keys);

}  // namespace levin::runtime::cuda
