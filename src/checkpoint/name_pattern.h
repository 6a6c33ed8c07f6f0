// Patterns over module names, as quantization metadata writes them.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace levin::checkpoint {

// Python's fnmatch.fnmatchcase: '*', '?', '[seq]', '[!seq]'; '*' crosses dots. Takes time linear in
// pattern times text, whatever the pattern.
bool glob_matches(std::string_view pattern, std::string_view text);

// One entry of an ignore or target list: "re:X" is a regular expression anchored at the start only
// (Python's re.match), text with '*', '?' or '[' is a glob, anything else an exact name. Never a
// substring.
class NamePattern {
 public:
  // Throws Error when a regular expression does not compile or is longer than 4096 bytes.
  NamePattern(std::string text);
  NamePattern(const char* text) : NamePattern(std::string(text)) {}

  const std::string& text() const { return text_; }
  // True when any public spelling of the canonical name `module` matches. Throws Error when a
  // regular expression needs unreasonably many steps.
  bool matches(std::string_view module) const;
  bool operator==(const NamePattern& other) const { return text_ == other.text_; }

 private:
  bool matches_spelling(std::string_view name) const;

  std::string text_;
  std::string canonical_;  // of an exact name
  bool glob_ = false;
  std::shared_ptr<const void> regex_;  // compiled PCRE2 pattern
};

}  // namespace levin::checkpoint
