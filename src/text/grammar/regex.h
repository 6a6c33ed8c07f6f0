// Regular expressions as JSON schema's `pattern` holds them (ECMA-262), without what looks around:
//
//   supported   literals, ., [...] with ranges and negation, \d \D \w \W \s \S, \t \n \r \f \v \0,
//               \xHH, \uHHHH, escaped punctuation, groups ( ) and (?: ), |, * + ? {m} {m,} {m,n}
//               (lazy forms too), ^ at the begin and $ at the end of an alternative of the whole
//   refused     look-around, backreferences, \b, \B, \p, named groups, anchors elsewhere
//
// Without anchors the pattern may match anywhere in the text.
#pragma once

#include <string>
#include <string_view>

#include "text/grammar/automaton.h"
#include "text/grammar/code_points.h"

namespace levin::text::grammar {

// Repetition counts, and how deep groups may be nested.
inline constexpr int kMaxRepeats = 1000;
inline constexpr int kMaxGroups = 50;

// Consumes a text that `pattern` matches. The state behind it. `where` names the pattern in errors.
State consume_pattern(AutomatonBuilder& builder, CharacterSets& sets, State from,
                      std::string_view pattern, Spelling spelling, const std::string& where);

}  // namespace levin::text::grammar
