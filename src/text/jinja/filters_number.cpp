// Filters that make numbers.
#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <string>

#include "text/jinja/builtins.h"
#include "text/jinja/operators.h"
#include "text/jinja/text_algorithms.h"

namespace levin::text::jinja {
namespace {

Value filter_abs(const Call& call) {
  require_defined(call.input);
  if (const auto integer = call.input.integer()) {
    return *integer < 0 ? negate(call.input) : Value(*integer);
  }
  if (const auto number = call.input.number()) return std::abs(*number);
  throw Failure(fmt::format("bad operand type for abs(): '{}'", type_name(call.input)));
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

bool is_digit_or_letter(char c) {
  return is_digit(c) || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

// A Python number literal without its underscores, each of which must stand between two digits;
// nothing when one does not.
std::optional<std::string> without_underscores(std::string_view text, bool (*counts)(char)) {
  std::string digits;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      digits += text[i];
      continue;
    }
    const bool inside = i > 0 && i + 1 < text.size();
    if (!inside || !counts(text[i - 1]) || !counts(text[i + 1])) return std::nullopt;
  }
  return digits;
}

// int(text, base); nothing when the text is not an integer.
std::optional<int64_t> parse_integer(std::string_view text, int base) {
  text = strip(text, std::nullopt);
  bool negative = false;
  if (!text.empty() && (text.front() == '-' || text.front() == '+')) {
    negative = text.front() == '-';
    text.remove_prefix(1);
  }
  const char marker = base == 16 ? 'x' : base == 8 ? 'o' : base == 2 ? 'b' : '\0';
  if (marker != '\0' && text.size() > 2 && text[0] == '0' && (text[1] | 0x20) == marker) {
    text.remove_prefix(text[2] == '_' ? 3 : 2);
  }
  const auto digits = without_underscores(text, is_digit_or_letter);
  if (!digits || digits->empty() || digits->front() == '-') return std::nullopt;
  const std::string number = (negative ? "-" : "") + *digits;
  int64_t value = 0;
  const char* end = number.data() + number.size();
  const auto result = std::from_chars(number.data(), end, value, base);
  if (result.ptr != end) return std::nullopt;
  if (result.ec == std::errc::result_out_of_range) {
    throw Failure("an integer does not fit 64 bits");
  }
  return value;
}

// float(text); nothing when the text is not a number.
std::optional<double> parse_float(std::string_view text) {
  auto digits = without_underscores(strip(text, std::nullopt), is_digit);
  if (!digits || digits->empty()) return std::nullopt;
  std::string_view number = *digits;
  if (number.front() == '+') number.remove_prefix(1);
  if (number.empty() || number.front() == '+') return std::nullopt;
  if (number.find('(') != std::string_view::npos) return std::nullopt;  // "nan(1)"
  double value = 0;
  const char* end = number.data() + number.size();
  const auto result = std::from_chars(number.data(), end, value);
  if (result.ptr != end) return std::nullopt;
  if (result.ec == std::errc::result_out_of_range) return std::strtod(digits->c_str(), nullptr);
  return value;
}

// int(value); nothing for NaN.
std::optional<int64_t> truncate(double value) {
  if (std::isnan(value)) return std::nullopt;
  if (std::abs(value) >= 0x1p63) throw Failure("an integer does not fit 64 bits");
  return static_cast<int64_t>(value);
}

Value filter_int(const Call& call) {
  require_defined(call.input);
  const int64_t base = call.integer(1, 10);
  if (base < 2 || base > 36) throw Failure("int: the base must be 2 to 36");
  Value fallback = call.given(0) != nullptr ? *call.given(0) : Value(int64_t{0});
  if (const auto integer = call.input.integer()) return *integer;
  std::optional<double> number = call.input.number();
  if (const std::string* text = call.input.text()) {
    // "42.23" is 42, and "inf" is no integer.
    if (const auto integer = parse_integer(*text, static_cast<int>(base))) return *integer;
    number = parse_float(*text);
    if (number && std::isinf(*number)) return fallback;
  }
  const auto whole = number ? truncate(*number) : std::nullopt;
  return whole ? Value(*whole) : fallback;
}

Value filter_float(const Call& call) {
  require_defined(call.input);
  Value fallback = call.given(0) != nullptr ? *call.given(0) : Value(0.0);
  std::optional<double> number = call.input.number();
  if (const std::string* text = call.input.text()) number = parse_float(*text);
  return number ? Value(*number) : fallback;
}

// round(value, precision): half to even on the exact binary value, as printf rounds.
double round_half_even(double value, int precision) {
  if (!std::isfinite(value)) return value;
  return std::strtod(fmt::format("{:.{}f}", value, precision).c_str(), nullptr);
}

Value filter_round(const Call& call) {
  require_defined(call.input);
  const int64_t precision = call.integer(0, 0);
  const std::string method = call.text(1, "common");
  if (precision < 0 || precision > 300) throw Failure("round: precision must be 0 to 300");
  const auto number = call.input.number();
  if (!number) {
    throw Failure(fmt::format("type {} cannot be rounded", type_name(call.input)));
  }
  if (method == "common") {
    if (const auto integer = call.input.integer()) return *integer;
    return round_half_even(*number, static_cast<int>(precision));
  }
  if (method != "ceil" && method != "floor") {
    throw Failure("method must be common, ceil or floor");
  }
  const double scale = std::pow(10.0, static_cast<double>(precision));
  const double scaled = *number * scale;
  return (method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale;
}

}  // namespace

Table number_filters() {
  static const Builtin kTable[] = {
      {"abs", {}, filter_abs},
      {"float", {"default"}, filter_float},
      {"int", {"default", "base"}, filter_int},
      {"round", {"precision", "method"}, filter_round},
  };
  return kTable;
}

}  // namespace levin::text::jinja
