// Sets of characters, and how an automaton consumes one of them.
#pragma once

#include <map>
#include <vector>

#include "text/grammar/automaton.h"

namespace levin::text::grammar {

struct CodePointRange {
  char32_t first;
  char32_t last;
  bool operator==(const CodePointRange&) const = default;
  bool operator<(const CodePointRange& other) const {
    return first != other.first ? first < other.first : last < other.last;
  }
};
// Sorted, not overlapping or touching, without surrogates.
using CodePointSet = std::vector<CodePointRange>;

CodePointSet to_set(std::vector<CodePointRange> ranges);
CodePointSet complement(const CodePointSet& set);
CodePointSet intersect(const CodePointSet& a, const CodePointSet& b);

// How characters are spelled.
enum class Spelling : uint8_t {
  kJson,        // inside a JSON string: '"', '\' and control characters by their shortest escape
  kJsonInTags,  // the same without '<', where JSON stands between tags
  kPlain        // UTF-8 as it is; '<' and control characters but \t, \n and \r cannot occur
};

// The text that goes on and on in this spelling.
Filler filler_of(Spelling spelling);

// Consumes single characters. Sets with characters beyond ASCII become rules that are shared.
class CharacterSets {
 public:
  explicit CharacterSets(AutomatonBuilder& builder) : builder_(builder) {}

  void consume(State from, const CodePointSet& set, Spelling spelling, State to);

 private:
  void consume_plain_ascii(State from, const CodePointSet& set, Spelling spelling, State to);
  void consume_escaped(State from, const CodePointSet& set, State to);
  // The rule for the part of a set that is not ASCII, in UTF-8.
  const Rule& beyond_ascii(const CodePointSet& set);

  AutomatonBuilder& builder_;
  std::map<CodePointSet, Rule> rules_;
};

}  // namespace levin::text::grammar
