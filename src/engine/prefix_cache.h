// Prompts that need not be read again: snapshots of sequences, found by their tokens.
//
// A sequence of a hybrid model cannot be cut at any token: its recurrent state is that of one
// length. So a prefix is reused up to a length at which a snapshot was taken, and a snapshot has
// everything: keys and values, convolution windows, SSM states, the draft head's cache and inputs,
// all of the same token.
//
// Snapshots of a prefix and its continuations form a tree, each node holding the cache entries of
// its own part. The least recently used leaf is given up first, so parents stay while they have
// children. When the prefix of a new snapshot takes up half of the budget by itself, recurrent
// states of its nodes are given up instead, where their neighbours are closest; their cache entries
// stay, since the new snapshot needs them.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "runtime/runtime.h"

namespace levin::engine {

struct PrefixCacheStats {
  // Counters.
  int64_t queries = 0;
  int64_t hits = 0;
  int64_t query_tokens = 0;
  int64_t hit_tokens = 0;
  int64_t saved = 0;
  int64_t evicted = 0;  // snapshots given up
  int64_t thinned = 0;  // recurrent states given up
  int64_t refused = 0;  // snapshots that found no room
  // Gauges.
  int64_t snapshots = 0;
  int64_t bytes = 0;
};

// Used by one thread.
class PrefixCache {
 public:
  // `runtime` must have snapshots and outlive the cache.
  PrefixCache(runtime::Runtime& runtime, int64_t budget_bytes);

  // Puts the longest saved prefix of `tokens` that has at most `longest` of them into the slot and
  // returns its length; or resets the slot and returns 0.
  int64_t restore(int slot, std::span<const int32_t> tokens, int64_t longest);
  // Saves the sequence in the slot, which is `tokens` (at least one). False when it does not fit.
  bool save(int slot, std::span<const int32_t> tokens);

  const PrefixCacheStats& stats() const { return stats_; }
  int64_t budget_bytes() const { return budget_; }

 private:
  struct Node;
  using Place = std::list<Node>::iterator;
  struct Node {
    uint64_t hash = 0;            // of all tokens up to the snapshot's length
    std::vector<int32_t> tokens;  // of the snapshot's own part
    runtime::Snapshot snapshot;
    runtime::SnapshotBytes bytes;
    std::optional<Place> parent;
    int children = 0;
  };

  std::optional<Place> find(std::span<const int32_t> tokens, int64_t longest, bool with_state);
  bool holds(Place node, std::span<const int32_t> tokens) const;
  std::vector<Place> chain_of(std::optional<Place> node) const;  // from the root
  void touch(std::optional<Place> node);
  bool make_room(int64_t bytes, std::optional<Place> parent, int64_t end);
  bool thin(const std::vector<Place>& chain, int64_t end);
  void drop(Place node);
  bool add(int slot, std::span<const int32_t> tokens, uint64_t hash);
  bool add_state(int slot, Place node);

  runtime::Runtime& runtime_;
  int64_t budget_;
  std::list<Node> nodes_;  // most recently used first; ancestors before their descendants
  std::unordered_map<uint64_t, Place> by_hash_;
  std::map<int64_t, int> lengths_;  // of snapshots, and how many have it
  PrefixCacheStats stats_;
};

struct SnapshotSpacing {
  int64_t stride = 512;   // 0: none but at the ends of turns and of the prompt
  int64_t gap = 32;       // least tokens between two
  int64_t alignment = 1;  // all lengths are multiples of it (prompt_cuts.h)
};

// Lengths of a prompt at which to take snapshots, ascending: one token before its end, so that the
// same prompt again costs one token, and before that the ends of turns and the multiples of the
// stride, at least a gap apart; each rounded down to the alignment. Each is one more step until the
// first token, so multiples of the stride keep the gap to the end too; the end of a turn, which
// other prompts are likely to share, a quarter of it. None is at `cached` or below.
std::vector<int64_t> snapshot_lengths(int64_t prompt_tokens, int64_t cached,
                                      std::span<const int64_t> turn_ends,
                                      const SnapshotSpacing& spacing);

}  // namespace levin::engine
