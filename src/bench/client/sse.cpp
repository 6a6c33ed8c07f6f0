#include "bench/client/sse.h"

#include <algorithm>
#include <utility>

namespace levin::bench::client {

SseParser::SseParser(std::function<void(std::string_view data)> on_event)
    : on_event_(std::move(on_event)) {}

bool SseParser::feed(std::string_view bytes) {
  while (!bytes.empty() && !too_large_) {
    if (after_return_ && bytes.front() == '\n') bytes.remove_prefix(1);
    after_return_ = false;
    const std::size_t end = bytes.find_first_of("\r\n");
    const std::string_view piece = bytes.substr(0, end);
    too_large_ = line_.size() + data_.size() + piece.size() > kMostBytes;
    if (too_large_) break;
    line_ += piece;
    if (end == bytes.npos) break;
    after_return_ = bytes[end] == '\r';
    bytes.remove_prefix(end + 1);
    end_line();
  }
  return !too_large_;
}

void SseParser::end_line() {
  if (line_.empty()) {
    if (has_data_) on_event_(data_);
    data_.clear();
    has_data_ = false;
    return;
  }
  constexpr std::string_view kField = "data";
  const std::string_view line = line_;
  const std::string_view name = line.substr(0, line.find(':'));
  if (name == kField) {
    std::string_view value = line.substr(std::min(line.size(), kField.size() + 1));
    if (value.starts_with(' ')) value.remove_prefix(1);
    if (has_data_) data_ += '\n';
    data_ += value;
    has_data_ = true;
  }
  line_.clear();
}

}  // namespace levin::bench::client
