// Template source -> tokens, with Jinja's rules for white space around tags (trim_blocks and
// lstrip_blocks on, one line end at the end of the source dropped, as transformers sets them).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace levin::text::jinja {

enum class TokenKind : uint8_t {
  kText,         // between tags, as it will be printed
  kOutputBegin,  // {{
  kOutputEnd,    // }}
  kTagBegin,     // {%
  kTagEnd,       // %}
  kName,
  kString,  // the value, without quotes and escapes
  kInteger,
  kFloat,
  kOperator,
  kEnd  // of the source; always the last token
};

struct Token {
  TokenKind kind;
  std::string text;
  int line;
};

// Throws Failure with the line for what Jinja does not accept either: characters that begin
// nothing, brackets that do not match, strings, comments and raw blocks without end. `source` is
// valid UTF-8.
std::vector<Token> tokenize(std::string_view source);

}  // namespace levin::text::jinja
