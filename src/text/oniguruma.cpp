#include "text/oniguruma.h"

#include <fmt/format.h>

#include <array>

#include "core/error.h"

namespace levin::text {
namespace {

// \s is the Unicode White_Space property in Oniguruma; PCRE2's takes U+180E as well.
constexpr std::string_view kSpace =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f})"
    R"(\x{3000})";
constexpr std::string_view kNotSpace =
    R"(\x{0}-\x{8}\x{e}-\x{1f}\x{21}-\x{84}\x{86}-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{1fff})"
    R"(\x{200b}-\x{2027}\x{202a}-\x{202e}\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{10ffff})";

// Groups that mean the same in both.
constexpr std::array<std::string_view, 7> kGroups = {
    "(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:"};

bool is_alphanumeric(char c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

class Translator {
 public:
  Translator(std::string_view pattern, const std::string& where)
      : pattern_(pattern), where_(where) {}

  std::string run() {
    while (at_ < pattern_.size()) step();
    if (in_class_) refuse("character class without end");
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(std::string_view construct) const {
    throw Error({.what = "the regular expression uses a construct that levin does not implement",
                 .where = fmt::format("{}, offset {}", where_, at_),
                 .expected = {},
                 .found = std::string(construct),
                 .hint = {}});
  }

  char peek(std::size_t ahead = 0) const {
    return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0';
  }
  bool here(std::string_view text) const { return pattern_.substr(at_).starts_with(text); }
  void copy(std::size_t count) {
    out_ += pattern_.substr(at_, count);
    at_ += count;
  }

  void step() {
    const char c = peek();
    if (c == '\\') {
      escape();
    } else if (in_class_) {
      inside_class();
    } else if (c == '[') {
      in_class_ = true;
      copy(peek(1) == '^' ? 2 : 1);
      if (peek() == ']') refuse("] as the first character of a class");
    } else if (c == '(') {
      group();
    } else if (c == '{') {
      interval();
    } else {
      copy(1);
    }
  }

  void inside_class() {
    if (peek() == '[') refuse("[ inside a character class");
    if (here("&&")) refuse("&& inside a character class");
    if (peek() == ']') in_class_ = false;
    copy(1);
  }

  void group() {
    if (peek(1) == '*') refuse("(*");
    if (peek(1) != '?') return copy(1);
    for (const std::string_view prefix : kGroups) {
      if (here(prefix)) return copy(prefix.size());
    }
    refuse(pattern_.substr(at_, 3));
  }

  // Oniguruma reads "{n,m}+" as a repeated group and "{n}?" as an optional one, PCRE2 as a
  // possessive and a lazy interval; {,m} is an interval only in Oniguruma.
  void interval() {
    std::size_t length = 1;
    while ((peek(length) >= '0' && peek(length) <= '9') || peek(length) == ',') ++length;
    const bool is_interval = length > 1 && peek(length) == '}';
    if (!is_interval) return copy(1);
    if (peek(1) == ',') refuse("interval without lower bound");
    copy(length + 1);
    if (peek() == '+' || peek() == '?') refuse("interval followed by + or ?");
  }

  void escape() {
    const char c = peek(1);
    if (c == 's' || c == 'S') {
      const std::string_view set = c == 's' ? kSpace : kNotSpace;
      out_ += in_class_ ? std::string(set) : fmt::format("[{}]", set);
      at_ += 2;
    } else if (c == 'p' || c == 'P') {
      property();
    } else if (c == 'u') {
      code_unit();
    } else if (is_alphanumeric(c) && std::string_view("rntfdDx").find(c) == std::string::npos) {
      refuse(pattern_.substr(at_, 2));
    } else {
      copy(2);
    }
  }

  // \p{L} and \p{Lu} are general categories in both; a longer name is a script, which PCRE2 would
  // widen to script extensions.
  void property() {
    const std::size_t end = pattern_.find('}', at_);
    if (peek(2) != '{' || end == std::string_view::npos) refuse("\\p without braces");
    std::string_view name = pattern_.substr(at_ + 3, end - at_ - 3);
    bool negated = peek(1) == 'P';
    if (name.starts_with('^')) {
      negated = !negated;
      name.remove_prefix(1);
    }
    for (const char c : name) {
      if (!is_alphanumeric(c) && c != '_') refuse(fmt::format("\\p{{{}}}", name));
    }
    const bool category = name.size() <= 2 || name == "Any";
    out_ += fmt::format("\\{}{{{}{}}}", negated ? 'P' : 'p', category ? "" : "sc:", name);
    at_ = end + 1;
  }

  void code_unit() {
    const std::string_view digits = pattern_.substr(at_).substr(0, 6);
    if (digits.size() < 6 ||
        digits.find_first_not_of("0123456789abcdefABCDEF", 2) != std::string::npos) {
      refuse("\\u without four hexadecimal digits");
    }
    out_ += fmt::format("\\x{{{}}}", digits.substr(2));
    at_ += 6;
  }

  std::string_view pattern_;
  const std::string& where_;
  std::size_t at_ = 0;
  bool in_class_ = false;
  std::string out_;
};

}  // namespace

std::string oniguruma_to_pcre2(std::string_view pattern, const std::string& where) {
  return Translator(pattern, where).run();
}

}  // namespace levin::text
