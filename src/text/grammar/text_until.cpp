#include "text/grammar/text_until.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

namespace levin::text::grammar {
namespace {

const CodePointSet kBeyondAscii = {{0x80, 0xD7FF}, {0xE000, 0x10FFFF}};

// Follows how much of the strings looked for stands at the end of the text (Aho and Corasick), and
// how long the text is.
class TextWalk {
 public:
  TextWalk(AutomatonBuilder& builder, CharacterSets& sets, const FreeText& text)
      : builder_(builder), sets_(sets), text_(text), end_(builder.add_state()) {
    const auto add = [&](std::string_view string) {
      for (const char c : string) occurs_[static_cast<uint8_t>(c)] = true;
    };
    add(text.end);
    std::ranges::for_each(text.never, add);
  }

  State consume(State from) {
    builder_.jump(from, state_at({}, 0));
    while (!open_.empty()) {
      const auto [suffix, length] = open_.back();
      open_.pop_back();
      connect(suffix, length);
    }
    return end_;
  }

 private:
  // The longest end of `text` that begins one of the strings.
  std::string longest_beginning(std::string_view text) const {
    const auto begins = [&](std::string_view part) {
      return text_.end.starts_with(part) ||
             std::ranges::any_of(text_.never, [&](const std::string& string) {
               return std::string_view(string).starts_with(part);
             });
    };
    while (!begins(text)) text.remove_prefix(1);
    return std::string(text);
  }

  // How much of `suffix` may turn out to be the end, and so is not text.
  int32_t part_of_end(std::string_view suffix) const {
    while (!text_.end.starts_with(suffix)) suffix.remove_prefix(1);
    return static_cast<int32_t>(suffix.size());
  }

  bool counts() const { return text_.min_length > 0 || text_.max_length != kUnlimited; }

  State state_at(const std::string& suffix, int32_t length) {
    const auto [found, added] = states_.try_emplace({suffix, length}, 0);
    if (added) {
      found->second = builder_.add_state();
      open_.push_back(found->first);
    }
    return found->second;
  }

  void connect(const std::string& suffix, int32_t length) {
    const State state = states_.at({suffix, length});
    std::string except;
    int run_begin = 0;
    State run_to = -1;
    // What any other byte leads to.
    const State to_other = after(suffix, length, '\x7f');
    const bool other_harmless = to_other >= 0 && to_other == after({}, length, '\x7f');
    const auto end_run = [&](int c, State to) {
      if (run_to == to) return;
      if (run_to >= 0) {
        builder_.consume(state, static_cast<Symbol>(run_begin), static_cast<Symbol>(c - 1), run_to);
      }
      run_begin = c;
      run_to = to;
    };
    for (int c = 0; c < 128; ++c) {
      const auto byte = static_cast<char>(c);
      const bool excluded =
          !text_.any_bytes && c < 0x20 && byte != '\t' && byte != '\n' && byte != '\r';
      const bool known = occurs_[static_cast<std::size_t>(c)];
      const State to = excluded ? -1 : known ? after(suffix, length, byte) : to_other;
      end_run(c, to);
      // Behind other bytes than these the text is as good as at its begin.
      const bool harmless = known ? to >= 0 && to == after({}, length, byte) : other_harmless;
      if (!harmless && !excluded && byte != '<') except += byte;
    }
    end_run(128, -1);
    connect_beyond_ascii(state, length);
    if (text_.end_is_marker && length >= text_.min_length) builder_.marker(state, text_.end, end_);
    set_filler(state, length, std::move(except));
  }

  void connect_beyond_ascii(State state, int32_t length) {
    const State to = after({}, length, '\x7f');  // as any character that begins nothing
    if (to < 0) return;
    if (text_.any_bytes) {
      builder_.consume(state, 0x80, 0xFF, to);
    } else {
      sets_.consume(state, kBeyondAscii, Spelling::kPlain, to);
    }
  }

  // The state behind one more byte, or -1 when it must not come.
  State after(const std::string& suffix, int32_t length, char byte) {
    std::string text = suffix + byte;
    const auto end_size = static_cast<int32_t>(text_.end.size());
    const int32_t longer = counts() ? std::min(length + 1, longest_count()) : 0;
    if (text.ends_with(text_.end)) {
      return !counts() || longer - end_size >= text_.min_length ? end_ : -1;
    }
    for (const std::string& string : text_.never) {
      if (text.ends_with(string)) return -1;
    }
    text = longest_beginning(text);
    if (text_.max_length != kUnlimited && longer - part_of_end(text) > text_.max_length) return -1;
    return state_at(text, longer);
  }

  // Lengths need not be told apart from here on.
  int32_t longest_count() const {
    const int32_t bound = text_.max_length == kUnlimited ? text_.min_length : text_.max_length;
    return bound + static_cast<int32_t>(text_.end.size()) + 1;
  }

  void set_filler(State state, int32_t length, std::string except) {
    FillerText filler{.kind = text_.any_bytes ? Filler::kAnyBytes : Filler::kPlainText};
    filler.except = std::move(except);
    if (text_.max_length != kUnlimited) {
      filler.characters = std::max(0, text_.max_length - length);
    }
    builder_.set_filler(state, std::move(filler));
  }

  AutomatonBuilder& builder_;
  CharacterSets& sets_;
  const FreeText& text_;
  State end_;
  std::array<bool, 128> occurs_ = {};  // in the strings looked for
  std::map<std::pair<std::string, int32_t>, State> states_;
  std::vector<std::pair<std::string, int32_t>> open_;
};

}  // namespace

State consume_text_until(AutomatonBuilder& builder, CharacterSets& sets, State from,
                         const FreeText& text) {
  return TextWalk(builder, sets, text).consume(from);
}

}  // namespace levin::text::grammar
