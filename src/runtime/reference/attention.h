// Causal grouped-query attention without positional encoding, and its cache.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/model.h"
#include "runtime/reference/context.h"

namespace levin::runtime::reference {

// Keys and values of one sequence in one layer. Held as float32 values, each exactly what the
// chosen cache dtype would give back.
class KvCache {
 public:
  KvCache(int64_t capacity, int64_t width, KvCacheDType dtype, const model::AttentionBlock& block);

  // Stores key and value [kv_rows] of the token at `position`, over whatever was there.
  void store(int64_t position, std::span<const float> key, std::span<const float> value);
  const float* key(int64_t position) const { return keys_.data() + position * width_; }
  const float* value(int64_t position) const { return values_.data() + position * width_; }
  int64_t width() const { return width_; }
  // Keys, then values, of the positions begin .. end - 1, [end - begin, kv_rows] each.
  float* copy_to(float* out, int64_t begin, int64_t end) const;
  const float* copy_from(const float* in, int64_t begin, int64_t end);
  void poison();  // fills everything with NaN
  int64_t bytes() const { return keys_.bytes() + values_.bytes(); }

 private:
  int64_t width_;
  KvCacheDType dtype_;
  float k_scale_;
  float v_scale_;
  Buffer keys_;    // [capacity, kv_rows]
  Buffer values_;  // [capacity, kv_rows]
};

// Work space of one pass, shared by all attention layers.
struct AttentionWork {
  AttentionWork(const Context& context, int64_t max_context);

  Buffer queries;  // [rows, q_rows]
  Buffer keys;     // [rows, kv_rows]
  Buffer values;   // [rows, kv_rows]
  Buffer mixed;    // [rows, q_rows]
  Buffer scores;   // [threads, longest context]
  int64_t max_context;

  int64_t bytes() const {
    return queries.bytes() + keys.bytes() + values.bytes() + mixed.bytes() + scores.bytes();
  }
};

// Projects input [rows, hidden] to keys and values and stores them. `caches` is indexed by slot.
void store_keys_and_values(Context& context, const model::AttentionBlock& block,
                           std::span<const Segment> segments, std::span<KvCache> caches,
                           AttentionWork& work, std::span<const float> input, int rows);

// output [rows, hidden]: attention of every row over its own sequence up to and including itself.
// Keys and values of the rows are stored first.
void attention(Context& context, const model::AttentionBlock& block,
               std::span<const Segment> segments, std::span<KvCache> caches, AttentionWork& work,
               std::span<const float> input, int rows, std::span<float> output);

}  // namespace levin::runtime::reference
