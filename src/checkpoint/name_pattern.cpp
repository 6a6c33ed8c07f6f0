#define PCRE2_CODE_UNIT_WIDTH 8
#include "checkpoint/name_pattern.h"

#include <fmt/format.h>
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <utility>

#include "checkpoint/names.h"
#include "core/error.h"

namespace levin::checkpoint {
namespace {

constexpr std::size_t kMaxRegex = 4096;
// Names are short; a pattern that needs more steps than this is a trap, not a pattern.
constexpr uint32_t kMatchLimit = 100'000;
constexpr uint32_t kHeapLimitKib = 1024;

// Matches `c` against the bracket expression that starts at pattern[at] == '['; moves `at` past it.
// Nothing when the bracket is never closed: then '[' stands for itself.
bool bracket_closes(std::string_view pattern, std::size_t at, std::size_t& close) {
  std::size_t end = at + 1;
  if (end < pattern.size() && pattern[end] == '!') ++end;
  if (end < pattern.size() && pattern[end] == ']') ++end;
  close = pattern.find(']', end);
  return close != std::string_view::npos;
}

bool bracket_matches(std::string_view set, char c) {
  const bool negated = !set.empty() && set[0] == '!';
  if (negated) set.remove_prefix(1);
  bool found = false;
  for (std::size_t i = 0; i < set.size(); ++i) {
    if (i + 2 < set.size() && set[i + 1] == '-') {
      found = found || (set[i] <= c && c <= set[i + 2]);
      i += 2;
    } else {
      found = found || set[i] == c;
    }
  }
  return found != negated;
}

// Whether one character of text matches the element at pattern[at]; `next` is the element after it.
bool element_matches(std::string_view pattern, std::size_t at, char c, std::size_t& next) {
  next = at + 1;
  if (pattern[at] == '?') return true;
  std::size_t close = 0;
  if (pattern[at] == '[' && bracket_closes(pattern, at, close)) {
    next = close + 1;
    return bracket_matches(pattern.substr(at + 1, close - at - 1), c);
  }
  return pattern[at] == c;
}

std::shared_ptr<const void> compile(const std::string& text) {
  const std::string_view pattern = std::string_view(text).substr(3);
  int code = 0;
  std::size_t offset = 0;
  std::string problem = fmt::format("longer than {} bytes", kMaxRegex);
  if (pattern.size() <= kMaxRegex) {
    pcre2_code* compiled =
        pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                      PCRE2_ANCHORED | PCRE2_NEVER_BACKSLASH_C, &code, &offset, nullptr);
    if (compiled != nullptr) {
      return {compiled, [](const void* regex) {
                pcre2_code_free(static_cast<pcre2_code*>(const_cast<void*>(regex)));
              }};
    }
    std::array<unsigned char, 256> message{};
    pcre2_get_error_message(code, message.data(), message.size());
    problem = fmt::format("{} at byte {}", reinterpret_cast<const char*>(message.data()), offset);
  }
  throw Error({.what = "regular expression in quantization metadata does not compile",
               .where = printable(text),
               .expected = {},
               .found = problem,
               .hint = {}});
}

bool regex_matches(const void* regex, const std::string& text, std::string_view name) {
  using Context = std::unique_ptr<pcre2_match_context, decltype(&pcre2_match_context_free)>;
  using Data = std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)>;
  const Context context(pcre2_match_context_create(nullptr), pcre2_match_context_free);
  const Data data(pcre2_match_data_create(1, nullptr), pcre2_match_data_free);
  pcre2_set_match_limit(context.get(), kMatchLimit);
  pcre2_set_heap_limit(context.get(), kHeapLimitKib);
  const int result =
      pcre2_match(static_cast<const pcre2_code*>(regex), reinterpret_cast<PCRE2_SPTR>(name.data()),
                  name.size(), 0, 0, data.get(), context.get());
  if (result >= 0) return true;
  if (result == PCRE2_ERROR_NOMATCH) return false;
  throw Error({.what = "regular expression in quantization metadata is too expensive to match",
               .where = printable(text),
               .expected = fmt::format("at most {} steps", kMatchLimit),
               .found = fmt::format("PCRE2 error {} on \"{}\"", result, printable(name)),
               .hint = {}});
}

}  // namespace

bool glob_matches(std::string_view pattern, std::string_view text) {
  std::size_t p = 0;
  std::size_t t = 0;
  // After the last '*': where the pattern goes on and how much text it has swallowed.
  std::size_t star = std::string_view::npos;
  std::size_t swallowed = 0;
  while (t < text.size()) {
    std::size_t next = 0;
    if (p < pattern.size() && pattern[p] == '*') {
      star = ++p;
      swallowed = t;
    } else if (p < pattern.size() && element_matches(pattern, p, text[t], next)) {
      p = next;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star;
      t = ++swallowed;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

NamePattern::NamePattern(std::string text) : text_(std::move(text)) {
  if (text_.starts_with("re:")) {
    regex_ = compile(text_);
  } else {
    glob_ = text_.find_first_of("*?[") != std::string::npos;
    if (!glob_) canonical_ = canonical_name(text_);
  }
}

bool NamePattern::matches_spelling(std::string_view name) const {
  return regex_ ? regex_matches(regex_.get(), text_, name) : glob_matches(text_, name);
}

bool NamePattern::matches(std::string_view module) const {
  // Long lists of exact names are common; comparing canonical forms spares them the spellings.
  if (!regex_ && !glob_) return canonical_ == module;
  const std::vector<std::string> names = spellings(module);
  return std::any_of(names.begin(), names.end(),
                     [this](const std::string& name) { return matches_spelling(name); });
}

}  // namespace levin::checkpoint
