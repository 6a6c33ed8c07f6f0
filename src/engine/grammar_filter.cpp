#include "engine/grammar_filter.h"

#include <utility>

#include "text/grammar/matcher.h"

namespace levin::engine {
namespace {

class GrammarFilter : public TokenFilter {
 public:
  GrammarFilter(std::shared_ptr<const text::grammar::Grammar> grammar,
                std::shared_ptr<const text::grammar::TokenVocabulary> vocabulary)
      : matcher_(std::move(grammar), std::move(vocabulary)) {}

  void allowed(std::span<uint64_t> mask) override { matcher_.allowed(mask); }
  // Tokens behind the end of the grammar are refused; there the output has ended.
  void accept(int32_t token) override { matcher_.accept(token); }

 private:
  text::grammar::GrammarMatcher matcher_;
};

}  // namespace

std::shared_ptr<TokenFilter> make_grammar_filter(
    std::shared_ptr<const text::grammar::Grammar> grammar,
    std::shared_ptr<const text::grammar::TokenVocabulary> vocabulary) {
  return std::make_shared<GrammarFilter>(std::move(grammar), std::move(vocabulary));
}

}  // namespace levin::engine
