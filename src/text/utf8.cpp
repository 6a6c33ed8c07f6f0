#include "text/utf8.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "core/error.h"

namespace levin::text {
namespace {

// What a lead byte promises: how many bytes in all, and the legal range of the second one (which
// excludes overlong forms, surrogates and values above U+10FFFF).
struct Lead {
  uint8_t length;  // 0 for a byte that cannot lead
  uint8_t second_low;
  uint8_t second_high;
};

constexpr Lead lead_of(uint8_t byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte < 0xF0) {
    return {3, static_cast<uint8_t>(byte == 0xE0 ? 0xA0 : 0x80),
            static_cast<uint8_t>(byte == 0xED ? 0x9F : 0xBF)};
  }
  if (byte < 0xF5) {
    return {4, static_cast<uint8_t>(byte == 0xF0 ? 0x90 : 0x80),
            static_cast<uint8_t>(byte == 0xF4 ? 0x8F : 0xBF)};
  }
  return {0, 0, 0};
}

// First position at or after `at` that does not hold an ASCII byte, eight bytes at a time.
std::size_t skip_ascii(std::string_view text, std::size_t at) {
  for (; at + 8 <= text.size(); at += 8) {
    uint64_t word = 0;
    std::memcpy(&word, text.data() + at, 8);
    if ((word & 0x8080808080808080u) != 0) break;
  }
  while (at < text.size() && static_cast<uint8_t>(text[at]) < 0x80) ++at;
  return at;
}

}  // namespace

Utf8Step decode_utf8(std::string_view text, std::size_t at) {
  const auto first = static_cast<uint8_t>(text[at]);
  if (first < 0x80) return {first, 1, Utf8Status::kValid};
  const Lead lead = lead_of(first);
  if (lead.length == 0) return {kReplacementCharacter, 1, Utf8Status::kInvalid};
  char32_t value = first & (0x7Fu >> lead.length);
  for (uint8_t i = 1; i < lead.length; ++i) {
    if (at + i >= text.size()) return {kReplacementCharacter, i, Utf8Status::kIncomplete};
    const auto byte = static_cast<uint8_t>(text[at + i]);
    const uint8_t low = i == 1 ? lead.second_low : 0x80;
    const uint8_t high = i == 1 ? lead.second_high : 0xBF;
    if (byte < low || byte > high) return {kReplacementCharacter, i, Utf8Status::kInvalid};
    value = value << 6 | (byte & 0x3Fu);
  }
  return {value, lead.length, Utf8Status::kValid};
}

void append_utf8(std::string& out, char32_t code_point) {
  auto put = [&](char32_t byte) { out += static_cast<char>(static_cast<uint8_t>(byte)); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | code_point >> 6);
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | code_point >> 12);
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | code_point >> 18);
    put(0x80 | (code_point >> 12 & 0x3F));
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

std::optional<std::size_t> find_invalid_utf8(std::string_view text) {
  for (std::size_t at = skip_ascii(text, 0); at < text.size(); at = skip_ascii(text, at)) {
    const Utf8Step step = decode_utf8(text, at);
    if (step.status != Utf8Status::kValid) return at;
    at += step.length;
  }
  return std::nullopt;
}

void require_utf8(std::string_view text, const std::string& source) {
  const std::optional<std::size_t> offset = find_invalid_utf8(text);
  if (!offset) return;
  const auto before = text.substr(0, *offset);
  const auto line = std::count(before.begin(), before.end(), '\n') + 1;
  const bool one_line = text.find('\n') == std::string_view::npos;
  throw Error({.what = "text is not UTF-8",
               .where = one_line ? source : fmt::format("{}:{}", source, line),
               .expected = {},
               .found = fmt::format("byte {:#04x} at offset {}",
                                    static_cast<unsigned char>(text[*offset]), *offset),
               .hint = "convert it, for example with iconv"});
}

std::string to_valid_utf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  for (std::size_t at = 0; at < bytes.size();) {
    const Utf8Step step = decode_utf8(bytes, at);
    if (step.status == Utf8Status::kValid) {
      out.append(bytes.substr(at, step.length));
    } else {
      append_utf8(out, kReplacementCharacter);
    }
    at += step.length;
  }
  return out;
}

std::size_t count_characters(std::string_view text) {
  std::size_t count = 0;
  for (const char c : text) count += (static_cast<uint8_t>(c) & 0xC0u) != 0x80u ? 1 : 0;
  return count;
}

}  // namespace levin::text
