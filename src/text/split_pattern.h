// The pattern that cuts text into words before BPE: a regular expression or a literal string out
// of tokenizer.json, run by PCRE2 with every match bounded, since both the pattern and the text
// come from outside.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

struct pcre2_real_code_8;
struct pcre2_real_match_context_8;
struct pcre2_real_match_data_8;

namespace levin::text {

class SplitPattern {
 public:
  // Throws Error at `where` for an expression that PCRE2 does not accept or that oniguruma.h
  // refuses. Patterns are valid UTF-8.
  static SplitPattern regex(std::string_view pattern, const std::string& where);
  static SplitPattern literal(std::string_view text, const std::string& where);

  // What one thread needs to match while it encodes one text. Must not outlive its pattern.
  class Matcher {
   public:
    // `text_size` sets how much processor time matching may take in all: linear in the text.
    Matcher(const SplitPattern& pattern, std::size_t text_size);

    // End of the match that begins exactly at `at`, or nothing. `text` is valid UTF-8; lookbehind
    // sees what stands before `at`. Throws Error when the pattern takes too long.
    std::optional<std::size_t> match_at(std::string_view text, std::size_t at);

   private:
    [[noreturn]] void give_up(const std::string& why) const;
    void check_time() const;

    struct Deleter {
      void operator()(pcre2_real_match_data_8* data) const;
      void operator()(pcre2_real_match_context_8* context) const;
    };
    const SplitPattern* pattern_;
    std::unique_ptr<pcre2_real_match_data_8, Deleter> data_;
    std::unique_ptr<pcre2_real_match_context_8, Deleter> context_;
    uint32_t first_limit_;
    uint32_t limit_ = 0;       // the match limit that `context_` holds
    uint32_t calls_ = 0;       // since the clock was last looked at
    double deadline_seconds_;  // on this thread's processor clock
  };

 private:
  struct Deleter {
    void operator()(pcre2_real_code_8* code) const;
  };
  static SplitPattern compile(std::string_view pattern, uint32_t options, const std::string& where);

  std::unique_ptr<pcre2_real_code_8, Deleter> code_;
  std::string where_;
};

}  // namespace levin::text
