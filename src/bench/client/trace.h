// Traces of requests: when they came, what they asked and how long the answer was.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace levin::bench::client {

constexpr int64_t kTraceBlockTokens = 512;  // of a hash id, as in Mooncake's traces

struct TraceRequest {
  std::string prompt;            // or, when empty:
  int64_t input_tokens = 0;      // so long,
  std::vector<uint64_t> blocks;  // of these blocks
  int64_t output_tokens = 0;
  std::optional<double> at;  // seconds from the first request
};

// dataset.h has the format. Lines without an output length get `output_tokens`. Throws Error with
// file and line.
std::vector<TraceRequest> read_trace(const std::filesystem::path& file, int64_t output_tokens);

}  // namespace levin::bench::client
