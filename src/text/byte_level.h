// The alphabet of byte-level BPE: tokenizer.json spells each of the 256 bytes as one printable
// character (GPT-2's bytes_to_unicode), so that any bytes can stand in a JSON string.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace levin::text {

// The character that spells `byte`: itself when printable in Latin-1, otherwise U+0100 and up.
char32_t byte_to_character(uint8_t byte);

// The bytes that a vocabulary string spells ("Ġthe" is " the"); nothing when a character of it is
// outside the alphabet. `spelled` must be valid UTF-8.
std::optional<std::string> bytes_from_spelling(std::string_view spelled);

}  // namespace levin::text
