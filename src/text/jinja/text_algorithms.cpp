#include "text/jinja/text_algorithms.h"

#include <algorithm>
#include <limits>

#include "text/unicode.h"
#include "text/utf8.h"

namespace levin::text::jinja {
namespace {

constexpr std::size_t kNone = std::string_view::npos;

// Begin of the character that ends at `end`, which is above 0.
std::size_t previous_character(std::string_view text, std::size_t end) {
  do --end;
  while (end > 0 && (static_cast<uint8_t>(text[end]) & 0xC0u) == 0x80u);
  return end;
}

bool is_space_at(std::string_view text, std::size_t at) {
  return is_python_space(decode_utf8(text, at).value);
}

bool is_line_end(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

std::vector<std::string_view> split_space(std::string_view text, std::size_t maxsplit) {
  std::vector<std::string_view> parts;
  std::string_view rest = strip(text, std::nullopt, true, false);
  while (!rest.empty()) {
    if (parts.size() == maxsplit) {
      parts.push_back(rest);
      break;
    }
    std::size_t end = 0;
    while (end < rest.size() && !is_space_at(rest, end)) end += decode_utf8(rest, end).length;
    parts.push_back(rest.substr(0, end));
    rest = strip(rest.substr(end), std::nullopt, true, false);
  }
  return parts;
}

std::vector<std::string_view> split_space_from_right(std::string_view text, std::size_t maxsplit) {
  std::vector<std::string_view> parts;
  std::string_view rest = strip(text, std::nullopt, false, true);
  while (!rest.empty()) {
    if (parts.size() == maxsplit) {
      parts.push_back(rest);
      break;
    }
    std::size_t begin = rest.size();
    while (begin > 0 && !is_space_at(rest, previous_character(rest, begin))) {
      begin = previous_character(rest, begin);
    }
    parts.push_back(rest.substr(begin));
    rest = strip(rest.substr(0, begin), std::nullopt, false, true);
  }
  std::reverse(parts.begin(), parts.end());
  return parts;
}

}  // namespace

std::string_view strip(std::string_view text, std::optional<std::string_view> characters, bool left,
                       bool right) {
  auto goes = [&](std::string_view character) {
    if (!characters) return is_python_space(decode_utf8(character, 0).value);
    return characters->find(character) != kNone;
  };
  while (left && !text.empty()) {
    const std::size_t size = decode_utf8(text, 0).length;
    if (!goes(text.substr(0, size))) break;
    text.remove_prefix(size);
  }
  while (right && !text.empty()) {
    const std::size_t last = previous_character(text, text.size());
    if (!goes(text.substr(last))) break;
    text = text.substr(0, last);
  }
  return text;
}

std::vector<std::string_view> split(std::string_view text,
                                    std::optional<std::string_view> separator, int64_t maxsplit,
                                    bool from_right) {
  const std::size_t limit =
      maxsplit < 0 ? std::numeric_limits<std::size_t>::max() : static_cast<std::size_t>(maxsplit);
  if (!separator)
    return from_right ? split_space_from_right(text, limit) : split_space(text, limit);
  std::vector<std::string_view> parts;
  while (parts.size() < limit) {
    const std::size_t at = from_right ? text.rfind(*separator) : text.find(*separator);
    if (at == kNone) break;
    const std::string_view before = text.substr(0, at);
    const std::string_view behind = text.substr(at + separator->size());
    parts.push_back(from_right ? behind : before);
    text = from_right ? before : behind;
  }
  parts.push_back(text);
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> lines;
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Step step = decode_utf8(text, at);
    std::size_t next = at + step.length;
    if (is_line_end(step.value)) {
      if (step.value == '\r' && next < text.size() && text[next] == '\n') ++next;
      lines.push_back(text.substr(begin, (keep_ends ? next : at) - begin));
      begin = next;
    }
    at = next;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

std::size_t count_occurrences(std::string_view text, std::string_view part) {
  if (part.empty()) return count_characters(text) + 1;
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != kNone; at = text.find(part, at + part.size())) {
    ++count;
  }
  return count;
}

std::string replace(std::string_view text, std::string_view from, std::string_view to,
                    int64_t count, Budget& budget) {
  std::size_t left = count_occurrences(text, from);
  if (count >= 0) left = std::min(left, static_cast<std::size_t>(count));
  std::size_t added = 0;
  if (__builtin_mul_overflow(left, to.size(), &added)) throw Failure("the text is too long");
  budget.produce(text.size());
  budget.produce(added);
  std::string out;
  std::size_t at = 0;
  for (; left > 0; --left) {
    const std::size_t found = text.find(from, at);
    out += text.substr(at, found - at);
    out += to;
    at = found + from.size();
    // Of nothing there is one in front of every character and one at the end.
    if (from.empty() && at < text.size()) {
      const std::size_t size = decode_utf8(text, at).length;
      out += text.substr(at, size);
      at += size;
    }
  }
  return out.append(text.substr(at));
}

std::string capitalize(std::string_view text) {
  std::string out;
  if (text.empty()) return out;
  const Utf8Step first = decode_utf8(text, 0);
  append_title(out, first.value);
  append_lower(out, text.substr(first.length), text);
  return out;
}

std::string title(std::string_view text) {
  std::string out;
  bool in_word = false;
  for_each_character(text, [&](char32_t c, std::string_view bytes) {
    if (in_word) {
      append_lower(out, bytes, text);
    } else {
      append_title(out, c);
    }
    in_word = is_cased(c);
  });
  return out;
}

std::string title_words(std::string_view text) {
  auto separates = [&](std::size_t at) {
    return std::string_view("-({[<").find(text[at]) != kNone || is_space_at(text, at);
  };
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = at;
    const bool separator = separates(at);
    while (at < text.size() && separates(at) == separator) at += decode_utf8(text, at).length;
    const std::string_view word = text.substr(begin, at - begin);
    const std::size_t first = decode_utf8(word, 0).length;
    out += to_upper(word.substr(0, first));
    out += to_lower(word.substr(first));
  }
  return out;
}

}  // namespace levin::text::jinja
