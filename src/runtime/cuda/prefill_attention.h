// Causal grouped-query attention of a prefill chunk over the caches, which have its keys and values
// already. A block works on 128 pairs of token and query head that share a key head, and goes
// through the positions from the first on, 64 at a time, with running largest scores and sums (Dao,
// arXiv 2307.08691). What a pair gets does not depend on the block it is in.
#pragma once

#include "runtime/cuda/attention.h"
#include "runtime/cuda/prefill_rows.h"

namespace levin::runtime::cuda {

// Keys and values of the chunk's tokens into the caches, those with negative positions excepted.
struct StoreKv {
  ChunkRows chunk;
  const float* keys = nullptr;    // [rows, heads * head_dim]
  const float* values = nullptr;  // [rows, heads * head_dim]
  KvView key_cache;
  KvView value_cache;
  int position_offset = 0;  // added to the tokens' positions
};
void launch_store_kv(cudaStream_t stream, const StoreKv& store);

struct PrefillAttention {
  const Segment* segments = nullptr;
  int segment_count = 0;
  const float* queries = nullptr;  // [rows, heads * head_dim]
  KvView keys;
  KvView values;
  int heads = 0;
  float scale = 0.0F;    // as Attention::scale
  float* out = nullptr;  // [rows, heads * head_dim]

  __host__ __device__ int heads_per_key() const { return heads / keys.heads; }
};
// `blocks`: sum over the segments of attention_blocks().
void launch_prefill_attention(cudaStream_t stream, const PrefillAttention& attention, int blocks);

inline constexpr int kAttentionRows = 128;  // pairs of token and head of a block
__host__ __device__ inline int attention_blocks(int tokens, int heads_per_key) {
  return (tokens * heads_per_key + kAttentionRows - 1) / kAttentionRows;
}

}  // namespace levin::runtime::cuda
