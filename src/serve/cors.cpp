#include "serve/cors.h"

#include <utility>

#include "serve/http/printable.h"

namespace levin::serve {
namespace {

class AdmittedExchange : public http::Exchange {
 public:
  AdmittedExchange(std::shared_ptr<http::Exchange> exchange, std::vector<http::Header> headers)
      : exchange_(std::move(exchange)), headers_(std::move(headers)) {}

  const http::Request& request() const override { return exchange_->request(); }
  void respond(http::Response response) override { exchange_->respond(with(std::move(response))); }
  void start_stream(http::Response head) override {
    exchange_->start_stream(with(std::move(head)));
  }
  bool write(std::string_view data) override { return exchange_->write(data); }
  void finish_stream() override { exchange_->finish_stream(); }
  void on_disconnect(std::function<void()> callback) override {
    exchange_->on_disconnect(std::move(callback));
  }

 private:
  http::Response with(http::Response response) const {
    response.headers.insert(response.headers.end(), headers_.begin(), headers_.end());
    return response;
  }

  std::shared_ptr<http::Exchange> exchange_;
  std::vector<http::Header> headers_;
};

}  // namespace

std::string Cors::allowed_origin(const http::Request& request) const {
  const std::string_view origin = request.header("Origin");
  if (origin.empty()) return {};
  for (const std::string& allowed : origins_) {
    if (allowed == "*") return "*";
    if (allowed == origin) return allowed;
  }
  return {};
}

std::shared_ptr<http::Exchange> Cors::admit(const std::shared_ptr<http::Exchange>& exchange) const {
  std::string origin = allowed_origin(exchange->request());
  if (origin.empty()) return exchange;
  return std::make_shared<AdmittedExchange>(
      exchange, std::vector<http::Header>{{"Access-Control-Allow-Origin", std::move(origin)},
                                          {"Access-Control-Expose-Headers",
                                           "X-Request-Id, X-Levin-Unknown-Fields, Retry-After"},
                                          {"Vary", "Origin"}});
}

bool Cors::answer_preflight(const std::shared_ptr<http::Exchange>& exchange) const {
  const http::Request& request = exchange->request();
  if (request.method != "OPTIONS" || request.header("Access-Control-Request-Method").empty() ||
      allowed_origin(request).empty()) {
    return false;
  }
  http::Response response{.content_type = ""};
  response.headers = {{"Access-Control-Allow-Methods", "GET, POST, OPTIONS"},
                      {"Access-Control-Max-Age", "600"}};
  // What the browser wants to send, given back as a header can hold it.
  std::string names(request.header("Access-Control-Request-Headers"));
  std::erase(names, ' ');
  const std::string headers = http::printable(names, 1024);
  if (!headers.empty()) response.headers.push_back({"Access-Control-Allow-Headers", headers});
  admit(exchange)->respond(std::move(response));
  return true;
}

}  // namespace levin::serve
