// A server of OpenAI's API that misbehaves as it is told, on a port of this machine. A thread for
// each connection, one request each.
#pragma once

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace levin::bench::client::testing {

// One request's connection.
class Peer {
 public:
  explicit Peer(int socket) : socket_(socket) {}
  ~Peer() { ::close(socket_); }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  // False when the client has gone.
  bool send(std::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
  }
  // A whole answer.
  void answer(int status, std::string_view body, std::string_view headers = "") const {
    send(fmt::format("HTTP/1.1 {} X\r\nContent-Length: {}\r\nConnection: close\r\n{}\r\n{}", status,
                     body.size(), headers, body));
  }
  // The head of a stream that ends with the connection.
  void begin_stream() const {
    send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n");
  }
  bool event(std::string_view data) const { return send(fmt::format("data: {}\n\n", data)); }

  std::string receive() const {
    std::string bytes(65536, '\0');
    const ssize_t got = ::recv(socket_, bytes.data(), bytes.size(), 0);
    bytes.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
    return bytes;
  }

 private:
  int socket_;
};

// Answers of `tokens` tokens to a prompt of `prompt` tokens.
struct Good {
  int tokens = 4;
  int prompt = 50;
  int cached = 0;
  bool usage = true;

  void operator()(const Peer& peer) const {
    peer.begin_stream();
    peer.event(R"({"choices": [{"text": ""}]})");
    for (int i = 1; i < tokens; ++i) peer.event(R"({"choices": [{"text": "x"}]})");
    peer.event(R"({"choices": [{"text": "x", "finish_reason": "length"}]})");
    if (usage) peer.event(usage_chunk());
    peer.event("[DONE]");
  }
  std::string usage_chunk() const {
    return fmt::format(
        R"({{"choices": [], "usage": {{"prompt_tokens": {}, "completion_tokens": {}, )"
        R"("prompt_tokens_details": {{"cached_tokens": {}}}}}}})",
        prompt, tokens, cached);
  }
};

class MockServer {
 public:
  // Streams are answered by `stream`, which is told how many there were before.
  using Stream = std::function<void(const Peer&, int)>;

  explicit MockServer(Stream stream) : stream_(std::move(stream)) {
    listener_ = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ::bind(listener_, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
    ::listen(listener_, 256);
    socklen_t size = sizeof(address);
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { accept_all(); });
  }
  ~MockServer() {
    stopping_ = true;
    thread_.join();
    ::close(listener_);
    for (std::thread& worker : workers_) worker.join();
  }
  MockServer(const MockServer&) = delete;
  MockServer& operator=(const MockServer&) = delete;

  std::string url() const { return fmt::format("http://127.0.0.1:{}", port_); }
  std::vector<std::string> requests() {
    const std::lock_guard lock(mutex_);
    return requests_;
  }
  int most_at_once() const { return most_at_once_; }

  // What other routes say.
  std::string models = R"({"data": [{"id": "mock"}]})";
  std::function<std::string()> metrics;  // none: 404
  bool counts_prompts = true;
  std::function<std::string()> prompt_tokens = [] { return std::string("120"); };
  std::string key;  // empty: none is asked for

 private:
  void accept_all() {
    while (!stopping_) {
      pollfd poll = {.fd = listener_, .events = POLLIN, .revents = 0};
      if (::poll(&poll, 1, 10) <= 0) continue;
      const int socket = ::accept(listener_, nullptr, nullptr);
      if (socket >= 0) workers_.emplace_back([this, socket] { serve(socket); });
    }
  }

  void serve(int socket) {
    const Peer peer(socket);
    std::string request;
    while (true) {
      const std::size_t head = request.find("\r\n\r\n");
      if (head != request.npos) {
        const std::size_t at = request.find("Content-Length: ");
        const std::size_t body = at < head ? std::stoul(request.substr(at + 16)) : 0;
        if (request.size() >= head + 4 + body) break;
      }
      const std::string bytes = peer.receive();
      if (bytes.empty()) return;
      request += bytes;
    }
    if (!key.empty() && request.find("Authorization: Bearer " + key + "\r\n") == request.npos) {
      return peer.answer(401, R"({"error": {"message": "who are you?"}})");
    }
    if (request.starts_with("GET /v1/models ")) return peer.answer(200, models);
    if (request.starts_with("GET /metrics ") && metrics) return peer.answer(200, metrics());
    if (!request.starts_with("POST /v1/c")) return peer.answer(404, "no");
    if (request.find("\"stream\":false") != request.npos) {
      return peer.answer(
          200, counts_prompts
                   ? fmt::format(R"({{"usage": {{"prompt_tokens": {}}}}})", prompt_tokens())
                   : "{}");
    }
    int number = 0;
    {
      const std::lock_guard lock(mutex_);
      number = static_cast<int>(requests_.size());
      requests_.push_back(request);
    }
    most_at_once_ = std::max<int>(most_at_once_, ++at_once_);
    stream_(peer, number);
    --at_once_;
  }

  Stream stream_;
  int listener_ = -1;
  uint16_t port_ = 0;
  std::atomic<bool> stopping_ = false;
  std::atomic<int> at_once_ = 0;
  std::atomic<int> most_at_once_ = 0;
  std::mutex mutex_;
  std::vector<std::string> requests_;
  std::vector<std::thread> workers_;  // of the accepting thread, then of the destructor
  std::thread thread_;
};

}  // namespace levin::bench::client::testing
