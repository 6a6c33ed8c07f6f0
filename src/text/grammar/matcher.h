// Follows a grammar token by token: which tokens may come, and whether the output is complete.
//
//    GrammarMatcher matcher(grammar, vocabulary);
//    matcher.allowed(mask);           // for the row of logits that chooses the next token
//    matcher.accept(token);           // for every token put out
//    matcher.rollback(2);             // drafts that were rejected
//
// With drafts: ask for the mask of each row, accept its draft to get to the next, stop at the first
// draft that accept() refuses, and in the end roll back what was not put out.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/grammar/configurations.h"
#include "text/grammar/grammar.h"
#include "text/grammar/vocabulary.h"

namespace levin::text::grammar {

// One for each request; not to be used by two threads at once.
class GrammarMatcher {
 public:
  GrammarMatcher(std::shared_ptr<const Grammar> grammar,
                 std::shared_ptr<const TokenVocabulary> vocabulary);

  // Sets the bits of the tokens that may come next. `mask` has at least
  // TokenVocabulary::mask_words() words; those behind are cleared. Some token is always allowed
  // when the vocabulary has all single bytes and a stop token.
  void allowed(std::span<uint64_t> mask);
  // Goes on with a token. False, and nothing has changed, when it is not allowed.
  bool accept(int32_t token);
  // Takes the last tokens back. At least kMaxRollback of them can be; false, and nothing has
  // changed, when that is no longer possible.
  bool rollback(std::size_t tokens);
  static constexpr std::size_t kMaxRollback = 256;

  // Whether the output may end here, and whether a stop token has ended it. Behind that only stop
  // tokens are allowed.
  bool is_complete() const { return configurations_.is_complete(current()); }
  bool finished() const { return finished_at_ > 0; }
  // Tokens accepted and not taken back.
  std::size_t size() const { return history_.size() - 1; }

 private:
  int32_t current() const { return history_.back(); }
  // The configuration behind a token, or kDead.
  int32_t follow(int32_t configuration, int32_t token);
  const TokenMask& mask_of(int32_t configuration);
  // Adds the tokens that configuration in_use_[slot] allows: one stack in the middle of free text;
  // or those in nodes `begin` to `end` of a trie, which are whole subtrees below the root.
  void add_filler(std::size_t slot, const FillerText& filler, TokenMask& mask);
  void walk(std::size_t slot, const TokenTrie& trie, uint32_t begin, uint32_t end, TokenMask& mask);
  void make_room();

  std::shared_ptr<const Grammar> grammar_;
  std::shared_ptr<const TokenVocabulary> vocabulary_;
  Configurations configurations_;
  std::unordered_map<int32_t, int> marker_of_;  // special tokens that the grammar knows
  std::vector<int32_t> history_;  // configurations: at the start, and behind each token
  std::size_t finished_at_ = 0;   // length of the history behind the stop token
  std::unordered_map<int32_t, TokenMask> masks_;  // by configuration
  std::vector<int32_t> in_use_;                   // configurations a mask is made from
  std::vector<int32_t> path_;                     // configurations along a walk
};

}  // namespace levin::text::grammar
