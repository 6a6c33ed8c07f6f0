#include "engine/output_text.h"

#include <algorithm>

namespace levin::engine {

OutputText::OutputText(const text::Tokenizer* tokenizer, const SamplingParams& params)
    : params_(params) {
  if (tokenizer != nullptr) {
    decoder_.emplace(*tokenizer, params.skip_special_tokens, params.shown_special_tokens);
  }
  if (params.include_stop_str_in_output) return;
  for (const std::string& stop : params.stop) held_back_ = std::max(held_back_, stop.size() - 1);
}

std::optional<std::string> OutputText::push(int32_t token, bool may_stop) {
  if (!decoder_) return std::nullopt;
  const std::string added = decoder_->push(token);
  text_ += added;
  if (!may_stop || added.empty()) return std::nullopt;
  for (const std::string& stop : params_.stop) {
    // A match must end in the new text.
    const std::size_t window = std::min(text_.size(), added.size() + stop.size() - 1);
    const std::size_t at = text_.find(stop, text_.size() - window);
    if (at == std::string::npos) continue;
    text_.resize(params_.include_stop_str_in_output ? at + stop.size() : at);
    decoder_.reset();
    held_back_ = 0;
    return stop;
  }
  return std::nullopt;
}

void OutputText::finish() {
  if (decoder_) text_ += decoder_->finish();
  decoder_.reset();
  held_back_ = 0;
}

std::size_t OutputText::settled() const {
  std::size_t size = text_.size() - std::min(held_back_, text_.size());
  while (size > 0 && size < text_.size() && (text_[size] & 0xC0) == 0x80) --size;
  return size;
}

}  // namespace levin::engine
