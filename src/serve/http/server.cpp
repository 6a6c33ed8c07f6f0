#include "serve/http/server.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <csignal>
#include <list>
#include <utility>

#include "core/error.h"
#include "serve/http/connection.h"

namespace levin::serve::http {
namespace asio = boost::asio;
using Code = boost::system::error_code;

namespace {

constexpr std::chrono::milliseconds kAcceptPause(100);
// Clients beyond the limit that are told so at a time; further ones are closed without a word.
constexpr int kTurnedAwayAtOnce = 256;

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

bool same_name(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char x, char y) { return lower(x) == lower(y); });
}

// Called again and again.
struct Ticker {
  asio::steady_timer timer;
  std::chrono::milliseconds interval;
  std::function<void()> function;

  void wait() {
    timer.expires_after(interval);
    timer.async_wait([this](Code error) {
      if (error) return;
      function();
      wait();
    });
  }
};

}  // namespace

std::string_view Request::header(std::string_view name) const {
  for (const Header& header : headers) {
    if (same_name(header.name, name)) return header.value;
  }
  return {};
}

struct Server::Impl {
  explicit Impl(const Limits& limits, Handler handler)
      : shared(std::make_shared<Shared>()), acceptor(io), signals(io), pause(io), patience(io) {
    shared->limits = limits;
    shared->handler = std::move(handler);
  }

  void accept();
  void wait_for_signal();
  void close(std::chrono::milliseconds longest);

  std::shared_ptr<Shared> shared;
  asio::io_context io{1};
  asio::executor_work_guard<asio::io_context::executor_type> work{io.get_executor()};
  asio::ip::tcp::acceptor acceptor;
  asio::signal_set signals;
  asio::steady_timer pause;     // between attempts to accept when the machine is out of descriptors
  asio::steady_timer patience;  // of close()
  std::function<void()> on_signal;
  std::list<Ticker> tickers;
};

void Server::Impl::accept() {
  acceptor.async_accept([this](Code error, asio::ip::tcp::socket socket) {
    if (error == asio::error::operation_aborted || !acceptor.is_open()) return;
    if (error) {
      spdlog::warn("cannot accept a connection: {}", error.message());
      pause.expires_after(kAcceptPause);
      pause.async_wait([this](Code aborted) {
        if (!aborted) accept();
      });
      return;
    }
    const int too_many = shared->counts.connections - shared->limits.connections;
    if (too_many < 0) {
      serve_connection(std::move(socket), shared);
    } else if (too_many < kTurnedAwayAtOnce) {
      turn_away(std::move(socket), shared);
    }
    accept();
  });
}

void Server::Impl::wait_for_signal() {
  signals.async_wait([this](Code error, int) {
    if (error) return;
    on_signal();
    wait_for_signal();
  });
}

void Server::Impl::close(std::chrono::milliseconds longest) {
  patience.expires_after(longest);
  patience.async_wait([this](Code error) {
    if (!error) io.stop();
  });
  if (shared->closing) return;
  shared->closing = true;
  Code ignored;
  acceptor.close(ignored);
  shared->on_empty = [this] { io.stop(); };
  if (shared->open.empty()) io.stop();
  close_idle(*shared);
}

Server::Server(const std::string& host, uint16_t port, const Limits& limits, Handler handler)
    : impl_(std::make_unique<Impl>(limits, std::move(handler))) {
  const std::string where = fmt::format("{}:{}", host, port);
  try {
    asio::ip::tcp::resolver resolver(impl_->io);
    const auto found = resolver.resolve(
        host, std::to_string(port),
        asio::ip::tcp::resolver::passive | asio::ip::tcp::resolver::address_configured);
    const asio::ip::tcp::endpoint endpoint = *found.begin();
    impl_->acceptor.open(endpoint.protocol());
    impl_->acceptor.set_option(asio::ip::tcp::acceptor::reuse_address(true));
    impl_->acceptor.bind(endpoint);
    impl_->acceptor.listen(asio::socket_base::max_listen_connections);
  } catch (const boost::system::system_error& error) {
    throw Error({.what = "cannot listen",
                 .where = where,
                 .expected = "an address of this machine with a free port",
                 .found = error.code().message(),
                 .hint = "choose others with --host and --port",
                 .exit_code = ExitCode::kMachine});
  }
  impl_->accept();
}

Server::~Server() {
  impl_->shared->on_empty = nullptr;
  impl_->shared->handler = nullptr;
}

uint16_t Server::port() const {
  return impl_->acceptor.local_endpoint().port();
}

void Server::run() {
  while (true) {
    try {
      impl_->io.run();
      return;
    } catch (const std::exception& error) {
      // Of one connection, whose handlers have let go of it. Everybody else goes on.
      spdlog::error("a connection failed: {}", error.what());
    }
  }
}

void Server::post(std::function<void()> function) {
  asio::post(impl_->io, std::move(function));
}

void Server::every(std::chrono::milliseconds interval, std::function<void()> function) {
  impl_->tickers.push_back({asio::steady_timer(impl_->io), interval, std::move(function)});
  impl_->tickers.back().wait();
}

void Server::on_signal(std::function<void()> function) {
  impl_->on_signal = std::move(function);
  impl_->signals.add(SIGINT);
  impl_->signals.add(SIGTERM);
  impl_->wait_for_signal();
}

void Server::close(std::chrono::milliseconds patience) {
  post([this, patience] { impl_->close(patience); });
}

Counts Server::counts() const {
  return impl_->shared->counts;
}

}  // namespace levin::serve::http
