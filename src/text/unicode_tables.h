// Tables behind unicode.h, sorted by code point. The .cpp is generated from Python's Unicode
// database by tools/make_unicode_tables.py.
#pragma once

#include <cstdint>
#include <span>

namespace levin::text {

struct CodeRange {
  char32_t first;
  char32_t last;
};

// Every `step`-th code point from first to last maps to itself + delta.
struct CaseRange {
  char32_t first;
  char32_t last;
  int32_t step;
  int32_t delta;
};

// A code point that maps to several, given in UTF-8.
struct CaseSpecial {
  char32_t code_point;
  const char* mapped;
};

struct CombiningRange {
  char32_t first;
  char32_t last;
  int32_t combining_class;
};

// Canonical decomposition: `second` is 0 for a singleton; `composes` when NFC builds it again.
struct Decomposition {
  char32_t code_point;
  char32_t first;
  char32_t second;
  bool composes;
};

extern const std::span<const CaseRange> kUpperRanges;
extern const std::span<const CaseSpecial> kUpperSpecials;
extern const std::span<const CaseRange> kLowerRanges;
extern const std::span<const CaseSpecial> kLowerSpecials;
// Title case where it differs from upper case.
extern const std::span<const CaseRange> kTitleRanges;
extern const std::span<const CaseSpecial> kTitleSpecials;
extern const std::span<const CodeRange> kNotPrintable;
extern const std::span<const CodeRange> kCased;
extern const std::span<const CodeRange> kCaseIgnorable;
extern const std::span<const CombiningRange> kCombiningClasses;
extern const std::span<const Decomposition> kDecompositions;

}  // namespace levin::text
