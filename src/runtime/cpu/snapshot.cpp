// Snapshots of a slot: its memory, piece by piece, copied out and in. Logged tokens stay logged, so
// that nothing has to be computed.
#include <cstring>

#include "runtime/cpu/state.h"

namespace levin::runtime::cpu {
namespace {

// The numbers of a Slot that its memory is read with.
struct Header {
  int64_t kept = 0;
  int64_t draft_entries = 0;
  int64_t draft_first = 0;
};

struct Blocks {
  int64_t begin;
  int64_t end;
};

// Whole blocks of cache entries that have the positions begin .. end - 1. What a block has of
// earlier ones is the same in every snapshot of the sequence.
Blocks blocks_of(int64_t begin, int64_t end) {
  return {begin / kKeyBlock, (end + kKeyBlock - 1) / kKeyBlock};
}

template <typename Visit>
void visit_blocks(const KvCache& cache, int64_t heads, Blocks blocks, Visit&& visit) {
  if (cache.data == nullptr) return;
  for (int64_t head = 0; head < heads; ++head) {
    visit(cache.data + head * cache.head_bytes + blocks.begin * cache.block_bytes,
          (blocks.end - blocks.begin) * cache.block_bytes);
  }
}

// Reads or writes memory from front to back.
class Writer {
 public:
  explicit Writer(int64_t bytes)
      : bytes_(std::make_shared_for_overwrite<std::byte[]>(static_cast<std::size_t>(bytes))) {}
  void operator()(const void* from, int64_t bytes) {
    std::memcpy(bytes_.get() + at_, from, static_cast<std::size_t>(bytes));
    at_ += bytes;
  }
  std::shared_ptr<const std::byte[]> take() { return std::move(bytes_); }

 private:
  std::shared_ptr<std::byte[]> bytes_;
  int64_t at_ = 0;
};

class Reader {
 public:
  explicit Reader(const std::byte* bytes) : at_(bytes) {}
  void operator()(void* to, int64_t bytes) {
    std::memcpy(to, at_, static_cast<std::size_t>(bytes));
    at_ += bytes;
  }

 private:
  const std::byte* at_;
};

}  // namespace

template <typename Visit>
void State::for_each_state_piece(const Slot& slot, Visit&& visit) const {
  for (const MambaState& state : slot.mamba) {
    if (state.ssm == nullptr) continue;
    const Rows& log = state.log[slot.log];
    visit(state.ssm, ssm_bytes_);
    visit(log.data, log_rows_ * log.stride * static_cast<int64_t>(sizeof(float)));
  }
  const DraftLog& draft = slot.draft;
  if (draft.tokens == nullptr) return;
  const int64_t rows = kDraftLogRows + max_rewind_;
  visit(draft.hidden.data, rows * draft.hidden.stride * static_cast<int64_t>(sizeof(float)));
  visit(draft.tokens, rows * static_cast<int64_t>(sizeof(int32_t)));
}

template <typename Visit>
void State::for_each_cache_piece(const Slot& slot, int64_t parent, int64_t length,
                                 Visit&& visit) const {
  const Blocks blocks = blocks_of(parent, length);
  for (const KvCache& cache : slot.kv) visit_blocks(cache, kv_heads_, blocks, visit);
  // The parent's draft entries may end as far before its own end as the log reaches back.
  const int64_t entries = std::max<int64_t>(0, parent - kDraftLogRows - max_rewind_);
  visit_blocks(slot.draft_kv, kv_heads_, blocks_of(entries, length), visit);
}

SnapshotBytes State::snapshot_bytes(int64_t parent, int64_t length) const {
  const Slot& any = slots_.front();
  SnapshotBytes bytes;
  bytes.state = sizeof(Header);
  for_each_state_piece(any, [&](const void*, int64_t size) { bytes.state += size; });
  for_each_cache_piece(any, parent, length,
                       [&](const void*, int64_t size) { bytes.caches += size; });
  return bytes;
}

Snapshot State::save(int index, int64_t parent) const {
  const Slot& slot = (*this)[index];
  const SnapshotBytes bytes = snapshot_bytes(parent, slot.length);
  Writer caches(bytes.caches);
  for_each_cache_piece(slot, parent, slot.length, caches);
  Writer state(bytes.state);
  const Header header = {slot.kept, slot.draft.entries, slot.draft.first};
  state(&header, sizeof(header));
  for_each_state_piece(slot, state);
  return {parent, slot.length, caches.take(), state.take()};
}

void State::restore(int index, std::span<const Snapshot> chain) {
  reset(index);
  Slot& slot = (*this)[index];
  for (const Snapshot& snapshot : chain) {
    for_each_cache_piece(slot, snapshot.parent, snapshot.length, Reader(snapshot.caches.get()));
  }
  Reader state(chain.back().state.get());
  Header header;
  state(&header, sizeof(header));
  for_each_state_piece(slot, state);
  slot.length = chain.back().length;
  slot.kept = header.kept;
  slot.rewindable_to = slot.length;
  slot.draft.entries = header.draft_entries;
  slot.draft.first = header.draft_first;
}

// Bytes of all ones are NaN in every cache format.
void State::poison(Slot& slot) {
  const auto fill = [](void* memory, int64_t bytes) {
    std::memset(memory, 0xFF, static_cast<std::size_t>(bytes));
  };
  for_each_state_piece(slot, fill);
  slot.log = 1 - slot.log;
  for_each_state_piece(slot, fill);
  for_each_cache_piece(slot, 0, positions_, fill);
}

}  // namespace levin::runtime::cpu
