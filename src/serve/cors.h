// Which pages of other origins may ask, and may read the answers (cross-origin resource sharing, as
// browsers enforce it).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "serve/http/exchange.h"

namespace levin::serve {

class Cors {
 public:
  // As of an Origin header: "https://chat.example"; "*": any.
  explicit Cors(std::vector<std::string> origins) : origins_(std::move(origins)) {}

  // The exchange whose answer says that the page may read it; the same one where there is no page,
  // or one that may not.
  std::shared_ptr<http::Exchange> admit(const std::shared_ptr<http::Exchange>& exchange) const;
  // Answers a browser that asks beforehand; false when that is not what it does.
  bool answer_preflight(const std::shared_ptr<http::Exchange>& exchange) const;

 private:
  // For "Access-Control-Allow-Origin"; empty: the page may not.
  std::string allowed_origin(const http::Request& request) const;

  std::vector<std::string> origins_;
};

}  // namespace levin::serve
