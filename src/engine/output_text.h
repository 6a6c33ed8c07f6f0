// The text of an output as it grows, and the stop strings in it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/sampling.h"
#include "text/tokenizer.h"

namespace levin::engine {

class OutputText {
 public:
  // Without a tokenizer the text stays empty.
  OutputText(const text::Tokenizer* tokenizer, const SamplingParams& params);

  // Adds a token's text. When that completes a stop string (the first in the order of
  // SamplingParams::stop, as in vLLM), cuts the text before it, or behind it with
  // include_stop_str_in_output, and returns it. With `may_stop` false none is looked for.
  std::optional<std::string> push(int32_t token, bool may_stop);
  // No more tokens will come: adds what is left of an unfinished character.
  void finish();

  const std::string& text() const { return text_; }
  // How much of the text no later token can cut away; ends between characters.
  std::size_t settled() const;

 private:
  const SamplingParams& params_;
  std::optional<text::StreamDecoder> decoder_;
  std::string text_;
  std::size_t held_back_ = 0;  // bytes at the end that may begin a stop string
};

}  // namespace levin::engine
