// NemotronH has no rotary embedding, although its configurations carry rope_theta: the attention of
// vLLM's nemotron_h.py takes no positions and Megatron trains with position_embedding_type "none".
#include "runtime/reference/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/small_floats.h"
#include "runtime/reference/parallel.h"

namespace levin::runtime::reference {
namespace {

float as_cached(float x, KvCacheDType dtype, float scale) {
  switch (dtype) {
    case KvCacheDType::kF32:
      return x;
    case KvCacheDType::kBf16:
      return round_to_bf16(x);
    case KvCacheDType::kFp8:
      break;
  }
  return e4m3_to_float(float_to_e4m3(x / scale)) * scale;
}

// softmax(q . k / sqrt(head_dim)) . v of one query head over positions 0..last.
void attend(std::span<const float> query, const KvCache& cache, int64_t kv_offset, int64_t last,
            float* scores, std::span<float> out) {
  const auto head_dim = static_cast<int64_t>(query.size());
  const float scale = 1.0F / std::sqrt(static_cast<float>(head_dim));
  for (int64_t j = 0; j <= last; ++j) {
    scores[j] = dot(query.data(), cache.key(j) + kv_offset, head_dim) * scale;
  }
  const float maximum = *std::max_element(scores, scores + last + 1);
  float sum = 0.0F;
  std::fill(out.begin(), out.end(), 0.0F);
  for (int64_t j = 0; j <= last; ++j) {
    const float weight = std::exp(scores[j] - maximum);
    const float* value = cache.value(j) + kv_offset;
    sum += weight;
    for (std::size_t i = 0; i < out.size(); ++i) out[i] += weight * value[i];
  }
  for (float& x : out) x /= sum;
}

}  // namespace

KvCache::KvCache(int64_t capacity, int64_t width, KvCacheDType dtype,
                 const model::AttentionBlock& block)
    : width_(width),
      dtype_(dtype),
      k_scale_(block.k_scale),
      v_scale_(block.v_scale),
      keys_(capacity * width),
      values_(capacity * width) {}

void KvCache::store(int64_t position, std::span<const float> key, std::span<const float> value) {
  const std::span<float> keys = keys_.row(position, width_);
  const std::span<float> values = values_.row(position, width_);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    keys[i] = as_cached(key[i], dtype_, k_scale_);
    values[i] = as_cached(value[i], dtype_, v_scale_);
  }
}

float* KvCache::copy_to(float* out, int64_t begin, int64_t end) const {
  const int64_t floats = (end - begin) * width_;
  out = std::copy_n(key(begin), floats, out);
  return std::copy_n(value(begin), floats, out);
}

const float* KvCache::copy_from(const float* in, int64_t begin, int64_t end) {
  const int64_t floats = (end - begin) * width_;
  std::copy_n(in, floats, keys_.data() + begin * width_);
  std::copy_n(in + floats, floats, values_.data() + begin * width_);
  return in + 2 * floats;
}

void KvCache::poison() {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  std::fill_n(keys_.data(), keys_.size(), kNan);
  std::fill_n(values_.data(), values_.size(), kNan);
}

AttentionWork::AttentionWork(const Context& context, int64_t longest)
    : queries(context.max_rows * context.config.q_rows()),
      keys(context.max_rows * context.config.kv_rows()),
      values(context.max_rows * context.config.kv_rows()),
      mixed(context.max_rows * context.config.q_rows()),
      scores(context.team.size() * longest),
      max_context(longest) {}

void store_keys_and_values(Context& context, const model::AttentionBlock& block,
                           std::span<const Segment> segments, std::span<KvCache> caches,
                           AttentionWork& work, std::span<const float> input, int rows) {
  const int64_t width = context.config.kv_rows();
  context.linears.apply(block.k_proj, input, rows, work.keys.rows(rows, width));
  context.linears.apply(block.v_proj, input, rows, work.values.rows(rows, width));
  for (const Segment& segment : segments) {
    KvCache& cache = caches[static_cast<std::size_t>(segment.slot)];
    for (int64_t i = 0; i < segment.rows; ++i) {
      const int64_t row = segment.first_row + i;
      cache.store(segment.position + i, work.keys.row(row, width), work.values.row(row, width));
    }
  }
}

void attention(Context& context, const model::AttentionBlock& block,
               std::span<const Segment> segments, std::span<KvCache> caches, AttentionWork& work,
               std::span<const float> input, int rows, std::span<float> output) {
  const model::Config& config = context.config;
  store_keys_and_values(context, block, segments, caches, work, input, rows);
  context.linears.apply(block.q_proj, input, rows, work.queries.rows(rows, config.q_rows()));

  const int64_t heads = config.num_attention_heads;
  const int64_t heads_per_kv = heads / config.num_key_value_heads;
  const auto head_dim = static_cast<std::size_t>(config.head_dim);
  for (const Segment& segment : segments) {
    const KvCache& cache = caches[static_cast<std::size_t>(segment.slot)];
    // Items are dealt out in turn, since later rows look back further.
    const int64_t operations = segment.rows * (segment.position + segment.rows) * config.q_rows();
    in_parallel(context.team, operations, [&](int thread, int threads) {
      float* scores = work.scores.row(thread, work.max_context).data();
      for (int64_t item = thread; item < segment.rows * heads; item += threads) {
        const int64_t row = segment.first_row + item / heads;
        const int64_t head = item % heads;
        const auto begin = static_cast<std::size_t>(head) * head_dim;
        attend(work.queries.row(row, config.q_rows()).subspan(begin, head_dim), cache,
               head / heads_per_kv * config.head_dim, segment.position + item / heads, scores,
               work.mixed.row(row, config.q_rows()).subspan(begin, head_dim));
      }
    });
  }
  context.linears.apply(block.o_proj, work.mixed.rows(rows, config.q_rows()), rows, output);
}

}  // namespace levin::runtime::reference
