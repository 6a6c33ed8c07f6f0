// One client's connection: reads a request, has it answered, and so on. For server.cpp only.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <functional>
#include <memory>
#include <unordered_map>

#include "serve/http/server.h"

namespace levin::serve::http {

class Connection;

// What all connections of a server share.
struct Shared {
  Limits limits;
  Handler handler;
  bool closing = false;
  Counts counts = {};
  std::unordered_map<const Connection*, std::weak_ptr<Connection>> open = {};
  // The last connection has gone.
  std::function<void()> on_empty = {};
};

// Begins to serve a client that has just connected.
void serve_connection(boost::asio::ip::tcp::socket socket, const std::shared_ptr<Shared>& shared);
// Tells a client that has just connected that there are too many.
void turn_away(boost::asio::ip::tcp::socket socket, const std::shared_ptr<Shared>& shared);
// Closes the connections that wait for a request.
void close_idle(Shared& shared);
// Where the body of an answer ends, when its head does not tell a length.
enum class Framing : uint8_t { kLength, kChunked, kUntilClose };
// A head as it goes over the wire.
std::string format_head(const Response& response, Framing framing, bool keep_alive);

}  // namespace levin::serve::http
