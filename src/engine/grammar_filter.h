// Output that a grammar has to accept (text/grammar/grammar.h).
#pragma once

#include <memory>

#include "engine/token_filter.h"
#include "text/grammar/grammar.h"
#include "text/grammar/vocabulary.h"

namespace levin::engine {

// `vocabulary` is that of the engine's tokenizer and stop tokens, of which there is at least one:
// the output ends with one, so the request must not ignore them or ask for more tokens than the
// grammar gives.
std::shared_ptr<TokenFilter> make_grammar_filter(
    std::shared_ptr<const text::grammar::Grammar> grammar,
    std::shared_ptr<const text::grammar::TokenVocabulary> vocabulary);

}  // namespace levin::engine
