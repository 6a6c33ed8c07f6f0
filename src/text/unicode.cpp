#include "text/unicode.h"

#include <algorithm>
#include <span>

#include "text/unicode_tables.h"
#include "text/utf8.h"

namespace levin::text {
namespace {

// The range of a sorted table that holds `code_point`, or null.
template <typename Range>
const Range* find_range(std::span<const Range> ranges, char32_t code_point) {
  const auto it = std::upper_bound(ranges.begin(), ranges.end(), code_point,
                                   [](char32_t c, const Range& range) { return c < range.first; });
  if (it == ranges.begin()) return nullptr;
  const Range& range = *(it - 1);
  return code_point <= range.last ? &range : nullptr;
}

// Appends what `code_point` maps to; false when the tables do not mention it.
bool append_mapped(std::string& out, char32_t code_point, std::span<const CaseRange> ranges,
                   std::span<const CaseSpecial> specials) {
  const CaseRange* range = find_range(ranges, code_point);
  if (range != nullptr && (code_point - range->first) % static_cast<char32_t>(range->step) == 0) {
    append_utf8(out, static_cast<char32_t>(static_cast<int32_t>(code_point) + range->delta));
    return true;
  }
  const auto it = std::lower_bound(
      specials.begin(), specials.end(), code_point,
      [](const CaseSpecial& special, char32_t c) { return special.code_point < c; });
  if (it == specials.end() || it->code_point != code_point) return false;
  out += it->mapped;
  return true;
}

constexpr char32_t kCapitalSigma = 0x3A3;
constexpr char32_t kFinalSigma = 0x3C2;

bool is_case_ignorable(char32_t code_point) {
  return find_range(kCaseIgnorable, code_point) != nullptr;
}

// Whether a cased character stands before `sigma`, a view into `text`, and none behind it, looking
// past case-ignorable ones (Unicode chapter 3.13, Final_Sigma).
bool is_final_sigma(std::string_view text, std::string_view sigma) {
  const auto begin = static_cast<std::size_t>(sigma.data() - text.data());
  bool cased_before = false;
  for (std::size_t at = begin; at > 0 && !cased_before;) {
    do --at;
    while ((static_cast<uint8_t>(text[at]) & 0xC0u) == 0x80u);
    const char32_t c = decode_utf8(text, at).value;
    if (is_case_ignorable(c)) continue;
    if (!is_cased(c)) break;
    cased_before = true;
  }
  if (!cased_before) return false;
  for (std::size_t at = begin + sigma.size(); at < text.size();) {
    const Utf8Step step = decode_utf8(text, at);
    if (!is_case_ignorable(step.value)) return !is_cased(step.value);
    at += step.length;
  }
  return true;
}

}  // namespace

bool is_cased(char32_t code_point) {
  return find_range(kCased, code_point) != nullptr;
}

bool is_white_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

bool is_python_space(char32_t c) {
  return is_white_space(c) || (c >= 0x1C && c <= 0x1F);
}

bool is_printable(char32_t code_point) {
  return find_range(kNotPrintable, code_point) == nullptr;
}

std::string to_upper(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for_each_character(text, [&](char32_t c, std::string_view bytes) {
    if (!append_mapped(out, c, kUpperRanges, kUpperSpecials)) out += bytes;
  });
  return out;
}

std::string to_lower(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  append_lower(out, text, text);
  return out;
}

void append_lower(std::string& out, std::string_view part, std::string_view text) {
  for_each_character(part, [&](char32_t c, std::string_view bytes) {
    if (c == kCapitalSigma && is_final_sigma(text, bytes)) {
      append_utf8(out, kFinalSigma);
    } else if (!append_mapped(out, c, kLowerRanges, kLowerSpecials)) {
      out += bytes;
    }
  });
}

void append_title(std::string& out, char32_t code_point) {
  if (append_mapped(out, code_point, kTitleRanges, kTitleSpecials)) return;
  if (!append_mapped(out, code_point, kUpperRanges, kUpperSpecials)) append_utf8(out, code_point);
}

}  // namespace levin::text
