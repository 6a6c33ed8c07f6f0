// One request on its way: handed to the scheduler, its outputs taken apart as they come and sent to
// the client. Everything here happens on the I/O thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/scheduler.h"
#include "engine/stream.h"
#include "serve/api/reply.h"
#include "serve/http/exchange.h"
#include "serve/prepare.h"

namespace levin::serve {

class Generation;

// How a generation went, for the log and the metrics.
struct GenerationReport {
  std::string id;
  int status = 200;
  std::string outcome;  // a finish reason, "abort" or an error's type
  api::Usage usage;
  double first_token_seconds = 0;  // from the arrival of the request; 0 when there was none
  double seconds = 0;
  const std::vector<std::unique_ptr<api::Choice>>* choices = nullptr;
  const api::GenerationRequest* request = nullptr;
  const http::Request* http = nullptr;
  const Generation* generation = nullptr;
};

// What a generation needs from the server.
struct GenerationHost {
  engine::Scheduler& scheduler;
  const text::Tokenizer& tokenizer;
  std::function<void(std::function<void()>)> post;  // to the I/O thread
  std::function<void(const GenerationReport&)> on_done;
  // Seconds between two pieces of output, and the tokens of the second.
  std::function<void(double, int64_t)> on_piece;
};

class Generation : public std::enable_shared_from_this<Generation> {
 public:
  // `host` must outlive it. `headers` go with the answer.
  Generation(const GenerationHost& host, std::shared_ptr<http::Exchange> exchange,
             Prepared&& prepared, api::ReplyHead head, std::vector<http::Header> headers);

  // Submits it, or answers that it cannot be.
  void start();
  // The client has gone.
  void cancel();
  bool done() const { return done_; }
  // Something for a client that has waited long without any output.
  void keep_alive();

 private:
  using Clock = std::chrono::steady_clock;
  struct Output {
    std::shared_ptr<engine::Stream> stream;
    uint64_t id = 0;
    std::shared_ptr<std::atomic<bool>> awaited;  // a call of pump() is under way
  };

  bool submit();
  void attach(std::size_t index);
  void pump(std::size_t index);
  void read_output(std::size_t index);
  void take(std::size_t index, engine::Stream::Piece&& piece);
  void end_choice(std::size_t index);
  void finish();
  void fail(const api::ApiError& error);
  void send();
  void report(int status, std::string outcome);
  api::Usage usage() const;

  const GenerationHost& host_;
  std::shared_ptr<http::Exchange> exchange_;
  Prepared prepared_;
  std::unique_ptr<api::Reply> reply_;
  std::vector<http::Header> headers_;
  std::string id_;
  std::vector<std::unique_ptr<api::Choice>> choices_;
  std::vector<Output> outputs_;
  std::string out_;  // events to be sent
  std::size_t open_ = 0;
  int64_t completion_tokens_ = 0;
  int64_t cached_tokens_ = 0;
  Clock::time_point arrived_;
  Clock::time_point last_piece_;
  double first_token_seconds_ = 0;
  bool streaming_ = false;  // the head has been sent
  bool done_ = false;
};

}  // namespace levin::serve
