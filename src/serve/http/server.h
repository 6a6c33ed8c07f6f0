// An HTTP server on one thread: accepts connections, reads requests within limits, hands them to a
// handler and writes what it answers, to any number of clients at once. HTTP/1.0 gets a connection
// for each request, whose end is that of the answer.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "serve/http/exchange.h"

namespace levin::serve::http {

struct Limits {
  uint32_t header_bytes = 32 << 10;         // request line and headers; more: 431
  uint64_t body_bytes = uint64_t{8} << 20;  // more: 413
  // That all bodies may hold together, each from its first byte read to the end of its exchange;
  // the request that would hold more gets 503.
  uint64_t held_bytes = uint64_t{256} << 20;
  // From the first wait for a request to the end of its headers, also between two requests of a
  // connection; and for its body. Then the connection is closed.
  std::chrono::milliseconds header_time = std::chrono::seconds(60);
  std::chrono::milliseconds body_time = std::chrono::seconds(60);
  // For a client that does not read: until a piece of an answer is on its way.
  std::chrono::milliseconds write_time = std::chrono::seconds(60);
  std::size_t unsent_bytes = std::size_t{1} << 20;  // of a streamed answer
  // What the system holds beyond that, for each connection; 0: as it likes.
  int send_buffer = 0;
  int connections = 4096;  // more: 503 and closed; many more: closed
};

struct Counts {
  int connections = 0;
  int answering = 0;               // requests whose answers have not been sent
  uint64_t held_bytes = 0;         // of bodies
  int64_t refused_for_memory = 0;  // requests whose bodies would have been too much beside others
};

class Server {
 public:
  // Listens. `port` 0 takes any free one. Throws Error when that is impossible.
  Server(const std::string& host, uint16_t port, const Limits& limits, Handler handler);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  uint16_t port() const;
  // Serves on this thread, the I/O thread, until close() or stop() is through.
  void run();

  // From any thread: runs `function` on the I/O thread.
  void post(std::function<void()> function);
  // On the I/O thread, again and again.
  void every(std::chrono::milliseconds interval, std::function<void()> function);
  // SIGINT and SIGTERM, on the I/O thread.
  void on_signal(std::function<void()> function);
  // From any thread. Accepts nothing more; run() returns when the answers under way have been sent,
  // at the latest after `patience`. May be called again with less of it.
  void close(std::chrono::milliseconds patience);
  // On the I/O thread.
  Counts counts() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace levin::serve::http
