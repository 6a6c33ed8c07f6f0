// What is known of one request, and the latencies that follow from it. All times are seconds of one
// clock from the start of the run of load that the request was part of.
//
//    TTFT  first output - sent
//    E2E   last chunk - sent
//    TPOT  (last output - first output) / (output tokens - 1)
//    ITL   gaps between chunks with output; with speculation a chunk has several tokens
//
// Chunks that only name a role are no output. Numbers of tokens are the server's.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace levin::bench::client {

struct TokenUsage {
  int64_t prompt = 0;
  int64_t output = 0;
  std::optional<int64_t> cached;  // of the prompt's, where the server says so
};

struct RequestRecord {
  int64_t index = 0;  // of the request in its run of load
  int64_t asked = 0;  // output tokens at most; 0: not known
  double due = 0;     // when it should have been sent: its arrival, or when its place became free
  double sent = 0;
  double ended = 0;             // when the transfer was over
  double last = 0;              // of chunks with choices
  std::vector<double> outputs;  // arrivals of chunks with text
  int status = 0;               // HTTP's; 0: there was no answer
  std::string error;            // why it failed; empty: it did not
  std::string finish_reason;
  std::optional<TokenUsage> usage;

  bool ok() const { return error.empty(); }
  // Nothing without output.
  std::optional<double> ttft() const;
  double e2e() const { return last - sent; }
  // Nothing without usage, and for outputs of one token or one chunk.
  std::optional<double> tpot() const;
  std::vector<double> itl() const;
};

// One line of the raw record, in seconds.
nlohmann::ordered_json to_json(const RequestRecord& record);

}  // namespace levin::bench::client
