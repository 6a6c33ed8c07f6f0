// Finds tags in text that arrives in pieces.
#pragma once

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <string_view>

namespace levin::text {

struct TagMatch {
  std::size_t begin;     // of the tag; without one, of what may become one (or the end)
  std::string_view tag;  // empty: none found
};

// How many bytes at the end of `text` are the beginning of a tag, but not a whole one.
inline std::size_t partial_tag_size(std::string_view text,
                                    std::initializer_list<std::string_view> tags) {
  std::size_t longest = 0;
  for (const std::string_view tag : tags) {
    if (tag.empty()) continue;
    for (std::size_t size = std::min(tag.size() - 1, text.size()); size > longest; --size) {
      if (text.substr(text.size() - size) == tag.substr(0, size)) longest = size;
    }
  }
  return longest;
}

// The first tag in `text`. No tag is a prefix of another; empty ones are not looked for. With
// `final` nothing will follow, so that a tag that is cut short is text.
inline TagMatch find_tag(std::string_view text, std::initializer_list<std::string_view> tags,
                         bool final) {
  for (std::size_t at = text.find('<'); at != text.npos; at = text.find('<', at + 1)) {
    for (const std::string_view tag : tags) {
      if (!tag.empty() && text.substr(at, tag.size()) == tag) return {at, tag};
    }
  }
  return {text.size() - (final ? 0 : partial_tag_size(text, tags)), {}};
}

}  // namespace levin::text
