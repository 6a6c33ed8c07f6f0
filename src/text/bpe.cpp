#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>

namespace levin::text {
namespace {

constexpr std::size_t kShortWord = 64;  // bytes
constexpr int32_t kNever = std::numeric_limits<int32_t>::max();

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

// The definition, which is fastest for words of a few letters.
void Bpe::encode_short(std::string_view word, Workspace& workspace,
                       std::vector<int32_t>& out) const {
  auto& tokens = workspace.tokens_;
  auto& ranks = workspace.token_ranks_;
  tokens.clear();
  for (const char byte : word) tokens.push_back(byte_tokens_[static_cast<uint8_t>(byte)]);
  const auto rank_at = [&](std::size_t i) {
    if (i + 1 >= tokens.size()) return kNever;
    const MergeTable::Entry* entry = merges_.find(tokens[i], tokens[i + 1]);
    return entry == nullptr ? kNever : entry->rank;
  };
  ranks.assign(tokens.size(), kNever);
  for (std::size_t i = 0; i < tokens.size(); ++i) ranks[i] = rank_at(i);
  while (true) {
    const auto lowest = std::min_element(ranks.begin(), ranks.end());
    if (lowest == ranks.end() || *lowest == kNever) break;
    const auto i = static_cast<std::size_t>(lowest - ranks.begin());
    tokens[i] = merges_.find(tokens[i], tokens[i + 1])->result;
    tokens.erase(tokens.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    ranks.erase(lowest + 1);
    ranks[i] = rank_at(i);
    if (i > 0) ranks[i - 1] = rank_at(i - 1);
  }
  out.insert(out.end(), tokens.begin(), tokens.end());
}

void Bpe::push_pair(Workspace& workspace, int32_t position) const {
  const auto& symbol = workspace.symbols_[static_cast<std::size_t>(position)];
  if (symbol.next < 0) return;
  const int32_t right = workspace.symbols_[static_cast<std::size_t>(symbol.next)].token;
  const MergeTable::Entry* entry = merges_.find(symbol.token, right);
  if (entry == nullptr) return;
  const auto [place, fresh] = workspace.pairs_.try_emplace(entry->rank);
  auto& [positions, done, ascending] = place->second;
  ascending = ascending && (positions.empty() || positions.back() <= position);
  positions.push_back(position);
  if (!fresh) return;
  workspace.ranks_.push_back(entry->rank);
  std::push_heap(workspace.ranks_.begin(), workspace.ranks_.end(), std::greater<>());
}

// Joins pairs of `rank`, the lowest, from left to right, until there is none or one of a lower
// rank.
void Bpe::join_all(Workspace& workspace, int32_t rank) const {
  auto at = [&](int32_t position) -> auto& {
    return workspace.symbols_[static_cast<std::size_t>(position)];
  };
  auto& pairs = workspace.pairs_.at(rank);
  while (workspace.ranks_.front() == rank) {
    if (pairs.done == pairs.positions.size()) {
      std::pop_heap(workspace.ranks_.begin(), workspace.ranks_.end(), std::greater<>());
      workspace.ranks_.pop_back();
      workspace.pairs_.erase(rank);
      return;
    }
    if (!std::exchange(pairs.ascending, true)) {
      std::sort(pairs.positions.begin() + static_cast<std::ptrdiff_t>(pairs.done),
                pairs.positions.end());
    }
    const int32_t position = pairs.positions[pairs.done++];
    auto& left = at(position);
    // A join since the push may have changed either side; then the pair is no more.
    if (left.token < 0 || left.next < 0) continue;
    auto& right = at(left.next);
    const MergeTable::Entry* entry = merges_.find(left.token, right.token);
    if (entry == nullptr || entry->rank != rank) continue;
    left.token = entry->result;
    left.next = right.next;
    right.token = -1;
    if (left.next >= 0) at(left.next).previous = position;
    if (left.previous >= 0) push_pair(workspace, left.previous);
    push_pair(workspace, position);
  }
}

// Rank by rank, each from left to right: a pass over memory, where a heap of all pairs would jump
// about in it.
void Bpe::encode(std::string_view word, Workspace& workspace, std::vector<int32_t>& out,
                 const Interrupt& interrupt) const {
  if (word.size() <= kShortWord) return encode_short(word, workspace, out);
  auto& symbols = workspace.symbols_;
  const auto count = static_cast<int32_t>(word.size());
  symbols.clear();
  workspace.pairs_.clear();
  workspace.ranks_.clear();
  for (int32_t i = 0; i < count; ++i) {
    const auto byte = static_cast<uint8_t>(word[static_cast<std::size_t>(i)]);
    symbols.push_back({byte_tokens_[byte], i - 1, i + 1 < count ? i + 1 : -1});
  }
  for (int32_t i = 0; i < count; ++i) push_pair(workspace, i);
  while (!workspace.ranks_.empty()) {
    if (interrupt) interrupt();
    join_all(workspace, workspace.ranks_.front());
  }
  for (int32_t i = 0; i >= 0; i = symbols[static_cast<std::size_t>(i)].next) {
    out.push_back(symbols[static_cast<std::size_t>(i)].token);
  }
}

}  // namespace levin::text
