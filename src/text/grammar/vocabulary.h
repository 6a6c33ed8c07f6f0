// A tokenizer's vocabulary, arranged so that the tokens that a grammar allows can be found quickly.
// Made once for a tokenizer (about 20 MB and a quarter of a second for 131072 tokens) and shared.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/grammar/automaton.h"
#include "text/tokenizer.h"

namespace levin::text::grammar {

// One bit for each token; bit i % 64 of word i / 64.
using TokenMask = std::vector<uint64_t>;

// Tokens by their bytes. Nodes stand in the order of a walk that visits a node before its children;
// so do the tokens.
class TokenTrie {
 public:
  struct Node {
    uint32_t behind;  // index of the node after all that begin with this one
    uint32_t token;   // index of its first token in tokens()
    uint16_t depth;   // length of its bytes
    uint8_t byte;     // the last of them
  };

  TokenTrie() = default;
  // `bytes` of a token by its id; `ids` are those to take. No token is empty.
  TokenTrie(std::span<const std::string> bytes, std::vector<int32_t> ids);

  // With one more node behind the last.
  std::span<const Node> nodes() const { return nodes_; }
  std::span<const int32_t> tokens() const { return tokens_; }
  // The node of a single byte, or the index of the node behind the last.
  uint32_t child_of_root(uint8_t byte) const { return roots_[byte]; }
  int max_depth() const { return max_depth_; }

 private:
  std::vector<Node> nodes_;
  std::vector<int32_t> tokens_;
  std::array<uint32_t, 256> roots_ = {};
  int max_depth_ = 0;
};

class TokenVocabulary {
 public:
  struct Token {
    std::string bytes;     // of a special token: its content
    bool special = false;  // matches markers of grammars only, never text
  };
  // Token ids are positions. `stop_tokens` end an output; they are allowed when a grammar is
  // complete, and nowhere else. Throws Error for ids outside the vocabulary.
  TokenVocabulary(const std::vector<Token>& tokens, std::vector<int32_t> stop_tokens);
  static std::shared_ptr<const TokenVocabulary> of(const Tokenizer& tokenizer,
                                                   std::vector<int32_t> stop_tokens);

  int32_t size() const { return static_cast<int32_t>(bytes_.size()); }
  std::size_t mask_words() const { return (bytes_.size() + 63) / 64; }
  std::string_view bytes_of(int32_t id) const { return bytes_[static_cast<std::size_t>(id)]; }
  std::span<const int32_t> stop_tokens() const { return stop_tokens_; }
  bool is_stop(int32_t id) const;
  // The special tokens with this content.
  std::vector<int32_t> special_tokens(std::string_view content) const;
  // The content of a special token; empty for others.
  std::string_view special_content(int32_t id) const;

  // All tokens that are text.
  const TokenTrie& text() const { return text_; }
  // Those that are not filler of this kind, or longer than kMaxFillerCharacters.
  const TokenTrie& all_but(Filler kind) const { return all_but_[static_cast<std::size_t>(kind)]; }
  // The tokens that are filler of up to so many characters, of any number when kUnlimited; the
  // longest in question have kMaxFillerCharacters.
  const TokenMask& filler(Filler kind, int32_t characters) const;
  static constexpr int32_t kMaxFillerCharacters = 48;

 private:
  std::vector<std::string> bytes_;
  std::vector<int32_t> stop_tokens_;
  std::unordered_map<int32_t, std::string> special_;
  TokenTrie text_;
  std::array<TokenTrie, kFillers> all_but_;
  std::array<std::vector<TokenMask>, kFillers> filler_;  // [kind][characters]
};

}  // namespace levin::text::grammar
