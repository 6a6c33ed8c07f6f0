// The output of one request on its way from the engine thread to whoever sends it to a client. The
// engine never waits for the client: a stream that is not read fills up, and then its request is
// given up.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/scheduler.h"

namespace levin::engine {

class Stream {
 public:
  struct Piece {
    std::vector<int32_t> tokens;
    std::vector<TokenLogprobs> logprobs;  // of these tokens, when asked for
    std::string text;
  };
  enum class Status : uint8_t { kPiece, kEnd, kTimeout };

  // A stream that takes the place of the submission's callbacks. `capacity`: bytes of text and of
  // token ids that wait to be read at most. `on_ready`, for servers that wait for many streams at
  // once, is called by the engine thread each time there is something to read.
  static std::shared_ptr<Stream> attach(Submission& submission,
                                        std::size_t capacity = std::size_t{1} << 20,
                                        std::function<void()> on_ready = {});

  // Everything put out since the last call, as soon as there is something. kEnd: all of it has been
  // read, and completion() is there. May be called from one thread at a time.
  Status read(Piece& piece, std::chrono::milliseconds timeout);
  // After kEnd.
  const Completion& completion() const { return *completion_; }
  // Whether the request was given up because nobody read (kAbort, "overflow").
  bool overflowed() const;

 private:
  Stream(std::size_t capacity, std::function<void()> on_ready);
  // False when it is full.
  bool push(std::span<const int32_t> tokens, std::span<const TokenLogprobs> logprobs,
            std::string_view text);
  void finish(Completion&& completion);

  const std::size_t capacity_;
  const std::function<void()> on_ready_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Piece unread_;
  bool overflowed_ = false;
  std::optional<Completion> completion_;
};

}  // namespace levin::engine
