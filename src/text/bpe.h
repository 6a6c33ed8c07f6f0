// Byte-pair encoding of one word: start from bytes, join the pair of lowest rank until none is
// left.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

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
    // A pair that could be joined, as it was when it was pushed.
    struct Candidate {
      int32_t rank;
      int32_t position;  // of the left symbol
      int32_t left;
      int32_t right;
      int32_t result;
    };
    std::vector<Symbol> symbols_;
    std::vector<Candidate> heap_;  // lowest rank first, then leftmost
  };

  // Appends the tokens of `word`, at most 2^31 - 1 bytes. O(n log n).
  void encode(std::string_view word, Workspace& workspace, std::vector<int32_t>& out) const;

 private:
  void push_candidate(Workspace& workspace, int32_t position) const;

  std::array<int32_t, 256> byte_tokens_;
  MergeTable merges_;
};

}  // namespace levin::text
