#include "serve/http/connection.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>

#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/version.hpp>
#include <optional>
#include <utility>

#include "serve/http/printable.h"

namespace levin::serve::http {
namespace asio = boost::asio;
namespace beast = boost::beast;
using Code = boost::system::error_code;

namespace {

// What a client may send while it is being answered: its next request. More is left in the socket.
constexpr std::size_t kReadAhead = std::size_t{64} << 10;
// How long, and for how many bytes, a client may go on sending when the connection has its last
// answer: closed with bytes unread it would be reset, and a reset takes away an answer that the
// client has not read yet.
constexpr std::chrono::seconds kLinger(2);
constexpr std::size_t kLingerBytes = std::size_t{64} << 20;
constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";

std::string error_text(int status, std::string_view message) {
  const char* type = status == 413   ? "RequestEntityTooLargeError"
                     : status == 503 ? "ServiceUnavailableError"
                                     : "BadRequestError";
  return fmt::format(R"({{"error":{{"message":"{}","type":"{}","param":null,"code":{}}}}})",
                     message, type, status);
}

// The share of one body in what all bodies hold.
class BodyShare {
 public:
  explicit BodyShare(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}
  ~BodyShare() { shared_->counts.held_bytes -= bytes_; }
  BodyShare(const BodyShare&) = delete;
  BodyShare& operator=(const BodyShare&) = delete;

  // False, and nothing has changed, when there is no room for more.
  bool grow_to(uint64_t bytes) {
    uint64_t& held = shared_->counts.held_bytes;
    if (held - bytes_ + bytes > shared_->limits.held_bytes) return false;
    held += bytes - bytes_;
    bytes_ = bytes;
    return true;
  }

 private:
  std::shared_ptr<Shared> shared_;
  uint64_t bytes_ = 0;
};

}  // namespace

std::string format_head(const Response& response, Framing framing, bool keep_alive) {
  const auto reason = beast::http::obsolete_reason(
      beast::http::int_to_status(static_cast<unsigned>(response.status)));
  std::string head = fmt::format("HTTP/1.1 {} {}\r\nServer: levin\r\n", response.status,
                                 std::string_view(reason.data(), reason.size()));
  if (!response.content_type.empty()) {
    head += fmt::format("Content-Type: {}\r\n", response.content_type);
  }
  if (framing == Framing::kChunked) head += "Transfer-Encoding: chunked\r\n";
  if (framing == Framing::kLength) {
    head += fmt::format("Content-Length: {}\r\n", response.body.size());
  }
  for (const Header& header : response.headers) {
    head += fmt::format("{}: {}\r\n", header.name, header.value);
  }
  if (!keep_alive) head += "Connection: close\r\n";
  return head + "\r\n";
}

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(asio::ip::tcp::socket socket, std::shared_ptr<Shared> shared)
      : stream_(std::move(socket)), shared_(std::move(shared)) {
    Code ignored;
    const auto endpoint = stream_.socket().remote_endpoint(ignored);
    if (!ignored) remote_ = endpoint.address().to_string();
    stream_.socket().set_option(asio::ip::tcp::no_delay(true), ignored);
    if (const int bytes = shared_->limits.send_buffer; bytes > 0) {
      stream_.socket().set_option(asio::socket_base::send_buffer_size(bytes), ignored);
    }
    ++shared_->counts.connections;
  }

  ~Connection() {
    --shared_->counts.connections;
    shared_->open.erase(this);
    if (shared_->open.empty() && shared_->on_empty) shared_->on_empty();
  }

  void read_request() {
    state_ = State::kIdle;
    ++serial_;
    parser_.emplace();
    parser_->header_limit(shared_->limits.header_bytes);
    parser_->body_limit(shared_->limits.body_bytes);
    share_ = std::make_unique<BodyShare>(shared_);
    stream_.expires_after(shared_->limits.header_time);
    beast::http::async_read_header(
        stream_, buffer_, *parser_,
        [self = shared_from_this()](Code error, std::size_t) { self->on_header(error); });
  }

  void turn_away() { refuse(503, "too many connections"); }

  void close_if_idle() {
    if (state_ == State::kIdle) close();
  }

