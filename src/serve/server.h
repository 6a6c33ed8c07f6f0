// levin serve: an OpenAI-compatible server around an engine.
//
//    Server server(options);            // listens; answers 503 "loading" from now on
//    auto engine = load_engine(...);
//    server.run(*engine, settings);     // serves on this thread, until drained
//
// Threads: the I/O thread (http/server.h), where all that belongs to requests happens; workers that
// parse and tokenize (worker.h); and the engine thread, which is the caller of run().
#pragma once

#include <memory>
#include <string>

#include "engine/engine.h"
#include "serve/options.h"

namespace levin::serve {

class Server {
 public:
  // Throws Error when it cannot listen.
  explicit Server(const ServeOptions& options);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  uint16_t port() const;
  // http://HOST:PORT, as it was told where to listen.
  std::string url() const;
  // Serves until drain() or stop() is through, and the answers have been sent. The engine needs a
  // tokenizer. Throws Error as Scheduler's constructor does.
  void run(engine::Engine& engine, const EngineSettings& settings);
  // From any thread. Accepts no more requests, and finishes those that were.
  void drain();
  // From any thread. Gives up what is running too.
  void stop();
  // SIGINT and SIGTERM drain; the second one stops, also while the last answers are on their way.
  // Until the engine is there they do what they did.
  void handle_signals();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace levin::serve
