// What may come next, said from outside: a grammar, or a list of tokens. Speculation needs no extra
// rule, since every token is chosen, and then accepted, in order (round.h).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace levin::engine {

// Follows the output of one request. Called by the engine thread, for every token: must be quick.
class TokenFilter {
 public:
  virtual ~TokenFilter() = default;
  // Sets the bits of the tokens that may come next, at least one of them; bit i % 64 of word i / 64
  // is token i. `mask` has a bit for every row of the vocabulary.
  virtual void allowed(std::span<uint64_t> mask) = 0;
  // The token that was chosen among them.
  virtual void accept(int32_t token) = 0;
};

// Only these tokens (at least one), all the time.
std::shared_ptr<TokenFilter> make_allowed_tokens(std::vector<int32_t> tokens);

}  // namespace levin::engine
