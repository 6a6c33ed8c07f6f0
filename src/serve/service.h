// The routes of the server and what they do, between the HTTP server and the scheduler. For
// server.cpp only. Functions are for the I/O thread unless said otherwise.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "engine/scheduler.h"
#include "serve/access_log.h"
#include "serve/cors.h"
#include "serve/generation.h"
#include "serve/http/server.h"
#include "serve/metrics.h"
#include "serve/options.h"
#include "serve/prepare.h"
#include "serve/worker.h"

namespace levin::serve {

// When a request has to be over; none when it may take as long as it takes.
using Deadline = std::optional<std::chrono::steady_clock::time_point>;

enum class Phase : uint8_t { kLoading, kReady, kDraining };

// What there is once the model has been loaded.
struct Backend {
  engine::Engine& engine;
  engine::Scheduler& scheduler;
  EngineSettings settings;
  Preparer preparer;
  GenerationHost host;
};

class Service {
 public:
  using Exchange = std::shared_ptr<http::Exchange>;

  // `post` runs a function on the I/O thread; `counts` are the HTTP server's.
  Service(const ServeOptions& options, std::function<void(std::function<void()>)> post,
          std::function<http::Counts()> counts);

  // Answers a request, now or later.
  void handle(const Exchange& exchange);
  // Both on the I/O thread, before requests are let through and after the last one.
  void attach(engine::Engine& engine, engine::Scheduler& scheduler, const EngineSettings& settings);
  void set_phase(Phase phase) { phase_ = phase; }
  Phase phase() const { return phase_; }
  // Says something to clients that have waited long.
  void keep_alive();
  // Waits for the workers and lets go of all requests. From the engine thread, when the I/O thread
  // has ended.
  void join();

 private:
  // Who may come, and when.
  enum class Access : uint8_t { kOpen, kKey, kKeyAndModel };
  struct Route {
    std::string_view method;
    std::string_view path;  // ending in '/': and something behind it
    void (Service::*handle)(const Exchange&);
    Access access = Access::kKeyAndModel;
  };
  static std::span<const Route> routes();

  void dispatch(const Exchange& exchange);
  void check_key(const http::Request& request) const;
  void check_phase() const;
  void check_model(const std::string& name) const;

  void get_page(const Exchange& exchange);
  void get_health(const Exchange& exchange);
  void get_version(const Exchange& exchange);
  void get_metrics(const Exchange& exchange);
  void get_models(const Exchange& exchange);
  void get_model(const Exchange& exchange);
  void post_chat(const Exchange& exchange);
  void post_completion(const Exchange& exchange);
  void post_responses(const Exchange& exchange);
  void post_messages(const Exchange& exchange);
  void post_tokenize(const Exchange& exchange);
  void post_detokenize(const Exchange& exchange);
  void post_apply_template(const Exchange& exchange);
  void post_input_tokens(const Exchange& exchange);
  void post_count_tokens(const Exchange& exchange);

  using Parse = api::GenerationRequest (*)(std::string_view, const api::ModelFacts&);
  void generate(const Exchange& exchange, Parse parse, std::string_view id_prefix);
  void start_generation(const Exchange& exchange, Prepared&& prepared, std::string_view id_prefix);
  // Runs `job` on a worker, unless the client has gone or its time is up: the job's interrupt
  // throws then. What it returns runs on the I/O thread.
  using Job = std::function<std::function<void()>(const text::Interrupt&, const Deadline&)>;
  void run_job(const Exchange& exchange, Job job);
  // Runs `make` on a worker and answers with its result.
  using Make = std::function<nlohmann::ordered_json(const text::Interrupt&)>;
  void answer(const Exchange& exchange, Make make);
  void send(const Exchange& exchange, std::string body);
  void fail(const Exchange& exchange, const api::ApiError& error);
  void done(const GenerationReport& report);
  void report_unknown(const std::vector<std::string>& fields, std::vector<http::Header>& headers);

  const ServeOptions& options_;
  Cors cors_;
  std::function<void(std::function<void()>)> post_;
  std::function<http::Counts()> counts_;
  Phase phase_ = Phase::kLoading;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Workers> workers_;
  std::unique_ptr<Workers> heavy_workers_;  // for large bodies, so that small ones need not wait
  Metrics metrics_;
  std::unordered_set<std::shared_ptr<Generation>> generations_;  // that are not done
  std::unordered_set<std::string> unknown_fields_;               // reported in the log
  int64_t created_;
};

}  // namespace levin::serve
