#include "text/bpe.h"

#include <algorithm>
#include <bit>

namespace levin::text {
namespace {

uint64_t pair_of(int32_t left, int32_t right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

}  // namespace

MergeTable::MergeTable(std::size_t count) {
  const std::size_t capacity = std::bit_ceil(std::max<std::size_t>(2 * count, 16));
  entries_.resize(capacity);
  shift_ = 64 - std::countr_zero(capacity);
}

bool MergeTable::add(int32_t left, int32_t right, int32_t result) {
  Entry& entry = entries_[slot_of(pair_of(left, right))];
  if (entry.pair != kNone) return false;
  entry = {pair_of(left, right), next_rank_++, result};
  return true;
}

// The slot that holds `pair`, or the empty one where it belongs.
std::size_t MergeTable::slot_of(uint64_t pair) const {
  // Fibonacci hashing: the high bits of a product with 2^64 / golden ratio.
  std::size_t slot = (pair * 0x9E3779B97F4A7C15u) >> shift_;
  while (entries_[slot].pair != kNone && entries_[slot].pair != pair) {
    slot = (slot + 1) & (entries_.size() - 1);
  }
  return slot;
}

const MergeTable::Entry* MergeTable::find(int32_t left, int32_t right) const {
  const Entry& entry = entries_[slot_of(pair_of(left, right))];
  return entry.pair == kNone ? nullptr : &entry;
}

void Bpe::push_candidate(Workspace& workspace, int32_t position) const {
  const auto& symbol = workspace.symbols_[static_cast<std::size_t>(position)];
  if (symbol.next < 0) return;
  const int32_t right = workspace.symbols_[static_cast<std::size_t>(symbol.next)].token;
  const MergeTable::Entry* entry = merges_.find(symbol.token, right);
  if (entry == nullptr) return;
  workspace.heap_.push_back({entry->rank, position, symbol.token, right, entry->result});
}

void Bpe::encode(std::string_view word, Workspace& workspace, std::vector<int32_t>& out) const {
  using Candidate = Workspace::Candidate;
  auto later = [](const Candidate& a, const Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
  };
  auto& symbols = workspace.symbols_;
  auto& heap = workspace.heap_;
  const auto count = static_cast<int32_t>(word.size());
  symbols.clear();
  heap.clear();
  for (int32_t i = 0; i < count; ++i) {
    const auto byte = static_cast<uint8_t>(word[static_cast<std::size_t>(i)]);
    symbols.push_back({byte_tokens_[byte], i - 1, i + 1 < count ? i + 1 : -1});
  }
  for (int32_t i = 0; i < count; ++i) push_candidate(workspace, i);
  std::make_heap(heap.begin(), heap.end(), later);

  auto at = [&](int32_t position) -> auto& {
    return symbols[static_cast<std::size_t>(position)];
  };
  auto consider = [&](int32_t position) {
    const std::size_t before = heap.size();
    push_candidate(workspace, position);
    if (heap.size() > before) std::push_heap(heap.begin(), heap.end(), later);
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const Candidate best = heap.back();
    heap.pop_back();
    auto& left = at(best.position);
    // A join since the push may have changed either side; then the candidate is void.
    if (left.token != best.left || left.next < 0 || at(left.next).token != best.right) continue;
    auto& right = at(left.next);
    left.token = best.result;
    left.next = right.next;
    right.token = -1;
    if (left.next >= 0) at(left.next).previous = best.position;
    if (left.previous >= 0) consider(left.previous);
    consider(best.position);
  }
  for (int32_t i = 0; i >= 0 && i < count; i = at(i).next) out.push_back(at(i).token);
}

}  // namespace levin::text