  // For the exchange with this serial number.
  bool answers(uint64_t serial) const { return serial == serial_ && state_ == State::kAnswering; }
  const Request& request() const { return request_; }
  void respond(const Response& response);
  void start_stream(const Response& head);
  bool write(std::string_view data);
  void finish_stream();
  void on_disconnect(std::function<void()> callback) { on_disconnect_ = std::move(callback); }

 private:
  enum class State : uint8_t { kIdle, kReading, kAnswering, kClosed };

  void on_header(Code error);
  void read_body();
  void read_some();
  void on_body(Code error);
  bool failed(Code error, std::string_view malformed);
  void refuse(int status, std::string_view message);
  void answer_refusal(int status, std::string_view message);
  void log_request(int status, std::string_view why) const;
  void dispatch();
  void watch();
  void on_readable(Code error);
  void disconnected();
  void append_chunk(std::string_view data);
  void flush();
  void on_written(Code error);
  void answered();
  void linger(std::size_t so_far);
  void close();

  beast::tcp_stream stream_;
  std::shared_ptr<Shared> shared_;
  std::string remote_;
  beast::flat_buffer buffer_;
  std::optional<beast::http::request_parser<beast::http::string_body>> parser_;
  std::unique_ptr<BodyShare> share_;  // of the request that is being read
  State state_ = State::kIdle;
  uint64_t serial_ = 0;  // of the current request
  Request request_;
  std::function<void()> on_disconnect_;
  std::string waiting_;  // to be sent
  std::string sending_;
  bool keep_alive_ = false;
  bool chunks_ = true;       // that the client understands
  bool last_piece_ = false;  // the answer is complete
};

namespace {

class ConnectionExchange : public Exchange {
 public:
  ConnectionExchange(std::shared_ptr<Connection> connection, uint64_t serial,
                     std::unique_ptr<BodyShare> share)
      : connection_(std::move(connection)),
        serial_(serial),
        request_(connection_->request()),
        share_(std::move(share)) {}

  const Request& request() const override { return request_; }
  void respond(Response response) override {
    if (current()) connection_->respond(response);
  }
  void start_stream(Response head) override {
    if (current()) connection_->start_stream(head);
  }
  bool write(std::string_view data) override { return current() && connection_->write(data); }
  void finish_stream() override {
    if (current()) connection_->finish_stream();
  }
  void on_disconnect(std::function<void()> callback) override {
    if (!current()) return callback();
    connection_->on_disconnect(std::move(callback));
  }

 private:
  bool current() const { return connection_->answers(serial_); }

  std::shared_ptr<Connection> connection_;
  uint64_t serial_;
  Request request_;
  std::unique_ptr<BodyShare> share_;
};

}  // namespace

void Connection::on_header(Code error) {
  namespace http = beast::http;
  if (error && !parser_->got_some()) return close();  // between two requests
  if (failed(error, "this is not an HTTP request")) return;
  state_ = State::kReading;
  const bool current = parser_->get().version() == 11;
  if (!current && parser_->get().count(http::field::transfer_encoding) > 0) {
    return refuse(400, "HTTP/1.0 has no transfer encodings");
  }
  // Of any other a proxy and this parser may disagree where the body ends, and what comes after it
  // would be a request of nobody's.
  if (parser_->get().count(http::field::transfer_encoding) > 0 &&
      (parser_->get().count(http::field::transfer_encoding) > 1 ||
       !beast::iequals(parser_->get()[http::field::transfer_encoding], "chunked"))) {
    return refuse(501, "the only transfer encoding that is served is chunked");
  }
  if (current && beast::iequals(parser_->get()[http::field::expect], "100-continue")) {
    stream_.expires_after(shared_->limits.write_time);
    asio::async_write(stream_, asio::buffer(kContinue.data(), kContinue.size()),
                      [self = shared_from_this()](Code failed, std::size_t) {
                        failed ? self->close() : self->read_body();
                      });
    return;
  }
  read_body();
}

void Connection::read_body() {
  stream_.expires_after(shared_->limits.body_time);
  parser_->eager(true);
  read_some();
}

// Piece by piece, so that what a body holds is known while it grows.
void Connection::read_some() {
  if (parser_->is_done()) return dispatch();
  beast::http::async_read_some(
      stream_, buffer_, *parser_,
      [self = shared_from_this()](Code error, std::size_t) { self->on_body(error); });
}

