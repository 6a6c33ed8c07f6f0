// StreamDecoder of tokenizer.h.
#include <algorithm>
#include <utility>

#include "text/tokenizer.h"
#include "text/utf8.h"

namespace levin::text {

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, bool skip_special,
                             std::vector<int32_t> shown)
    : tokenizer_(&tokenizer), skip_special_(skip_special), shown_(std::move(shown)) {}

std::string StreamDecoder::push(int32_t id) {
  if (skip_special_ && tokenizer_->is_special(id) &&
      std::find(shown_.begin(), shown_.end(), id) == shown_.end()) {
    return {};
  }
  pending_ += tokenizer_->bytes_of(id);
  // All but a character that the next id may complete is final. It is at most three bytes.
  std::size_t final_bytes = pending_.size();
  for (std::size_t back = 1; back <= 3 && back <= pending_.size(); ++back) {
    const std::size_t at = pending_.size() - back;
    const Utf8Step step = decode_utf8(pending_, at);
    if (step.status == Utf8Status::kIncomplete) final_bytes = at;
  }
  std::string text = to_valid_utf8(std::string_view(pending_).substr(0, final_bytes));
  pending_.erase(0, final_bytes);
  return text;
}

std::string StreamDecoder::finish() {
  return to_valid_utf8(std::exchange(pending_, {}));
}

}  // namespace levin::text
