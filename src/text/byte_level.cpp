#include "text/byte_level.h"

#include <array>

#include "text/utf8.h"

namespace levin::text {
namespace {

constexpr bool spells_itself(unsigned byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

// The other 68 bytes take U+0100, U+0101, ... in order.
constexpr std::array<char32_t, 256> kCharacters = [] {
  std::array<char32_t, 256> table{};
  char32_t next = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) table[byte] = spells_itself(byte) ? byte : next++;
  return table;
}();

// Inverse of kCharacters; -1 where no byte is spelled so.
constexpr std::array<int16_t, 0x144> kBytes = [] {
  std::array<int16_t, 0x144> table{};
  for (auto& entry : table) entry = -1;
  for (unsigned byte = 0; byte < 256; ++byte) table[kCharacters[byte]] = static_cast<int16_t>(byte);
  return table;
}();

}  // namespace

char32_t byte_to_character(uint8_t byte) {
  return kCharacters[byte];
}

std::optional<std::string> bytes_from_spelling(std::string_view spelled) {
  std::string bytes;
  bytes.reserve(spelled.size());
  for (std::size_t at = 0; at < spelled.size();) {
    const Utf8Step step = decode_utf8(spelled, at);
    if (step.value >= kBytes.size() || kBytes[step.value] < 0) return std::nullopt;
    bytes += static_cast<char>(kBytes[step.value]);
    at += step.length;
  }
  return bytes;
}

}  // namespace levin::text
