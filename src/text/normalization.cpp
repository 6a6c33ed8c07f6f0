// to_nfc of unicode.h: decompose canonically, put combining marks in order, compose again (Unicode
// Standard Annex 15 and chapter 3.11).
#include <algorithm>
#include <unordered_map>
#include <vector>

#include "text/unicode.h"
#include "text/unicode_tables.h"
#include "text/utf8.h"

namespace levin::text {
namespace {

// Hangul syllables are composed by arithmetic (chapter 3.12).
constexpr char32_t kSyllables = 0xAC00, kLeads = 0x1100, kVowels = 0x1161, kTails = 0x11A7;
constexpr char32_t kLeadCount = 19, kVowelCount = 21, kTailCount = 28;
constexpr char32_t kSyllableCount = kLeadCount * kVowelCount * kTailCount;

struct Mark {
  char32_t code_point;
  int combining_class;
};

int combining_class_of(char32_t c) {
  const auto it = std::upper_bound(
      kCombiningClasses.begin(), kCombiningClasses.end(), c,
      [](char32_t value, const CombiningRange& range) { return value < range.first; });
  if (it == kCombiningClasses.begin() || c > (it - 1)->last) return 0;
  return (it - 1)->combining_class;
}

void decompose(char32_t c, std::vector<Mark>& out) {
  if (c >= kSyllables && c < kSyllables + kSyllableCount) {
    const char32_t index = c - kSyllables;
    out.push_back({kLeads + index / (kVowelCount * kTailCount), 0});
    out.push_back({kVowels + index / kTailCount % kVowelCount, 0});
    if (index % kTailCount != 0) out.push_back({kTails + index % kTailCount, 0});
    return;
  }
  const auto it =
      std::lower_bound(kDecompositions.begin(), kDecompositions.end(), c,
                       [](const Decomposition& d, char32_t value) { return d.code_point < value; });
  if (it == kDecompositions.end() || it->code_point != c) {
    out.push_back({c, combining_class_of(c)});
    return;
  }
  decompose(it->first, out);
  if (it->second != 0) decompose(it->second, out);
}

// The character that `first` and `second` compose to, or 0.
char32_t compose(char32_t first, char32_t second) {
  if (first >= kLeads && first < kLeads + kLeadCount && second >= kVowels &&
      second < kVowels + kVowelCount) {
    return kSyllables + ((first - kLeads) * kVowelCount + (second - kVowels)) * kTailCount;
  }
  if (first >= kSyllables && first < kSyllables + kSyllableCount &&
      (first - kSyllables) % kTailCount == 0 && second > kTails && second < kTails + kTailCount) {
    return first + (second - kTails);
  }
  static const std::unordered_map<uint64_t, char32_t> pairs = [] {
    std::unordered_map<uint64_t, char32_t> map;
    for (const Decomposition& d : kDecompositions) {
      if (d.composes) map.emplace(uint64_t{d.first} << 32 | d.second, d.code_point);
    }
    return map;
  }();
  const auto it = pairs.find(uint64_t{first} << 32 | second);
  return it == pairs.end() ? 0 : it->second;
}

// Stable sort by combining class of every run of marks (class above 0).
void order_marks(std::vector<Mark>& text) {
  for (auto begin = text.begin(); begin != text.end();) {
    if (begin->combining_class == 0) {
      ++begin;
      continue;
    }
    const auto end =
        std::find_if(begin, text.end(), [](const Mark& m) { return m.combining_class == 0; });
    std::stable_sort(begin, end, [](const Mark& a, const Mark& b) {
      return a.combining_class < b.combining_class;
    });
    begin = end;
  }
}

// Joins each mark with the last starter before it, unless a mark in between blocks it: one that
// stayed and whose class is not lower.
void compose_in_place(std::vector<Mark>& text) {
  std::size_t kept = 0;
  std::size_t starter = text.size();
  int blocking = -1;  // class of the last character kept since the starter; -1 for none
  for (const Mark mark : text) {
    if (starter < kept && blocking < mark.combining_class) {
      const char32_t joined = compose(text[starter].code_point, mark.code_point);
      if (joined != 0) {
        text[starter].code_point = joined;
        continue;
      }
    }
    if (mark.combining_class == 0) {
      starter = kept;
      blocking = -1;
    } else {
      blocking = mark.combining_class;
    }
    text[kept++] = mark;
  }
  text.resize(kept);
}

}  // namespace

std::string to_nfc(std::string_view text) {
  // Nothing below U+0300 changes unless a mark follows, so most text is done here.
  bool changes = false;
  for_each_character(text, [&](char32_t c, std::string_view) { changes |= c >= 0x300; });
  if (!changes) return std::string(text);
  std::vector<Mark> marks;
  marks.reserve(text.size());
  for_each_character(text, [&](char32_t c, std::string_view) { decompose(c, marks); });
  order_marks(marks);
  compose_in_place(marks);
  std::string out;
  out.reserve(text.size());
  for (const Mark& mark : marks) append_utf8(out, mark.code_point);
  return out;
}

}  // namespace levin::text
