#include "text/python_literal.h"

#include "text/tool_arguments.h"

namespace levin::text {
namespace {

// Rewrites the quoted string that begins at `at` for JSON and moves `at` behind it.
bool convert_string(std::string_view text, std::size_t& at, std::string& out) {
  const char quote = text[at++];
  out += '"';
  for (; at < text.size(); ++at) {
    const char c = text[at];
    if (c == quote) {
      ++at;
      out += '"';
      return true;
    }
    if (c == '"') {
      out += "\\\"";
    } else if (c == '\\' && at + 1 < text.size()) {
      const char escaped = text[++at];
      if (escaped != '\'') out += '\\';  // JSON knows no \', and refuses what Python alone knows
      out += escaped;
    } else {
      out += c;
    }
  }
  return false;
}

bool convert_word(std::string_view word, std::string& out) {
  if (word == "True" || word == "true") {
    out += "true";
  } else if (word == "False" || word == "false") {
    out += "false";
  } else if (word == "None" || word == "null") {
    out += "null";
  } else {
    return false;
  }
  return true;
}

bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

}  // namespace

std::optional<std::string> python_literal_to_json(std::string_view text) {
  std::string json;
  for (std::size_t at = 0; at < text.size();) {
    const char c = text[at];
    const bool in_number = at > 0 && text[at - 1] >= '0' && text[at - 1] <= '9';
    if (c == '\'' || c == '"') {
      if (!convert_string(text, at, json)) return std::nullopt;
    } else if (is_letter(c) && !in_number) {
      std::size_t end = at;
      while (end < text.size() && is_letter(text[end])) ++end;
      if (!convert_word(text.substr(at, end - at), json)) return std::nullopt;
      at = end;
    } else {
      json += c;
      ++at;
    }
  }
  if (!is_json(json)) return std::nullopt;
  return json;
}

}  // namespace levin::text
