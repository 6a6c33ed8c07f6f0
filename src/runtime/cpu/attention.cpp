// Grouped-query attention without positional encoding (vLLM's nemotron_h.py gives it no positions).
// A thread writes the keys and values that it computed straight into the cache; after a barrier the
// threads share the (row, key/value head) pairs.
#include <algorithm>
#include <cmath>

#include "core/small_floats.h"
#include "runtime/cpu/blocks.h"

namespace levin::runtime::cpu {
namespace {

enum class Part { kKeys, kValues };

// How a cache of one type holds an element, and where in a panel.
struct Bf16Elements {
  using Type = uint16_t;
  static Type encode(float x) { return float_to_bf16(x); }
  static int64_t at(int64_t lane, int64_t k) { return bf16_element(lane, k); }
};
struct Fp8Elements {
  using Type = uint8_t;
  static Type encode(float x) { return float_to_e4m3(x); }
  static int64_t at(int64_t lane, int64_t k) { return fp8_element(lane, k); }
};
struct F32Elements {
  using Type = float;
  static Type encode(float x) { return x; }
  static int64_t at(int64_t lane, int64_t k) { return f32_element(lane, k); }
};

// Writes rows [begin, end) of K or V, as the projection made them, of one token. The first token of
// a block clears the block's values: attention multiplies those of later positions by zero, which
// must not meet a NaN that an earlier sequence left.
template <typename Elements, Part part>
void store_token(const model::Config& config, const KvCache& cache, const float* x, Range rows,
                 int64_t position, float scale) {
  using Type = typename Elements::Type;
  const int64_t columns = round_up(config.head_dim, kBlock);
  const int64_t p = position % kKeyBlock;
  uint8_t* block = cache.data + position / kKeyBlock * cache.block_bytes;
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const int64_t d = row % config.head_dim;
    auto* keys = reinterpret_cast<Type*>(block + row / config.head_dim * cache.head_bytes);
    if (part == Part::kKeys) {
      Type* panel = keys + p / kLanes * kLanes * columns;
      panel[Elements::at(p % kLanes, d)] = Elements::encode(x[row] / scale);
    } else {
      Type* panel = keys + kKeyBlock * columns + d / kLanes * kLanes * kKeyBlock;
      for (int64_t later = 1; p == 0 && later < kKeyBlock; ++later) {
        panel[Elements::at(d % kLanes, later)] = Type{};
      }
      panel[Elements::at(d % kLanes, p)] = Elements::encode(x[row] / scale);
    }
  }
}

int64_t element_bytes(KvCacheDType dtype) {
  return dtype == KvCacheDType::kF32 ? 4 : dtype == KvCacheDType::kBf16 ? 2 : 1;
}

template <Part part>
void store_part(Pass& pass, const Matrix& matrix, const Rows& rows, int layer, CacheOf cache_of,
                State& state, std::span<const Segment> segments, float scale) {
  const model::Config& config = pass.config();
  const Range panels = pass.panels_of(matrix);
  const Range own = {panels.begin * kLanes, std::min(panels.end * kLanes, matrix.out)};
  for (const Segment& segment : segments) {
    const KvCache& cache = cache_of(state, segment.slot, layer);
    pass.count_bytes(segment.rows * (own.end - own.begin) *
                     element_bytes(pass.options().kv_cache_dtype));
    for (int64_t i = 0; i < segment.rows; ++i) {
      const float* x = rows[segment.first_row + i];
      const int64_t position = segment.position + i;
      switch (pass.options().kv_cache_dtype) {
        case KvCacheDType::kBf16:
          store_token<Bf16Elements, part>(config, cache, x, own, position, 1.0F);
          break;
        case KvCacheDType::kFp8:
          store_token<Fp8Elements, part>(config, cache, x, own, position, scale);
          break;
        case KvCacheDType::kF32:
          store_token<F32Elements, part>(config, cache, x, own, position, 1.0F);
          break;
      }
    }
  }
}

// Rows from `first_query` on attend to everything up to themselves. Pairs are dealt out in turn,
// since later rows look back further.
void attend_rows(Pass& pass, const AttentionWeights& weights, int layer, CacheOf cache_of,
                 State& state, std::span<const Segment> segments, int64_t first_query) {
  const model::Config& config = pass.config();
  const int64_t kv_heads = config.num_key_value_heads;
  const bool fp8 = pass.options().kv_cache_dtype == KvCacheDType::kFp8;
  AttendCall call;
  call.format = kv_format(pass.options().kv_cache_dtype);
  call.heads = config.num_attention_heads / kv_heads;
  call.head_dim = config.head_dim;
  call.score_scale = (fp8 ? weights.k_scale : 1.0F) / std::sqrt(static_cast<float>(call.head_dim));
  call.value_scale = fp8 ? weights.v_scale : 1.0F;
  call.work = pass.own().attend;
  const int64_t group_width = call.heads * call.head_dim;
  const int64_t row_bytes = 2 * call.head_dim * element_bytes(pass.options().kv_cache_dtype);
  for (const Segment& segment : segments) {
    const KvCache& cache = cache_of(state, segment.slot, layer);
    for (int64_t i = 0; i < segment.rows; ++i) {
      const int64_t row = segment.first_row + i;
      if (row < first_query) continue;
      call.length = segment.position + i + 1;
      for (int64_t head = 0; head < kv_heads; ++head) {
        if ((row * kv_heads + head) % pass.threads() != pass.thread()) continue;
        call.cache = cache.data + head * cache.head_bytes;
        call.q = pass.work().q[row] + head * group_width;
        call.out = pass.work().attended[row] + head * group_width;
        pass.kernels().attend(call);
        // The rows before it looked at a part of the same.
        if (i + 1 == segment.rows) pass.count_bytes(call.length * row_bytes);
      }
    }
  }
}

}  // namespace

