// Any bytes as a stream of server-sent events, in any pieces, read as the answer of a model: the
// pieces make no difference, and what is no answer has a name.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "bench/client/answer.h"
#include "bench/client/counters.h"
#include "bench/client/sse.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  using namespace levin::bench::client;
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data + 1), size - 1);
  const std::size_t step = 1 + data[0] % 32;

  RequestRecord record;
  AnswerReader reader(record);
  std::vector<std::string> whole;
  SseParser at_once([&](std::string_view event) {
    whole.emplace_back(event);
    reader.on_event(event, static_cast<double>(whole.size()));
  });
  at_once.feed(bytes);
  reader.on_end();
  if (record.ok() && record.finish_reason.empty()) std::abort();
  if (record.usage && (record.usage->prompt < 0 || record.usage->output < 0)) std::abort();

  std::vector<std::string> pieces;
  SseParser in_pieces([&](std::string_view event) { pieces.emplace_back(event); });
  for (std::size_t at = 0; at < bytes.size(); at += step) in_pieces.feed(bytes.substr(at, step));
  if (pieces != whole || in_pieces.between_events() != at_once.between_events()) std::abort();

  error_message(bytes);
  parse_counters(bytes);
  return 0;
}