void Connection::on_body(Code error) {
  if (failed(error, "the body is not what the headers say")) return;
  if (!share_->grow_to(parser_->get().body().size())) {
    ++shared_->counts.refused_for_memory;
    return refuse(503,
                  "the bodies of other requests take the memory there is for them; try again "
                  "later");
  }
  read_some();
}

// Deals with an error in the middle of a request. False when there is none.
bool Connection::failed(Code error, std::string_view malformed) {
  namespace http = beast::http;
  if (!error) return false;
  if (error == http::error::header_limit) {
    refuse(431, "the headers are too large");
  } else if (error == http::error::body_limit) {
    refuse(413, "the body is too large");
  } else if (error == http::error::partial_message) {
    // Most have gone. One that has only ended its own side can still read what was wrong.
    log_request(kClientGone, "it left in the middle of the request");
    answer_refusal(400, "the connection ended in the middle of the request");
  } else if (error.category() == make_error_code(http::error::partial_message).category()) {
    refuse(400, malformed);
  } else if (error == beast::error::timeout) {
    log_request(kClientGone, "cut off, the request took too long to arrive");
    close();
  } else {
    log_request(kClientGone, error.message());
    close();
  }
  return true;
}

// As the access log has requests, for one that the handler never sees.
void Connection::log_request(int status, std::string_view why) const {
  std::string method;
  std::string path;
  if (parser_) {
    const auto name = parser_->get().method_string();
    const auto target = parser_->get().target();
    method = printable({name.data(), name.size()}, 16);
    path = printable(std::string_view(target.data(), target.size()).substr(0, target.find('?')));
  }
  spdlog::info("request client={} method={} path={} status={} reason=\"{}\"", remote_, method, path,
               status, why);
}

void Connection::refuse(int status, std::string_view message) {
  log_request(status, message);
  answer_refusal(status, message);
}

void Connection::answer_refusal(int status, std::string_view message) {
  state_ = State::kAnswering;
  ++shared_->counts.answering;
  keep_alive_ = false;
  parser_.reset();  // and what it has read
  share_.reset();
  Response response{.status = status, .body = error_text(status, message)};
  if (status == 503) response.headers.push_back({"Retry-After", "1"});
  respond(response);
}

void Connection::dispatch() {
  auto message = parser_->release();
  chunks_ = message.version() == 11;
  keep_alive_ = chunks_ && message.keep_alive();
  const auto text = [](beast::string_view view) { return std::string(view.data(), view.size()); };
  request_ = {};
  request_.method = text(message.method_string());
  const std::string target = text(message.target());
  const std::size_t mark = target.find('?');
  request_.path = target.substr(0, mark);
  if (mark != target.npos) request_.query = target.substr(mark + 1);
  for (const auto& field : message) {
    request_.headers.push_back({text(field.name_string()), text(field.value())});
  }
  request_.body = std::move(message.body());
  request_.remote = remote_;
  request_.received = std::chrono::steady_clock::now();
  parser_.reset();
  state_ = State::kAnswering;
  ++shared_->counts.answering;
  on_disconnect_ = nullptr;
  stream_.expires_never();
  auto exchange =
      std::make_shared<ConnectionExchange>(shared_from_this(), serial_, std::move(share_));
  request_.body.clear();  // the exchange has it
  watch();
  shared_->handler(std::move(exchange));
}

// Notices when the client goes away while nothing is being read.
void Connection::watch() {
  stream_.socket().async_wait(asio::ip::tcp::socket::wait_read,
                              [self = shared_from_this(), serial = serial_](Code error) {
                                if (serial == self->serial_ && self->state_ == State::kAnswering)
                                  self->on_readable(error);
                              });
}

