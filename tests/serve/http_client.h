// A client of one connection, for tests: sends bytes, reads answers, and says when it cannot.
#pragma once

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace levin::serve::testing {

using Json = nlohmann::ordered_json;

struct Answer {
  int status = 0;  // 0: the connection ended before there was one
  std::string head;
  std::string body;  // without chunk sizes
  bool whole = false;

  Json json() const { return Json::parse(body); }
  std::string header(std::string_view name) const {
    const std::size_t at = head.find(fmt::format("\r\n{}: ", name));
    if (at == head.npos) return {};
    const std::size_t begin = at + 4 + name.size();
    return head.substr(begin, head.find("\r\n", begin) - begin);
  }
  // The data of server-sent events, in order; "[DONE]" too.
  std::vector<std::string> events() const {
    std::vector<std::string> data;
    std::size_t at = 0;
    while ((at = body.find("data: ", at)) != body.npos) {
      const std::size_t end = body.find("\n\n", at);
      if (end == body.npos) break;
      data.push_back(body.substr(at + 6, end - at - 6));
      at = end;
    }
    return data;
  }
};

class Client {
 public:
  // `receive_buffer`: bytes that the system takes for a client that does not read; 0: as it likes.
  explicit Client(uint16_t port, int receive_buffer = 0)
      : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    if (receive_buffer > 0) {
      ::setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof(receive_buffer));
    }
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
      close();
    }
  }
  ~Client() { close(); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  void close() {
    if (socket_ >= 0) ::close(std::exchange(socket_, -1));
  }
  bool connected() const { return socket_ >= 0; }

  // False when the server has closed the connection.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
  }

  // Nothing more will be sent; answers are still read.
  void end_sending() { ::shutdown(socket_, SHUT_WR); }

  void send_request(std::string_view method, std::string_view path, std::string_view body = {},
                    std::string_view headers = "Content-Type: application/json\r\n") {
    send(fmt::format("{} {} HTTP/1.1\r\nHost: test\r\n{}Content-Length: {}\r\n\r\n{}", method, path,
                     headers, body.size(), body));
  }

  // Bytes that have arrived; none at the end of the connection or after `seconds`.
  std::string receive(double seconds = 30) {
    pollfd poll = {.fd = socket_, .events = POLLIN, .revents = 0};
    if (::poll(&poll, 1, static_cast<int>(seconds * 1000)) <= 0) return {};
    std::string bytes(65536, '\0');
    const ssize_t got = ::recv(socket_, bytes.data(), bytes.size(), 0);
    bytes.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
    return bytes;
  }

  // The next answer; `bodiless` for HEAD.
  Answer read(double seconds = 30, bool bodiless = false) {
    Answer answer;
    while (buffer_.find("\r\n\r\n") == buffer_.npos) {
      if (!fill(seconds)) return answer;
    }
    const std::size_t end = buffer_.find("\r\n\r\n");
    answer.head = buffer_.substr(0, end + 2);
    buffer_.erase(0, end + 4);
    answer.status = std::stoi(answer.head.substr(9, 3));
    if (bodiless) {
      answer.whole = true;
    } else if (answer.header("Transfer-Encoding") == "chunked") {
      read_chunks(answer, seconds);
    } else {
      const std::size_t size = std::stoul("0" + answer.header("Content-Length"));
      while (buffer_.size() < size && fill(seconds)) {
      }
      answer.whole = buffer_.size() >= size;
      answer.body = buffer_.substr(0, size);
      buffer_.erase(0, size);
    }
    return answer;
  }

  // Whether the server ends the connection within `seconds`.
  bool ends(double seconds) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    while (std::chrono::steady_clock::now() < deadline) {
      pollfd poll = {.fd = socket_, .events = POLLIN, .revents = 0};
      if (::poll(&poll, 1, 20) <= 0) continue;
      char byte = 0;
      if (::recv(socket_, &byte, 1, 0) <= 0) return true;
    }
    return false;
  }

 private:
  bool fill(double seconds) {
    const std::string bytes = receive(seconds);
    buffer_ += bytes;
    return !bytes.empty();
  }

  void read_chunks(Answer& answer, double seconds) {
    while (true) {
      const std::size_t line = buffer_.find("\r\n");
      if (line == buffer_.npos) {
        if (!fill(seconds)) return;
        continue;
      }
      const std::size_t size = std::stoul(buffer_.substr(0, line), nullptr, 16);
      if (buffer_.size() < line + 2 + size + 2) {
        if (!fill(seconds)) return;
        continue;
      }
      answer.body += buffer_.substr(line + 2, size);
      buffer_.erase(0, line + 2 + size + 2);
      if (size == 0) break;
    }
    answer.whole = true;
  }

  int socket_;
  std::string buffer_;
};

}  // namespace levin::serve::testing
