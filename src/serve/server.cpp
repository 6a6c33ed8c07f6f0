#include "serve/server.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <mutex>
#include <thread>
#include <utility>

#include "engine/scheduler.h"
#include "serve/service.h"

namespace levin::serve {
namespace {

using namespace std::chrono_literals;

constexpr std::chrono::seconds kKeepAlive(5);
// For the news of its end to get to clients when a server is stopped.
constexpr std::chrono::milliseconds kLastWords(250);

}  // namespace

struct Server::Impl {
  explicit Impl(const ServeOptions& given)
      : options(given),
        service(
            options, [this](std::function<void()> function) { http.post(std::move(function)); },
            [this] { return http.counts(); }),
        http(options.host, options.port, options.limits,
             [this](const Service::Exchange& exchange) { service.handle(exchange); }) {
    http.every(kKeepAlive, [this] { service.keep_alive(); });
  }

  void on_signal();
  void drain();
  void stop();

  const ServeOptions options;
  Service service;
  http::Server http;
  std::thread io{[this] { http.run(); }};

  std::mutex mutex;  // of the following
  engine::Scheduler* scheduler = nullptr;
  bool draining = false;
  bool stopping = false;
  bool finished = false;  // all has been generated, and is on its way
};

void Server::Impl::drain() {
  http.post([this] { service.set_phase(Phase::kDraining); });
  const std::lock_guard lock(mutex);
  draining = true;
  if (scheduler != nullptr) scheduler->drain();
}

void Server::Impl::stop() {
  http.post([this] { service.set_phase(Phase::kDraining); });
  const std::lock_guard lock(mutex);
  draining = stopping = true;
  if (scheduler != nullptr) scheduler->stop();
  if (finished) http.close(kLastWords);
}

void Server::Impl::on_signal() {
  bool again = false;
  {
    const std::lock_guard lock(mutex);
    again = draining;
  }
  if (again) {
    spdlog::warn("stopping: what is running is given up");
    stop();
  } else {
    spdlog::info("draining: no new requests; a second signal stops at once");
    drain();
  }
}

Server::Server(const ServeOptions& options) : impl_(std::make_unique<Impl>(options)) {}

Server::~Server() {
  impl_->http.close(0ms);
  if (impl_->io.joinable()) impl_->io.join();
  impl_->service.join();
}

uint16_t Server::port() const {
  return impl_->http.port();
}

std::string Server::url() const {
  const std::string& host = impl_->options.host;
  const bool address_of_ipv6 = host.find(':') != host.npos;
  return fmt::format("http://{}:{}", address_of_ipv6 ? fmt::format("[{}]", host) : host, port());
}

void Server::run(engine::Engine& engine, const EngineSettings& settings) {
  Impl& impl = *impl_;
  engine::Scheduler scheduler(engine, settings.scheduler);
  {
    const std::lock_guard lock(impl.mutex);
    impl.scheduler = &scheduler;
    if (impl.draining) scheduler.drain();
    if (impl.stopping) scheduler.stop();
  }
  impl.http.post([&] {
    impl.service.attach(engine, scheduler, settings);
    if (impl.service.phase() != Phase::kLoading) return;
    impl.service.set_phase(Phase::kReady);
    spdlog::info("ready: {} answers", url());
  });
  scheduler.run();
  // Everything has been generated; what the clients have not got yet is still on its way.
  {
    const std::lock_guard lock(impl.mutex);
    impl.finished = true;
    impl.http.close(impl.stopping ? kLastWords : impl.options.send_patience);
  }
  impl.io.join();
  impl.service.join();
  {
    const std::lock_guard lock(impl.mutex);
    impl.scheduler = nullptr;
  }
}

void Server::drain() {
  impl_->drain();
}

void Server::stop() {
  impl_->stop();
}

void Server::handle_signals() {
  impl_->http.post([this] { impl_->http.on_signal([this] { impl_->on_signal(); }); });
}

}  // namespace levin::serve