void Connection::on_readable(Code error) {
  if (error) return;
  char byte = 0;
  const ssize_t got = ::recv(stream_.socket().native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return watch();
  if (got <= 0) return disconnected();
  // The next request, early. Kept for later; beyond kReadAhead nobody watches any more.
  if (buffer_.size() >= kReadAhead) return;
  Code failed;
  buffer_.commit(stream_.socket().read_some(buffer_.prepare(4096), failed));
  if (failed && failed != asio::error::would_block) return disconnected();
  watch();
}

void Connection::disconnected() {
  if (state_ == State::kClosed) return;
  const auto callback = std::exchange(on_disconnect_, nullptr);
  close();
  if (callback) callback();
}

void Connection::respond(const Response& response) {
  if (shared_->closing) keep_alive_ = false;
  const bool bodiless = request_.method == "HEAD" || response.status == 204;
  waiting_ += format_head(response, Framing::kLength, keep_alive_);
  if (!bodiless) waiting_ += response.body;
  last_piece_ = true;
  flush();
}

void Connection::start_stream(const Response& head) {
  if (shared_->closing) keep_alive_ = false;
  waiting_ += format_head(head, chunks_ ? Framing::kChunked : Framing::kUntilClose, keep_alive_);
  flush();
}

void Connection::append_chunk(std::string_view data) {
  if (!chunks_) {
    waiting_ += data;
    return;
  }
  waiting_ += fmt::format("{:x}\r\n", data.size());
  waiting_ += data;
  waiting_ += "\r\n";
}

bool Connection::write(std::string_view data) {
  if (data.empty()) return true;  // an empty chunk would end the body
  if (waiting_.size() + sending_.size() + data.size() > shared_->limits.unsent_bytes) {
    spdlog::warn("{} does not read: cut off with {} bytes unsent", remote_,
                 waiting_.size() + sending_.size());
    disconnected();
    return false;
  }
  append_chunk(data);
  flush();
  return state_ == State::kAnswering;
}

void Connection::finish_stream() {
  if (chunks_) waiting_ += "0\r\n\r\n";
  last_piece_ = true;
  if (waiting_.empty() && sending_.empty()) return answered();
  flush();
}

void Connection::flush() {
  if (!sending_.empty() || waiting_.empty()) return;
  sending_.swap(waiting_);
  stream_.expires_after(shared_->limits.write_time);
  asio::async_write(
      stream_, asio::buffer(sending_),
      [self = shared_from_this()](Code error, std::size_t) { self->on_written(error); });
}

void Connection::on_written(Code error) {
  if (state_ == State::kClosed) return;
  if (error == beast::error::timeout) {
    spdlog::warn("{} does not read: cut off after {:.1f} s with {} bytes unsent", remote_,
                 std::chrono::duration<double>(shared_->limits.write_time).count(),
                 waiting_.size() + sending_.size());
  }
  if (error) return disconnected();
  sending_.clear();
  stream_.expires_never();
  if (!waiting_.empty()) return flush();
  if (last_piece_) answered();
}

void Connection::answered() {
  --shared_->counts.answering;
  on_disconnect_ = nullptr;
  last_piece_ = false;
  request_ = {};
  if (keep_alive_ && !shared_->closing) return read_request();
  state_ = State::kReading;
  Code ignored;
  stream_.socket().shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
  stream_.expires_after(kLinger);
  linger(0);
}

void Connection::linger(std::size_t so_far) {
  buffer_.clear();
  stream_.async_read_some(buffer_.prepare(kReadAhead),
                          [self = shared_from_this(), so_far](Code error, std::size_t size) {
                            if (error || so_far + size > kLingerBytes) return self->close();
                            self->linger(so_far + size);
                          });
}

void Connection::close() {
  if (state_ == State::kClosed) return;
  if (state_ == State::kAnswering) --shared_->counts.answering;
  state_ = State::kClosed;
  on_disconnect_ = nullptr;
  Code ignored;
  stream_.socket().shutdown(asio::ip::tcp::socket::shutdown_both, ignored);
  stream_.close();
}

void serve_connection(asio::ip::tcp::socket socket, const std::shared_ptr<Shared>& shared) {
  const auto connection = std::make_shared<Connection>(std::move(socket), shared);
  shared->open.emplace(connection.get(), connection);
  connection->read_request();
}

void turn_away(asio::ip::tcp::socket socket, const std::shared_ptr<Shared>& shared) {
  const auto connection = std::make_shared<Connection>(std::move(socket), shared);
  shared->open.emplace(connection.get(), connection);
  connection->turn_away();
}

void close_idle(Shared& shared) {
  std::vector<std::shared_ptr<Connection>> connections;
  for (const auto& [key, connection] : shared.open) {
    if (auto held = connection.lock()) connections.push_back(std::move(held));
  }
  for (const auto& connection : connections) connection->close_if_idle();
}

}  // namespace levin::serve::http
