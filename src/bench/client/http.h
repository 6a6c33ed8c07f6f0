// A server by its URL: single requests of it, for what surrounds a run of load.
#pragma once

#include <string>

namespace levin::bench::client {

struct Target {
  std::string url;      // http://host:port, without the path of an API
  std::string api_key;  // empty: none
  double timeout_seconds = 600;
};

struct HttpAnswer {
  int status = 0;
  std::string body;
};

// Both throw Error with ExitCode::kMachine when nobody answers, kBadInput for what is no URL.
HttpAnswer http_get(const Target& target, const std::string& path);
HttpAnswer http_post(const Target& target, const std::string& path, const std::string& body);

}  // namespace levin::bench::client
