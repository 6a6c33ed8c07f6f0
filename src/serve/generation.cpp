#include "serve/generation.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <nlohmann/json.hpp>
#include <utility>

#include "serve/api/api_error.h"
#include "serve/api/fields.h"

namespace levin::serve {
namespace {

using api::ApiError;
using api::Dialect;
using namespace std::chrono_literals;

constexpr std::string_view kRetrySeconds = "1";

std::unique_ptr<api::Reply> make_reply(const api::GenerationRequest& request, api::ReplyHead head,
                                       const text::Tokenizer& tokenizer) {
  switch (request.dialect) {
    case Dialect::kCompletion:
      return api::make_completion_reply(request, std::move(head), tokenizer);
    case Dialect::kResponses:
      return api::make_responses_reply(request, std::move(head));
    case Dialect::kMessages:
      return api::make_messages_reply(std::move(head));
    case Dialect::kChat:
      break;
  }
  return api::make_chat_reply(request, std::move(head), tokenizer);
}

ApiError error_of(const engine::Completion& completion) {
  if (completion.error) {
    try {
      std::rethrow_exception(completion.error);
    } catch (const std::exception& error) {
      return {500, fmt::format("the request failed: {}", error.what())};
    }
  }
  const std::string& reason = completion.result.stop_reason;
  if (reason == "stopped") return {503, "the server is shutting down"};
  if (reason == "deadline") return {504, "the request took longer than it may"};
  return {500, fmt::format("the request was given up: {}", reason)};
}

}  // namespace

Generation::Generation(const GenerationHost& host, std::shared_ptr<http::Exchange> exchange,
                       Prepared&& prepared, api::ReplyHead head, std::vector<http::Header> headers)
    : host_(host),
      exchange_(std::move(exchange)),
      prepared_(std::move(prepared)),
      headers_(std::move(headers)),
      id_(head.id),
      arrived_(exchange_->request().received),
      last_piece_(arrived_) {
  const api::GenerationRequest& request = prepared_.request;
  head.echoes = std::move(prepared_.echoes);
  if (request.return_token_ids) {
    for (std::size_t i = 0; i < prepared_.submissions.size();
         i += static_cast<std::size_t>(request.n)) {
      head.prompts.push_back(prepared_.submissions[i].request.prompt);
    }
  }
  reply_ = make_reply(request, std::move(head), host_.tokenizer);
  for (std::size_t i = 0; i < prepared_.submissions.size(); ++i) {
    choices_.push_back(std::make_unique<api::Choice>(static_cast<int>(i), prepared_.format));
  }
  outputs_.resize(choices_.size());
}

void Generation::start() {
  exchange_->on_disconnect([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->cancel();
  });
  if (done_) return;  // the client left while its request was prepared
  open_ = outputs_.size();
  try {
    if (!submit()) return;
  } catch (const std::exception& error) {
    return fail(api::to_api_error(error));
  }
  if (!prepared_.request.stream) return;
  http::Response head{.content_type = "text/event-stream; charset=utf-8", .headers = headers_};
  head.headers.push_back({"Cache-Control", "no-cache"});
  head.headers.push_back({"X-Accel-Buffering", "no"});  // nginx must not collect events
  exchange_->start_stream(std::move(head));
  streaming_ = true;
  reply_->begin(usage(), out_);
  send();
}

bool Generation::submit() {
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    attach(i);
    const auto submitted = host_.scheduler.submit(std::move(prepared_.submissions[i]));
    outputs_[i].id = submitted.id;
    if (submitted.refusal == engine::Refusal::kNone) continue;
    const bool full = submitted.refusal == engine::Refusal::kQueueFull;
    headers_.push_back({"Retry-After", std::string(kRetrySeconds)});
    fail(full ? ApiError(429, "too many requests are waiting; try again later")
              : ApiError(503, "the server is shutting down"));
    return false;
  }
  prepared_.submissions.clear();
  return true;
}

// The engine thread only says that there is something to read, once until it has been read.
void Generation::attach(std::size_t index) {
  const auto awaited = std::make_shared<std::atomic<bool>>(false);
  const auto on_ready = [weak = weak_from_this(), awaited, index, &host = host_] {
    if (awaited->exchange(true)) return;
    host.post([weak, awaited, index] {
      awaited->store(false);
      if (const auto self = weak.lock()) self->pump(index);
    });
  };
  outputs_[index].awaited = awaited;
  outputs_[index].stream =
      engine::Stream::attach(prepared_.submissions[index], std::size_t{1} << 22, on_ready);
}

void Generation::pump(std::size_t index) {
  try {
    read_output(index);
  } catch (const std::exception& error) {
    spdlog::error("{}: its output could not be sent: {}", id_, error.what());
    fail({500, fmt::format("the output could not be sent: {}", error.what())});
  }
}

