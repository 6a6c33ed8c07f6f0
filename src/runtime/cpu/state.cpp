#include "runtime/cpu/state.h"

#include <algorithm>

#include "runtime/cpu/layout.h"

namespace levin::runtime::cpu {
namespace {

int64_t element_bytes(KvFormat format) {
  switch (format) {
    case KvFormat::kBf16:
      return 2;
    case KvFormat::kFp8:
      return 1;
    case KvFormat::kF32:
      break;
  }
  return 4;
}

void add_kv(Layout& layout, KvCache& cache, const model::Config& config, KvFormat format,
            int64_t positions) {
  cache.block_bytes = kv_block_bytes(config.head_dim, element_bytes(format));
  cache.head_bytes = round_up(positions, kKeyBlock) / kKeyBlock * cache.block_bytes;
  layout.add(cache.data, config.num_key_value_heads * cache.head_bytes);
}

}  // namespace

KvFormat kv_format(KvCacheDType dtype) {
  switch (dtype) {
    case KvCacheDType::kBf16:
      return KvFormat::kBf16;
    case KvCacheDType::kFp8:
      return KvFormat::kFp8;
    case KvCacheDType::kF32:
      break;
  }
  return KvFormat::kF32;
}

State::State(const model::Config& config, const Options& options)
    : max_rewind_(options.max_rewind),
      kv_heads_(config.num_key_value_heads),
      positions_(options.max_model_len),
      poison_(options.poison_free_slots),
      log_rows_(config.conv_kernel - 1 + options.max_rewind),
      slots_(static_cast<std::size_t>(options.max_num_seqs)) {
  const KvFormat format = kv_format(options.kv_cache_dtype);
  const int64_t cells =
      config.mamba_num_heads * config.ssm_state_size * round_up(config.mamba_head_dim, kLanes);
  ssm_bytes_ = cells * (options.ssm_cache_dtype == SsmCacheDType::kF16 ? 2 : 4);
  Layout layout;
  for (Slot& slot : slots_) {
    slot.mamba.resize(config.layers.size());
    slot.kv.resize(config.layers.size());
    for (std::size_t i = 0; i < config.layers.size(); ++i) {
      if (config.layers[i] == model::BlockKind::kMamba) {
        MambaState& state = slot.mamba[i];
        layout.add_bytes(state.ssm, ssm_bytes_);
        for (Rows& log : state.log) {
          layout.rows(log, log_rows_, config.conv_dim() + config.mamba_num_heads);
          history_floats_ = (config.conv_kernel - 1) * log.stride;
        }
      } else if (config.layers[i] == model::BlockKind::kAttention) {
        add_kv(layout, slot.kv[i], config, format, options.max_model_len);
      }
    }
    if (options.mtp) {
      add_kv(layout, slot.draft_kv, config, format, options.max_model_len + options.max_rewind);
      const int64_t rows = kDraftLogRows + options.max_rewind;
      layout.rows(slot.draft.hidden, rows, config.hidden_size);
      layout.add(slot.draft.tokens, rows);
    }
  }
  arena_ = layout.allocate();
  for (std::size_t slot = 0; slot < slots_.size() && poison_; ++slot) reset(static_cast<int>(slot));
}

void State::reset(int index) {
  Slot& slot = (*this)[index];
  if (poison_) poison(slot);
  slot.length = 0;
  slot.kept = 0;
  slot.rewindable_to = 0;
  slot.draft.entries = 0;
  slot.draft.first = 0;
  // Before the first token the convolution sees zeros. An SSM state of no tokens is not read, and
  // cache entries are written before they are read.
  for (MambaState& state : slot.mamba) {
    if (state.ssm != nullptr) std::fill_n(state.log[slot.log].data, history_floats_, 0.0F);
  }
}

}  // namespace levin::runtime::cpu
