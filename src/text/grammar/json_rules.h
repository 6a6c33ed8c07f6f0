// The pieces that JSON grammars are made of. Rules that every schema needs are made once.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/grammar/automaton.h"
#include "text/grammar/code_points.h"

namespace levin::text::grammar {

// White space between two tokens of JSON: a line break and the indentation of 15 levels by two. A
// model cannot go on with spaces for ever.
inline constexpr int kMaxWhiteSpace = 32;

class JsonRules {
 public:
  // `spelling` of strings: kJson or kJsonInTags.
  JsonRules(AutomatonBuilder& builder, Spelling spelling);

  AutomatonBuilder& builder() { return builder_; }
  CharacterSets& sets() { return sets_; }
  Spelling spelling() const { return spelling_; }

  State white_space(State from) { return builder_.after_call(from, white_space_); }
  // Any JSON value; objects and arrays of them.
  State value(State from);
  State object(State from);
  State array(State from);
  // Integers of up to kMaxIntegerDigits; numbers with up to 17 digits behind the point and an
  // exponent of up to two digits.
  State integer(State from);
  State number(State from);
  // A string of so many characters, in quotes.
  State string(State from, int32_t min_length = 0, int32_t max_length = kUnlimited);
  // The key of an object that is none of `names`, in quotes and without escapes.
  State other_key(State from, const std::vector<std::string>& names);
  // One of the texts.
  State one_of(State from, std::vector<std::string> texts);

 private:
  void make_white_space();
  void make_escape();
  void make_value();
  State digits(State from, int at_most);
  State hex(State from, std::string_view first_digits);

  AutomatonBuilder& builder_;
  Spelling spelling_;
  CharacterSets sets_;
  Rule white_space_;
  Rule escape_;
  Rule value_;
  Rule object_;
  Rule array_;
};

}  // namespace levin::text::grammar