void Generation::read_output(std::size_t index) {
  engine::Stream::Piece piece;
  Output& output = outputs_[index];
  while (!done_ && output.stream != nullptr) {
    switch (output.stream->read(piece, 0ms)) {
      case engine::Stream::Status::kTimeout:
        return;
      case engine::Stream::Status::kPiece:
        take(index, std::move(piece));
        piece = {};
        break;
      case engine::Stream::Status::kEnd:
        return end_choice(index);
    }
  }
}

api::Usage Generation::usage() const {
  api::Usage usage{.prompt_tokens = prepared_.prompt_tokens,
                   .completion_tokens = completion_tokens_,
                   .cached_tokens = cached_tokens_};
  for (const auto& choice : choices_) usage.reasoning_tokens += choice->reasoning_tokens();
  return usage;
}

void Generation::take(std::size_t index, engine::Stream::Piece&& piece) {
  const auto now = Clock::now();
  const auto tokens = static_cast<int64_t>(piece.tokens.size());
  if (completion_tokens_ == 0 && tokens > 0) {
    first_token_seconds_ = std::chrono::duration<double>(now - arrived_).count();
  } else if (tokens > 0) {
    host_.on_piece(std::chrono::duration<double>(now - last_piece_).count(), tokens);
  }
  last_piece_ = now;
  completion_tokens_ += tokens;
  const api::ChoiceDelta delta = choices_[index]->push(std::move(piece));
  if (!streaming_) return;
  reply_->add(*choices_[index], delta, usage(), out_);
  send();
}

void Generation::end_choice(std::size_t index) {
  engine::Completion completion = outputs_[index].stream->completion();
  outputs_[index].stream.reset();
  --open_;
  if (completion.result.finish_reason == engine::FinishReason::kAbort) {
    return fail(error_of(completion));
  }
  // A request of several choices reads its prompt once at most; the others find it in the cache.
  if (index % static_cast<std::size_t>(prepared_.request.n) == 0) {
    cached_tokens_ += completion.result.cached_tokens;
  }
  api::Choice& choice = *choices_[index];
  const api::ChoiceDelta last = choice.finish(std::move(completion.result));
  if (choice.message().malformed > 0) {
    spdlog::info("{}: malformed markup of a tool call in the output", id_);
  }
  if (streaming_) {
    if (!last.message.empty()) reply_->add(choice, last, usage(), out_);
    reply_->finish_choice(choice, usage(), out_);
  }
  if (open_ == 0) return finish();
  send();
}

void Generation::finish() {
  done_ = true;
  if (streaming_) {
    reply_->end(choices_, usage(), out_);
    if (exchange_->write(out_)) exchange_->finish_stream();
  } else {
    http::Response response{.headers = headers_};
    response.body = api::dump(reply_->whole(choices_, usage()));
    exchange_->respond(std::move(response));
  }
  report(200, std::string(engine::name_of(choices_.front()->result().finish_reason)));
}

void Generation::fail(const ApiError& error) {
  if (done_) return;
  done_ = true;
  for (const Output& output : outputs_) {
    if (output.id != 0 && output.stream) host_.scheduler.cancel(output.id);
  }
  if (streaming_) {
    reply_->fail(error, out_);
    if (exchange_->write(out_)) exchange_->finish_stream();
  } else {
    exchange_->respond(
        {.status = error.status(), .body = reply_->error_document(error), .headers = headers_});
  }
  report(error.status(), std::string(api::error_type(error.status())));
}

void Generation::cancel() {
  if (done_) return;
  done_ = true;
  for (const Output& output : outputs_) {
    if (output.id != 0 && output.stream) host_.scheduler.cancel(output.id);
  }
  report(http::kClientGone, "abort");
}

void Generation::keep_alive() {
  if (done_ || !streaming_ || Clock::now() - last_piece_ < 10s) return;
  out_ += ": waiting\n\n";
  send();
}

void Generation::send() {
  if (!streaming_ || out_.empty()) return;
  // A client that does not read has been cut off, and cancel() called.
  exchange_->write(out_);
  out_.clear();
}

void Generation::report(int status, std::string outcome) {
  GenerationReport report;
  report.id = id_;
  report.status = status;
  report.outcome = std::move(outcome);
  report.usage = usage();
  report.first_token_seconds = first_token_seconds_;
  report.seconds = std::chrono::duration<double>(Clock::now() - arrived_).count();
  report.choices = &choices_;
  report.request = &prepared_.request;
  report.http = &exchange_->request();
  report.generation = this;
  host_.on_done(report);
}

}  // namespace levin::serve
