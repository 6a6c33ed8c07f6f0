#include "text/jinja/string_literal.h"

#include <fmt/format.h>

#include "text/jinja/failure.h"
#include "text/utf8.h"

namespace levin::text::jinja {
namespace {

char32_t digit_value(char c) {
  if (c <= '9') return static_cast<char32_t>(c - '0');
  return static_cast<char32_t>((c | 0x20) - 'a' + 10);
}

class Unescaper {
 public:
  Unescaper(std::string_view literal, int line) : literal_(literal), line_(line) {}

  std::string run() {
    while (at_ < literal_.size()) {
      const char c = literal_[at_++];
      if (c == '\\' && at_ < literal_.size()) {
        escape(literal_[at_++]);
      } else {
        out_ += c;
      }
    }
    return std::move(out_);
  }

 private:
  void escape(char c) {
    constexpr std::string_view kLetters = "\\'\"abfnrtv";
    constexpr std::string_view kValues = "\\'\"\a\b\f\n\r\t\v";
    const std::size_t simple = kLetters.find(c);
    if (simple != std::string_view::npos) {
      out_ += kValues[simple];
    } else if (c >= '0' && c <= '7') {
      octal();
    } else if (c == 'x') {
      hexadecimal(2);
    } else if (c == 'u') {
      hexadecimal(4);
    } else if (c == 'U') {
      hexadecimal(8);
    } else if (c == 'N') {
      throw Failure("the escape \\N{...} is not implemented", line_);
    } else if (c != '\n') {  // a line end disappears with its backslash
      out_ += '\\';
      out_ += c;
    }
  }

  void octal() {
    --at_;
    char32_t value = 0;
    for (int i = 0; i < 3 && at_ < literal_.size(); ++i, ++at_) {
      const char c = literal_[at_];
      if (c < '0' || c > '7') break;
      value = value * 8 + digit_value(c);
    }
    append_utf8(out_, value);
  }

  void hexadecimal(std::size_t count) {
    char32_t value = 0;
    for (std::size_t i = 0; i < count; ++i, ++at_) {
      if (at_ >= literal_.size() || !is_hex_digit(literal_[at_])) {
        throw Failure("truncated escape in a string", line_);
      }
      value = value * 16 + digit_value(literal_[at_]);
    }
    if (value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) {
      throw Failure(
          fmt::format("the escape for U+{:04X} is not a character", static_cast<uint32_t>(value)),
          line_);
    }
    append_utf8(out_, value);
  }

  std::string_view literal_;
  int line_;
  std::size_t at_ = 0;
  std::string out_;
};

}  // namespace

bool is_hex_digit(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

std::string unescape(std::string_view literal, int line) {
  return Unescaper(literal, line).run();
}

}  // namespace levin::text::jinja
