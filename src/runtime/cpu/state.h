// What the sequences of a runtime carry from token to token.
#pragma once

#include <cstdint>
#include <vector>

#include "model/config.h"
#include "model/model.h"
#include "runtime/cpu/arena.h"
#include "runtime/cpu/kernels.h"
#include "runtime/cpu/workspace.h"
#include "runtime/runtime.h"

namespace levin::runtime::cpu {

// Mamba state of one layer and slot, as of `kept` tokens of its sequence (Slot::kept). Later tokens
// are in the log: they are replayed from their raw inputs in the pass that next reads the state, so
// that a round of decoding or verification reads and writes a state once, and rewinding is only
// forgetting. Two logs take turns, since threads still read the old one while the new is written.
struct MambaState {
  void* ssm = nullptr;  // [heads][state][head_dim rounded up to 16], F32 or F16
  // Inputs of the convolution and of dt, [x, B, C, dt] as in_proj makes them: first the
  // conv_kernel - 1 rows before the kept length, then those of the logged tokens.
  Rows log[2];
};

// Keys and values of one attention layer and slot; layout in kernels.h (AttendCall).
struct KvCache {
  uint8_t* data = nullptr;
  int64_t head_bytes = 0;   // of one key/value head
  int64_t block_bytes = 0;  // of 64 positions: keys and values
};

// The part of the draft head's state that is not its KvCache: hidden states of the last tokens,
// needed for cache entries that are not made yet (draft.h).
struct DraftLog {
  int64_t entries = 0;  // positions whose cache entry is final
  int64_t first = 0;    // position of row 0
  Rows hidden;          // [kDraftLogRows + max_rewind][hidden]
  int32_t* tokens = nullptr;
};

struct Slot {
  int64_t length = 0;
  int64_t kept = 0;  // tokens that the Mamba states hold; length - kept are in the logs
  int64_t rewindable_to = 0;
  int log = 0;                    // which of the two logs is current
  std::vector<MambaState> mamba;  // by layer; empty places for other kinds
  std::vector<KvCache> kv;        // by layer
  KvCache draft_kv;
  DraftLog draft;

  int64_t logged() const { return length - kept; }
};

// Rows that a DraftLog has room for beyond max_rewind.
inline constexpr int64_t kDraftLogRows = 64;

class State {
 public:
  State(const model::Config& config, const Options& options);

  Slot& operator[](int slot) { return slots_[static_cast<std::size_t>(slot)]; }
  const Slot& operator[](int slot) const { return slots_[static_cast<std::size_t>(slot)]; }
  void reset(int slot);
  int64_t bytes() const { return arena_.bytes(); }

  SnapshotBytes snapshot_bytes(int64_t parent, int64_t length) const;
  Snapshot save(int slot, int64_t parent) const;
  void restore(int slot, std::span<const Snapshot> chain);

 private:
  // Calls visit(memory, bytes) for every piece that a snapshot has, always in the same order.
  template <typename Visit>
  void for_each_state_piece(const Slot& slot, Visit&& visit) const;
  template <typename Visit>
  void for_each_cache_piece(const Slot& slot, int64_t parent, int64_t length, Visit&& visit) const;
  void poison(Slot& slot);

  int64_t max_rewind_;
  int64_t kv_heads_;
  int64_t positions_;  // of a KvCache
  bool poison_;
  int64_t ssm_bytes_ = 0;       // of one MambaState
  int64_t log_rows_ = 0;        // of one of its logs
  int64_t history_floats_ = 0;  // of the rows of a log that precede the kept length
  std::vector<Slot> slots_;
  Arena arena_;
};

KvFormat kv_format(KvCacheDType dtype);

}  // namespace levin::runtime::cpu
