// UTF-8 as text arrives from outside: checked once, then walked code point by code point.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace levin::text {

inline constexpr char32_t kReplacementCharacter = 0xFFFD;

enum class Utf8Status : uint8_t {
  kValid,
  kInvalid,    // no continuation can make these bytes valid
  kIncomplete  // the text ends inside a character that is valid so far
};

// What stands at one position. `length` is 1 to 4 bytes; of bytes that are not valid it is the
// "maximal subpart" of the Unicode standard (section 3.9), the run one U+FFFD stands for.
struct Utf8Step {
  char32_t value;
  uint8_t length;
  Utf8Status status;
};

// `at` must be inside `text`.
Utf8Step decode_utf8(std::string_view text, std::size_t at);
void append_utf8(std::string& out, char32_t code_point);

// Offset of the first byte that is not part of a whole valid character.
std::optional<std::size_t> find_invalid_utf8(std::string_view text);

// Throws Error naming `source` (a file or a flag) and the line where `text` is not valid UTF-8.
void require_utf8(std::string_view text, const std::string& source);

// `bytes` with every maximal invalid subpart replaced by one U+FFFD, as Python's
// bytes.decode(errors="replace") and Rust's String::from_utf8_lossy do.
std::string to_valid_utf8(std::string_view bytes);

// Calls function(code_point, bytes of it) for each character of valid UTF-8.
template <typename Function>
void for_each_character(std::string_view text, Function&& function) {
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Step step = decode_utf8(text, at);
    function(step.value, text.substr(at, step.length));
    at += step.length;
  }
}

// Code points in valid UTF-8.
std::size_t count_characters(std::string_view text);

}  // namespace levin::text
