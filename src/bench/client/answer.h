// Reads the events of a streamed answer of /v1/chat/completions or /v1/completions into a record.
#pragma once

#include <string_view>

#include "bench/client/record.h"

namespace levin::bench::client {

class AnswerReader {
 public:
  explicit AnswerReader(RequestRecord& record) : record_(record) {}

  // The data of one event that arrived at `now`. What is not as it should be becomes the record's
  // error, the first of them.
  void on_event(std::string_view data, double now);
  // The stream is over; one that was cut off lacks its end.
  void on_end();

 private:
  void fail(std::string error);

  RequestRecord& record_;
  bool done_ = false;
};

// The message of an error's body, whichever form it has, on one line; a piece of the body when it
// has none.
std::string error_message(std::string_view body);

}  // namespace levin::bench::client
