#include "text/jinja/lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "text/jinja/failure.h"
#include "text/jinja/string_literal.h"
#include "text/jinja/text_algorithms.h"
#include "text/unicode.h"
#include "text/utf8.h"

namespace levin::text::jinja {
namespace {

constexpr std::size_t kNone = std::string_view::npos;

// Longest first, so that "**" is not two "*".
constexpr std::array<std::string_view, 26> kOperators = {
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
    "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

bool is_name_start(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

// Line ends become "\n"; a last one is dropped.
std::string normalize(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out += source[i];
      continue;
    }
    out += '\n';
    if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(normalize(source)) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) text_and_tag();
    add(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  // --- reading --------------------------------------------------------------------------------

  std::string_view rest() const { return std::string_view(source_).substr(at_); }
  bool here(std::string_view text) const { return rest().starts_with(text); }
  char peek(std::size_t ahead = 0) const {
    return at_ + ahead < source_.size() ? source_[at_ + ahead] : '\0';
  }

  void advance(std::size_t count) {
    const auto begin = source_.begin() + static_cast<std::ptrdiff_t>(at_);
    line_ += static_cast<int>(std::count(begin, begin + static_cast<std::ptrdiff_t>(count), '\n'));
    at_ += count;
  }

  void skip_space() { advance(rest().size() - strip(rest(), std::nullopt, true, false).size()); }

  void add(TokenKind kind, std::string_view text) {
    tokens_.push_back({kind, std::string(text), line_});
  }

  [[noreturn]] void fail(const std::string& what) const { throw Failure(what, line_); }

  // --- text, and what stands around tags --------------------------------------------------------

  // From here to the next tag, and the tag itself.
  void text_and_tag() {
    const std::string_view text = rest().substr(0, find_tag());
    if (text.size() == rest().size()) {
      add_text(text);
      advance(text.size());
      return;
    }
    const char opener = rest()[text.size() + 1];
    const char sign = source_.size() > at_ + text.size() + 2 ? rest()[text.size() + 2] : '\0';
    add_text(strip_before_tag(text, opener, sign));
    advance(text.size());
    if (opener == '#') {
      comment();
    } else if (opener == '{') {
      code(TokenKind::kOutputBegin, TokenKind::kOutputEnd);
    } else if (!raw_block()) {
      code(TokenKind::kTagBegin, TokenKind::kTagEnd);
    }
  }

  std::size_t find_tag() const {
    for (std::size_t at = rest().find('{'); at != kNone; at = rest().find('{', at + 1)) {
      if (at + 1 < rest().size() && std::string_view("{%#").find(rest()[at + 1]) != kNone)
        return at;
    }
    return rest().size();
  }

  // "-" takes all white space before the tag away. Without a sign, a tag that is not an output
  // takes away what stands between it and the begin of its line, if that is only white space.
  std::string_view strip_before_tag(std::string_view text, char opener, char sign) const {
    if (sign == '-') return strip(text, std::nullopt, false, true);
    if (sign == '+' || opener == '{') return text;
    const std::size_t newline = text.rfind('\n');
    const std::size_t line_begin = newline == kNone ? 0 : newline + 1;
    if (line_begin == 0 && !at_line_begin_) return text;
    const bool blank = strip(text.substr(line_begin), std::nullopt).empty();
    return blank ? text.substr(0, line_begin) : text;
  }

  // The end of a tag: "-" takes all white space behind it away, otherwise one line end goes when
  // `trim`. `length` covers the sign and the closing brackets.
  void close(std::size_t length, bool strip_behind, bool trim) {
    advance(length);
    if (strip_behind) {
      skip_space();
    } else if (trim && peek() == '\n') {
      advance(1);
    }
    at_line_begin_ = source_[at_ - 1] == '\n';
  }

  void add_text(std::string_view text) {
    if (!text.empty()) add(TokenKind::kText, text);
  }

  bool has_sign(std::size_t at) const { return peek(at) == '-' || peek(at) == '+'; }

  void comment() {
    const int begin_line = line_;
    advance(has_sign(2) ? 3 : 2);
    const std::size_t end = rest().find("#}");
    if (end == kNone) throw Failure("Missing end of comment tag", begin_line);
    const char sign = end > 0 ? rest()[end - 1] : '\0';
    close(end + 2, sign == '-', sign != '+');
  }

  // {% raw %} ... {% endraw %}: what stands between is text. False when no raw block begins here.
  bool raw_block() {
    const TagEnd begin = match_word_tag("raw", false);
    if (begin.length == 0) return false;
    close(begin.length, begin.strip_behind, false);
    const int begin_line = line_;
    const std::size_t text_begin = at_;
    for (; at_ < source_.size(); advance(1)) {
      if (!here("{%")) continue;
      const TagEnd end = match_word_tag("endraw", true);
      if (end.length == 0) continue;
      const auto text = std::string_view(source_).substr(text_begin, at_ - text_begin);
      tokens_.push_back(
          {TokenKind::kText, std::string(strip_before_tag(text, '%', peek(2))), begin_line});
      close(end.length, end.strip_behind, end.trim);
      return true;
    }
    throw Failure("Missing end of raw directive", begin_line);
  }

  struct TagEnd {
    std::size_t length = 0;  // of the whole tag; 0 when there is none
    bool strip_behind = false;
    bool trim = true;
  };

  // A tag with nothing but `word` in it, from "{%" on.
  TagEnd match_word_tag(std::string_view word, bool plus_allowed) const {
    std::string_view tag = rest().substr(has_sign(2) ? 3 : 2);
    tag = strip(tag, std::nullopt, true, false);
    if (!tag.starts_with(word)) return {};
    tag = strip(tag.substr(word.size()), std::nullopt, true, false);
    TagEnd end;
    if (tag.starts_with('-')) end.strip_behind = true;
    if (plus_allowed && tag.starts_with('+')) end.trim = false;
    if (end.strip_behind || !end.trim) tag.remove_prefix(1);
    if (!tag.starts_with("%}")) return {};
    end.length = rest().size() - tag.size() + 2;
    return end;
  }

  // --- inside {{ }} and {% %}
  // ---------------------------------------------------------------------

  void code(TokenKind begin, TokenKind end) {
    add(begin, "");
    advance(has_sign(2) ? 3 : 2);
    std::vector<char> open;  // the brackets that must still be closed
    while (at_ < source_.size()) {
      if (open.empty() && end_of_code(end)) return;
      if (is_python_space(decode_utf8(source_, at_).value)) {
        skip_space();
      } else if (!number() && !name() && !string() && !operator_(open)) {
        const std::size_t size = decode_utf8(source_, at_).length;
        fail(fmt::format("unexpected char '{}'", rest().substr(0, size)));
      }
    }
    // The parser says what is missing.
  }

  bool end_of_code(TokenKind end) {
    const bool output = end == TokenKind::kOutputEnd;
    const bool strip_behind = peek() == '-';
    const bool keep = peek() == '+' && !output;
    const std::size_t sign = strip_behind || keep ? 1 : 0;
    if (!rest().substr(sign).starts_with(output ? "}}" : "%}")) return false;
    add(end, "");
    close(sign + 2, strip_behind, !keep && !output);
    return true;
  }

  // A run of digits, in which single underscores may stand; its length.
  std::size_t digits(std::size_t from, bool (*counts)(char)) const {
    std::size_t at = from;
    while (counts(peek(at)) || (at > from && peek(at) == '_' && counts(peek(at + 1)))) ++at;
    return at - from;
  }

  bool number() {
    if (!is_digit(peek())) return false;
    if (const std::size_t length = float_length(); length > 0) {
      add_number(TokenKind::kFloat, length);
    } else {
      add_number(TokenKind::kInteger, integer_length());
    }
    return true;
  }

  // Digits with a fraction, an exponent or both. Behind a dot ("items.0.1") there is none.
  std::size_t float_length() const {
    if (at_ > 0 && source_[at_ - 1] == '.') return 0;
    std::size_t length = digits(0, is_digit);
    bool is_float = false;
    if (peek(length) == '.') {
      const std::size_t fraction = digits(length + 1, is_digit);
      if (fraction == 0) return 0;
      length += 1 + fraction;
      is_float = true;
    }
    if (peek(length) == 'e' || peek(length) == 'E') {
      const std::size_t sign = peek(length + 1) == '+' || peek(length + 1) == '-' ? 1 : 0;
      const std::size_t exponent = digits(length + 1 + sign, is_digit);
      if (exponent > 0) return length + 1 + sign + exponent;
    }
    return is_float ? length : 0;
  }

  std::size_t integer_length() const {
    if (peek() == '0') {
      const char base = static_cast<char>(peek(1) | 0x20);
      const std::size_t first = peek(2) == '_' ? 3 : 2;
      std::size_t length = 0;
      if (base == 'x') length = digits(first, [](char c) { return is_hex_digit(c); });
      if (base == 'o') length = digits(first, [](char c) { return c >= '0' && c <= '7'; });
      if (base == 'b') length = digits(first, [](char c) { return c == '0' || c == '1'; });
      if (length > 0) return first + length;
      return digits(0, [](char c) { return c == '0'; });
    }
    return digits(0, is_digit);
  }

  void add_number(TokenKind kind, std::size_t length) {
    std::string text(rest().substr(0, length));
    text.erase(std::remove(text.begin(), text.end(), '_'), text.end());
    add(kind, text);
    advance(length);
  }

  bool name() {
    if (!is_name_start(peek())) return false;
    std::size_t length = 1;
    while (is_name_start(peek(length)) || is_digit(peek(length))) ++length;
    add(TokenKind::kName, rest().substr(0, length));
    advance(length);
    return true;
  }

  bool string() {
    const char quote = peek();
    if (quote != '\'' && quote != '"') return false;
    std::size_t end = 1;
    while (at_ + end < source_.size() && peek(end) != quote) end += peek(end) == '\\' ? 2 : 1;
    if (at_ + end >= source_.size()) fail("string without end");
    add(TokenKind::kString, unescape(rest().substr(1, end - 1), line_));
    advance(end + 1);
    return true;
  }

  bool operator_(std::vector<char>& open) {
    const auto it = std::find_if(kOperators.begin(), kOperators.end(),
                                 [&](std::string_view op) { return here(op); });
    if (it == kOperators.end()) return false;
    balance(it->front(), open);
    add(TokenKind::kOperator, *it);
    advance(it->size());
    return true;
  }

  void balance(char bracket, std::vector<char>& open) const {
    if (bracket == '(') open.push_back(')');
    if (bracket == '[') open.push_back(']');
    if (bracket == '{') open.push_back('}');
    if (bracket != ')' && bracket != ']' && bracket != '}') return;
    if (open.empty()) fail(fmt::format("unexpected '{}'", bracket));
    if (open.back() != bracket) {
      fail(fmt::format("unexpected '{}', expected '{}'", bracket, open.back()));
    }
    open.pop_back();
  }

  std::string source_;
  std::size_t at_ = 0;
  int line_ = 1;
  bool at_line_begin_ = true;  // whether the last tag ended with a line
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) {
  return Lexer(source).run();
}

}  // namespace levin::text::jinja
