// Byte-pair encoding of one word: start from bytes, join the pair of lowest rank until none is
// left.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "text/interrupt.h"

namespace levin::text {

// (left, right) -> (rank, result), with open addressing: the one lookup BPE makes all the time.
class MergeTable {
 public:
  // Room for `count` merges.
  explicit MergeTable(std::size_t count);

  // Ranks follow the order of calls; lower ones are joined first. False when the pair is there
  // already.
  bool add(int32_t left, int32_t right, int32_t result);

  struct Entry {
    uint64_t pair = kNone;
    int32_t rank = 0;
    int32_t result = 0;
  };
  // Null when the pair does not merge.
  const Entry* find(int32_t left, int32_t right) const;

 private:
  static constexpr uint64_t kNone = ~uint64_t{0};
  std::size_t slot_of(uint64_t pair) const;

  std::vector<Entry> entries_;  // a power of two, at most half full
  int shift_ = 0;
  int32_t next_rank_ = 0;
};

class Bpe {
 public:
  // `byte_tokens[b]` is the token of the single byte b.
  Bpe(const std::array<int32_t, 256>& byte_tokens, MergeTable merges)
      : byte_tokens_(byte_tokens), merges_(std::move(merges)) {}

  // Memory that is used again for every word of a text.
  class Workspace {
    friend class Bpe;
    struct Symbol {
      int32_t token;  // -1 once joined into its left neighbour
      int32_t previous;
      int32_t next;
    };
    // The left symbols of pairs of one rank, as they were when they were pushed.
    struct Pairs {
      std::vector<int32_t> positions = {};
      std::size_t done = 0;  // of them
      bool ascending = true;
    };
    std::vector<Symbol> symbols_;
    std::unordered_map<int32_t, Pairs> pairs_;  // by rank
    std::vector<int32_t> ranks_;                // of pairs_, a heap with the lowest on top
    std::vector<int32_t> tokens_;               // of a short word
    std::vector<int32_t> token_ranks_;          // of each with its right neighbour
  };

  // Appends the tokens of `word`, at most 2^31 - 1 bytes. Near-linear where merges come after those
  // that make their parts, as in every trained vocabulary. `interrupt` may be null; otherwise it is
  // called now and then, and what it throws ends the work.
  void encode(std::string_view word, Workspace& workspace, std::vector<int32_t>& out,
              const Interrupt& interrupt = {}) const;

 private:
  void encode_short(std::string_view word, Workspace& workspace, std::vector<int32_t>& out) const;
  void push_pair(Workspace& workspace, int32_t position) const;
  void join_all(Workspace& workspace, int32_t rank) const;

  std::array<int32_t, 256> byte_tokens_;
  MergeTable merges_;
};

}  // namespace levin::text
