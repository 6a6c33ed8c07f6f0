// The pre_tokenizer of tokenizer.json: stages that cut text into the words BPE works on.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/split_pattern.h"
#include "text/utf8.h"

namespace levin::text {

// One entry of the Sequence. A Split has only a pattern; ByteLevel may add a leading space and may
// split with GPT-2's pattern. (That ByteLevel also spells bytes as characters does not show here:
// levin works on the bytes themselves.)
struct SplitStage {
  std::optional<SplitPattern> pattern;
  bool add_prefix_space = false;
  // Which pieces are dropped: none (behavior Isolated), the matches (Removed), or what lies
  // between them (Removed with invert).
  bool drop_matches = false;
  bool drop_gaps = false;
};

// Runs the stages over one text; one per thread and text.
class PreTokenizer {
 public:
  PreTokenizer(const std::vector<SplitStage>& stages, std::size_t text_size) : stages_(stages) {
    for (const SplitStage& stage : stages) {
      matchers_.emplace_back();
      if (stage.pattern) matchers_.back().emplace(*stage.pattern, text_size);
    }
  }

  // Calls emit(word) for each word of `text` (valid UTF-8) in order; no word is empty.
  template <typename Emit>
  void split(std::string_view text, Emit&& emit) {
    run_stage(0, text, emit);
  }

 private:
  template <typename Emit>
  void run_stage(std::size_t index, std::string_view text, Emit& emit) {
    if (text.empty()) return;
    if (index == stages_.size()) {
      emit(text);
      return;
    }
    const SplitStage& stage = stages_[index];
    std::string prefixed;
    if (stage.add_prefix_space && text.front() != ' ') {
      prefixed.reserve(text.size() + 1);
      prefixed += ' ';
      prefixed += text;
      text = prefixed;
    }
    auto next = [&](std::string_view piece) { run_stage(index + 1, piece, emit); };
    if (!stage.pattern) {
      next(text);
      return;
    }
    split_by_pattern(text, *matchers_[index], [&](std::string_view piece, bool matched) {
      if (!(matched ? stage.drop_matches : stage.drop_gaps)) next(piece);
    });
  }

  // Calls emit(piece, matched) for the matches and what lies between them. An empty match cuts the
  // text where it stands, unless right behind another match.
  template <typename Emit>
  static void split_by_pattern(std::string_view text, SplitPattern::Matcher& matcher, Emit&& emit) {
    std::size_t piece = 0;  // begin of what is not emitted yet
    std::size_t at = 0;
    while (at < text.size()) {
      const std::optional<std::size_t> end = matcher.match_at(text, at);
      if (end && piece < at) {
        emit(text.substr(piece, at - piece), false);
        piece = at;
      }
      if (end && *end > at) {
        emit(text.substr(at, *end - at), true);
        piece = at = *end;
      } else {
        at += decode_utf8(text, at).length;
      }
    }
    if (piece < text.size()) emit(text.substr(piece), false);
  }

  const std::vector<SplitStage>& stages_;
  std::vector<std::optional<SplitPattern::Matcher>> matchers_;
};

}  // namespace levin::text
