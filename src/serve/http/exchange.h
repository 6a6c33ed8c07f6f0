// One HTTP request and the way to answer it. Knows nothing of models.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace levin::serve::http {

// nginx's status for a client that has gone: for the log, since nobody reads an answer.
inline constexpr int kClientGone = 499;

struct Header {
  std::string name;
  std::string value;
};

struct Request {
  std::string method;  // "GET"
  std::string path;    // of the target, without its query; not decoded
  std::string query;   // behind the '?'
  std::vector<Header> headers;
  std::string body;
  std::string remote;  // address of the client
  std::chrono::steady_clock::time_point received;

  // The value of the first header of this name, whatever its case; empty when there is none.
  std::string_view header(std::string_view name) const;
};

struct Response {
  int status = 200;
  std::string content_type = "application/json";
  std::string body = {};
  std::vector<Header> headers = {};
};

// All functions are for the I/O thread (Server::post()). An exchange is answered once: with
// respond(), or with start_stream(), any number of write() and finish_stream(). Whatever is done
// after the client has gone is ignored.
class Exchange {
 public:
  virtual ~Exchange() = default;

  virtual const Request& request() const = 0;
  virtual void respond(Response response) = 0;
  // The head of an answer whose body follows piece by piece.
  virtual void start_stream(Response head) = 0;
  // Never waits. False when the client has gone, or when it does not read and more waits for it
  // than Limits::unsent_bytes: then it is cut off, and on_disconnect has been called.
  virtual bool write(std::string_view data) = 0;
  virtual void finish_stream() = 0;
  // Called once if the client goes away before the answer has been sent; at once if it has gone
  // already.
  virtual void on_disconnect(std::function<void()> callback) = 0;
};

using Handler = std::function<void(std::shared_ptr<Exchange>)>;

}  // namespace levin::serve::http
