#include "bench/client/trace.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "bench/client/dataset.h"
#include "core/error.h"
#include "evaluate/json_lines.h"

namespace levin::bench::client {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kLongestTrace = 7.0 * 24 * 60 * 60;  // seconds

[[noreturn]] void bad_line(const std::string& where, std::string what, std::string expected,
                           std::string found) {
  throw Error({.what = std::move(what),
               .where = where,
               .expected = std::move(expected),
               .found = std::move(found),
               .hint = "levin bench --help describes traces"});
}

std::optional<int64_t> length_of(const Json& line, const char* key, const std::string& where) {
  if (!line.contains(key)) return std::nullopt;
  const Json& value = line.at(key);
  if (!value.is_number_integer() || value < 1 || value > kMostTokens) {
    bad_line(where, fmt::format("\"{}\" is no length", key),
             fmt::format("a number of tokens from 1 to {}", kMostTokens), value.dump());
  }
  return value.get<int64_t>();
}

void read_prompt(const Json& line, const std::string& where, TraceRequest& request) {
  if (line.contains("prompt")) {
    const Json& prompt = line.at("prompt");
    if (!prompt.is_string() || prompt.get_ref<const std::string&>().empty()) {
      bad_line(where, "\"prompt\" is no text", "a string that is not empty", prompt.dump());
    }
    request.prompt = prompt.get<std::string>();
    return;
  }
  const std::optional<int64_t> length = length_of(line, "input_length", where);
  if (!length) bad_line(where, "a request without prompt", "\"prompt\" or \"input_length\"", "");
  request.input_tokens = *length;
  if (!line.contains("hash_ids")) return;
  const Json& ids = line.at("hash_ids");
  for (const Json& id : ids.is_array() ? ids : Json::array({nullptr})) {
    if (!id.is_number_unsigned()) {
      bad_line(where, "\"hash_ids\" are no ids", "a list of numbers from 0", ids.dump());
    }
    request.blocks.push_back(id.get<uint64_t>());
  }
}

}  // namespace

std::vector<TraceRequest> read_trace(const std::filesystem::path& file, int64_t output_tokens) {
  std::vector<TraceRequest> requests;
  double first = 0;
  evaluate::for_each_json_line(file, [&](const Json& line, const std::string& where) {
    TraceRequest request;
    read_prompt(line, where, request);
    const std::optional<int64_t> length = length_of(line, "output_length", where);
    request.output_tokens =
        length ? *length : length_of(line, "output_tokens", where).value_or(output_tokens);
    if (line.contains("timestamp")) {
      const Json& time = line.at("timestamp");
      if (!time.is_number()) bad_line(where, "\"timestamp\" is no time", "ms", time.dump());
      if (requests.empty()) first = time.get<double>();
      request.at = (time.get<double>() - first) / 1000;
      if (!(*request.at <= kLongestTrace)) {
        bad_line(where, "the request comes too long after the first",
                 fmt::format("a \"timestamp\" at most {:.0f} ms after it", kLongestTrace * 1000),
                 time.dump());
      }
    }
    if (!requests.empty() && request.at.has_value() != requests.back().at.has_value()) {
      bad_line(where, "some requests have a time, others do not", "\"timestamp\" on all or none",
               "");
    }
    if (request.at.value_or(0) < (requests.empty() ? 0 : requests.back().at.value_or(0))) {
      bad_line(where, "times go back", "ascending \"timestamp\"", line.at("timestamp").dump());
    }
    requests.push_back(std::move(request));
  });
  return requests;
}

}  // namespace levin::bench::client
