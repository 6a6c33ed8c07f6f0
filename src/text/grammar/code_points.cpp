#include "text/grammar/code_points.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

namespace levin::text::grammar {
namespace {

constexpr char32_t kLastCodePoint = 0x10FFFF;
const CodePointSet kAll = {{0, 0xD7FF}, {0xE000, kLastCodePoint}};
const CodePointSet kBeyondAscii = {{0x80, 0xD7FF}, {0xE000, kLastCodePoint}};

// Consumes the numbers first..last of `digits` digits of six bits, the leading one added to `lead`,
// the others to 0x80: UTF-8 is that.
void consume_digits(AutomatonBuilder& builder, State from, char32_t first, char32_t last,
                    int digits, char32_t lead, State to) {
  const int shift = 6 * (digits - 1);
  const char32_t below = (char32_t{1} << shift) - 1;
  const auto symbol = [&](char32_t number) {
    return static_cast<Symbol>(lead + (number >> shift));
  };
  while (first <= last) {
    // Either within one leading digit, or whole leading digits.
    char32_t stop = std::min<char32_t>(last, first | below);
    if ((first & below) == 0 && ((last + 1) & ~below) > first) stop = ((last + 1) & ~below) - 1;
    if (digits == 1) {
      builder.consume(from, symbol(first), symbol(last), to);
      return;
    }
    const State next = builder.add_state();
    builder.consume(from, symbol(first), symbol(stop), next);
    consume_digits(builder, next, first & below, stop & below, digits - 1, 0x80, to);
    first = stop + 1;
  }
}

}  // namespace

Filler filler_of(Spelling spelling) {
  switch (spelling) {
    case Spelling::kJson:
      return Filler::kJsonString;
    case Spelling::kJsonInTags:
      return Filler::kJsonInTags;
    case Spelling::kPlain:
      return Filler::kPlainText;
  }
  return Filler::kNone;
}

CodePointSet to_set(std::vector<CodePointRange> ranges) {
  std::sort(ranges.begin(), ranges.end());
  CodePointSet set;
  for (const CodePointRange& range : ranges) {
    if (!set.empty() && range.first <= set.back().last + 1) {
      set.back().last = std::max(set.back().last, range.last);
    } else {
      set.push_back(range);
    }
  }
  return intersect(set, kAll);
}

CodePointSet complement(const CodePointSet& set) {
  CodePointSet rest;
  char32_t next = 0;
  for (const CodePointRange& range : set) {
    if (range.first > next) rest.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next <= kLastCodePoint) rest.push_back({next, kLastCodePoint});
  return intersect(rest, kAll);
}

CodePointSet intersect(const CodePointSet& a, const CodePointSet& b) {
  CodePointSet both;
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const char32_t first = std::max(a[i].first, b[j].first);
    const char32_t last = std::min(a[i].last, b[j].last);
    if (first <= last) both.push_back({first, last});
    if (a[i].last < b[j].last) {
      ++i;
    } else {
      ++j;
    }
  }
  return both;
}

void CharacterSets::consume(State from, const CodePointSet& set, Spelling spelling, State to) {
  consume_plain_ascii(from, set, spelling, to);
  if (spelling != Spelling::kPlain) consume_escaped(from, set, to);
  const CodePointSet wide = intersect(set, kBeyondAscii);
  if (!wide.empty()) builder_.call(from, beyond_ascii(wide), to);
}

void CharacterSets::consume_plain_ascii(State from, const CodePointSet& set, Spelling spelling,
                                        State to) {
  static const CodePointSet kInJson = {{0x20, 0x21}, {0x23, 0x5B}, {0x5D, 0x7F}};
  static const CodePointSet kInPlain = {{0x09, 0x0A}, {0x0D, 0x0D}, {0x20, 0x3B}, {0x3D, 0x7F}};
  static const CodePointSet kInTags = {{0x20, 0x21}, {0x23, 0x3B}, {0x3D, 0x5B}, {0x5D, 0x7F}};
  const CodePointSet& plain = spelling == Spelling::kJson         ? kInJson
                              : spelling == Spelling::kJsonInTags ? kInTags
                                                                  : kInPlain;
  for (const auto& range : intersect(set, plain)) {
    builder_.consume(from, static_cast<Symbol>(range.first), static_cast<Symbol>(range.last), to);
  }
}

void CharacterSets::consume_escaped(State from, const CodePointSet& set, State to) {
  static const CodePointSet kEscaped = {{0x00, 0x1F}, {0x22, 0x22}, {0x5C, 0x5C}};
  constexpr std::array<std::pair<char32_t, char>, 7> kShort = {
      {{'"', '"'}, {'\\', '\\'}, {'\b', 'b'}, {'\f', 'f'}, {'\n', 'n'}, {'\r', 'r'}, {'\t', 't'}}};
  const CodePointSet escaped = intersect(set, kEscaped);
  if (escaped.empty()) return;
  const State slash = builder_.literal(from, "\\");
  for (const auto& range : escaped) {
    for (char32_t c = range.first; c <= range.last; ++c) {
      const auto found =
          std::ranges::find(kShort, c, [](const auto& escape) { return escape.first; });
      if (found != kShort.end()) {
        builder_.consume(slash, static_cast<uint8_t>(found->second),
                         static_cast<uint8_t>(found->second), to);
        continue;
      }
      const State digit = builder_.literal(slash, c < 0x10 ? "u000" : "u001");
      const char lower = "0123456789abcdef"[c & 0xF];
      builder_.consume(digit, static_cast<uint8_t>(lower), static_cast<uint8_t>(lower), to);
    }
  }
}

const Rule& CharacterSets::beyond_ascii(const CodePointSet& set) {
  const auto found = rules_.find(set);
  if (found != rules_.end()) return found->second;
  const Rule rule = builder_.add_rule("a set of characters");
  struct Length {
    char32_t first;
    char32_t last;
    int bytes;
    char32_t lead;
  };
  constexpr std::array<Length, 3> kLengths = {
      {{0x80, 0x7FF, 2, 0xC0}, {0x800, 0xFFFF, 3, 0xE0}, {0x10000, kLastCodePoint, 4, 0xF0}}};
  for (const Length& form : kLengths) {
    for (const auto& range : intersect(set, {{form.first, form.last}})) {
      consume_digits(builder_, rule.start, range.first, range.last, form.bytes, form.lead,
                     rule.end);
    }
  }
  return rules_.emplace(set, rule).first->second;
}

}  // namespace levin::text::grammar
