// What has to be asked of a server before it is measured.
#pragma once

#include <optional>
#include <string>

#include "bench/client/counters.h"
#include "bench/client/dataset.h"
#include "bench/client/http.h"

namespace levin::bench::client {

// How a request is written.
struct RequestStyle {
  std::string endpoint;
  std::string model;
  double temperature = 0;
  bool ignore_eos = false;

  bool chat() const { return endpoint.ends_with("/chat/completions"); }
};

// JSON. A stream ends with the usage.
std::string request_body(const RequestStyle& style, const std::string& prompt,
                         int64_t output_tokens, bool stream);

// `wanted`, or the only model there is when that is empty. Throws Error when there is no such
// model, or several to choose from.
std::string find_model(const Target& target, const std::string& wanted);

// Nothing when the server has no /metrics, or none that are known.
std::optional<ServerCounters> read_counters(const Target& target);

// From the usage of short requests with pieces of `dataset`; nothing when the server sends none.
// `prefix` is put before prompts. Throws Error when the server refuses.
std::optional<TokenScale> measure_scale(const Target& target, const RequestStyle& style,
                                        const Dataset& dataset, const std::string& prefix);

}  // namespace levin::bench::client
