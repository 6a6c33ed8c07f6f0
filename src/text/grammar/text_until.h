// Free text that ends with a fixed string.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/grammar/automaton.h"
#include "text/grammar/code_points.h"

namespace levin::text::grammar {

struct FreeText {
  std::string end = {};                 // ASCII, with a '<' in it
  std::vector<std::string> never = {};  // must not occur before the end; ASCII, begin with '<'
  bool any_bytes = false;               // otherwise whole characters without control characters
  bool end_is_marker = false;           // `end` may also come as one special token
  // Characters before `end`.
  int32_t min_length = 0;
  int32_t max_length = kUnlimited;
};

// The state behind the first occurrence of the end.
State consume_text_until(AutomatonBuilder& builder, CharacterSets& sets, State from,
                         const FreeText& text);

}  // namespace levin::text::grammar
