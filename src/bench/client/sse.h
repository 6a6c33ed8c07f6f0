// Server-sent events, as the HTML standard parses them: what a stream of bytes says, whatever the
// pieces it arrives in. Knows no HTTP and no JSON.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace levin::bench::client {

class SseParser {
 public:
  // Larger events are no answer of a model.
  static constexpr std::size_t kMostBytes = std::size_t{8} << 20;

  // `on_event` gets the data of each event, its lines joined by newlines. Comments, names and ids
  // of events are skipped.
  explicit SseParser(std::function<void(std::string_view data)> on_event);

  // False when an event is larger than kMostBytes; nothing is parsed from then on.
  bool feed(std::string_view bytes);
  // Whether the stream may end here: no event has begun that has not ended.
  bool between_events() const { return line_.empty() && !has_data_; }

 private:
  void end_line();

  std::function<void(std::string_view)> on_event_;
  std::string line_;
  std::string data_;
  bool has_data_ = false;
  bool after_return_ = false;  // a newline right behind belongs to it
  bool too_large_ = false;
};

}  // namespace levin::bench::client
