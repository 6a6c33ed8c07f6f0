#include "engine/stream.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "core/plural.h"

namespace levin::engine {

Stream::Stream(std::size_t capacity, std::function<void()> on_ready)
    : capacity_(capacity), on_ready_(std::move(on_ready)) {}

std::shared_ptr<Stream> Stream::attach(Submission& submission, std::size_t capacity,
                                       std::function<void()> on_ready) {
  const std::shared_ptr<Stream> stream(new Stream(capacity, std::move(on_ready)));
  submission.request.on_tokens = [stream](std::span<const int32_t> tokens) {
    return stream->push(tokens, {}, {});
  };
  submission.request.on_logprobs = [stream](std::span<const TokenLogprobs> logprobs) {
    return stream->push({}, logprobs, {});
  };
  submission.request.on_text = [stream](std::string_view text) {
    return stream->push({}, {}, text);
  };
  submission.on_finish = [stream](Completion&& completion) {
    stream->finish(std::move(completion));
  };
  return stream;
}

bool Stream::push(std::span<const int32_t> tokens, std::span<const TokenLogprobs> logprobs,
                  std::string_view text) {
  {
    const std::lock_guard lock(mutex_);
    const std::size_t waiting = unread_.tokens.size() * sizeof(int32_t) + unread_.text.size();
    if (waiting + tokens.size_bytes() + text.size() > capacity_) {
      overflowed_ = true;
      return false;
    }
    unread_.tokens.insert(unread_.tokens.end(), tokens.begin(), tokens.end());
    unread_.logprobs.insert(unread_.logprobs.end(), logprobs.begin(), logprobs.end());
    unread_.text += text;
  }
  if (!logprobs.empty()) return true;  // their tokens follow at once
  changed_.notify_one();
  if (on_ready_) on_ready_();
  return true;
}

void Stream::finish(Completion&& completion) {
  {
    const std::lock_guard lock(mutex_);
    if (overflowed_) {
      spdlog::warn("request {}: its stream was not read and is full; given up after {}",
                   completion.id, counted(completion.result.tokens.size(), "token"));
      // Also when that happened with its very last tokens.
      completion.result.finish_reason = FinishReason::kAbort;
      completion.result.stop_reason = "overflow";
    }
    completion_ = std::move(completion);
  }
  changed_.notify_one();
  if (on_ready_) on_ready_();
}

Stream::Status Stream::read(Piece& piece, std::chrono::milliseconds timeout) {
  piece.tokens.clear();
  piece.logprobs.clear();
  piece.text.clear();
  std::unique_lock lock(mutex_);
  const auto something = [&] {
    return completion_.has_value() || !unread_.tokens.empty() || !unread_.text.empty();
  };
  if (!changed_.wait_for(lock, timeout, something)) return Status::kTimeout;
  if (unread_.tokens.empty() && unread_.text.empty()) return Status::kEnd;
  std::swap(piece, unread_);
  return Status::kPiece;
}

bool Stream::overflowed() const {
  const std::lock_guard lock(mutex_);
  return overflowed_;
}

}  // namespace levin::engine
