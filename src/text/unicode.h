// What strings need to know of Unicode: white space, case, printability, composition. The data
// follows Python's str, whose behaviour chat templates and tokenizers were written against.
#pragma once

#include <string>
#include <string_view>

namespace levin::text {

// str.isspace(): the Unicode White_Space property and the separators U+001C..U+001F.
bool is_python_space(char32_t code_point);
// The White_Space property alone, which is what \s means in the `tokenizers` library.
bool is_white_space(char32_t code_point);
// str.isprintable(): shown as it is by repr().
bool is_printable(char32_t code_point);

// A letter with case, in the sense that decides where str.title() starts a word.
bool is_cased(char32_t code_point);

// str.upper() and str.lower() of valid UTF-8, with the full mappings: "ß" becomes "SS", a final
// capital sigma "ς".
std::string to_upper(std::string_view text);
std::string to_lower(std::string_view text);
// The same for a part of a string, which `part` is a view into.
void append_lower(std::string& out, std::string_view part, std::string_view text);
// str.title() of a single character.
void append_title(std::string& out, char32_t code_point);

// Normalization Form C (Unicode Standard Annex 15) of valid UTF-8.
std::string to_nfc(std::string_view text);

}  // namespace levin::text