void run_attention(Pass& pass, const AttentionWeights& weights, const float* norm, int layer,
                   CacheOf cache_of, State& state, std::span<const Segment> segments,
                   const Rows& hidden, int64_t count, int64_t first_query) {
  Workspace& work = pass.work();
  const Rows normed = pass.normed();
  const int64_t queries = count - first_query;
  pass.phase(Phase::kAttentionIn);
  pass.normalize(hidden, count, norm, normed);
  // Queries of some rows only have tiles of their own.
  const PackedInput k_input = pass.stage(0, weights.k_proj, normed, count);
  const PackedInput v_input =
      pass.stage_also(1, weights.v_proj, normed, count, weights.k_proj, k_input);
  if (first_query > 0) pass.staged();  // rows are shared out differently below
  const Rows query_rows = normed.from(first_query);
  const PackedInput q_input =
      first_query == 0 ? pass.stage_also(2, weights.q_proj, normed, count, weights.k_proj, k_input)
                       : pass.stage(2, weights.q_proj, query_rows, queries);
  pass.staged();
  pass.watch_input(weights.q_proj, query_rows, queries);
  pass.watch_input(weights.k_proj, normed, count);
  pass.watch_input(weights.v_proj, normed, count);
  pass.multiply(weights.k_proj, k_input, store_to(work.k));
  pass.multiply(weights.v_proj, v_input, store_to(work.v));
  if (queries > 0) pass.multiply(weights.q_proj, q_input, store_to(work.q.from(first_query)));
  store_part<Part::kKeys>(pass, weights.k_proj, work.k, layer, cache_of, state, segments,
                          weights.k_scale);
  store_part<Part::kValues>(pass, weights.v_proj, work.v, layer, cache_of, state, segments,
                            weights.v_scale);
  pass.barrier();
  if (queries == 0) return;

  pass.phase(Phase::kAttend);
  attend_rows(pass, weights, layer, cache_of, state, segments, first_query);
  pass.barrier();

  pass.phase(Phase::kAttentionOut);
  const Rows attended = work.attended.from(first_query);
  const PackedInput mixed = pass.stage(0, weights.o_proj, attended, queries);
  pass.staged();
  pass.watch_input(weights.o_proj, attended, queries);
  pass.multiply(weights.o_proj, mixed, store_to(hidden.from(first_query), Epilogue::kAdd));
  pass.barrier();
}

}  // namespace levin::runtime::cpu
