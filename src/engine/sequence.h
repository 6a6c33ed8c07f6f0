// A request while it runs: its tokens, what has been consumed of them, and when it ends.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/generate.h"
#include "engine/output_text.h"
#include "engine/prompt_cuts.h"
#include "engine/sampler.h"
#include "engine/token_history.h"
#include "runtime/round.h"

namespace levin::engine {

class Sequence {
 public:
  using Clock = std::chrono::steady_clock;

  // Runs in `slot` of the engine's runtime. `engine` and `request` must outlive the sequence.
  Sequence(const Engine& engine, const Request& request, int slot, uint64_t seed,
           const runtime::ExtendCuts& cuts = {});

  int slot() const { return slot_; }
  const Request& request() const { return request_; }
  // Prompt and output.
  std::span<const int32_t> tokens() const { return tokens_; }
  std::span<const int32_t> output() const { return std::span(tokens_).subspan(prompt_length_); }
  // Tokens that the runtime has consumed.
  int64_t consumed() const { return static_cast<int64_t>(consumed_); }
  // Whether everything has been consumed that needs no choice: the prompt; after resume(), all
  // tokens but the last, which then begins a block like a token just chosen.
  bool prefilled() const { return consumed_ >= prefill_length_; }
  // The next tokens to prefill, at most `most` and not beyond a pause (prompt_cuts.h).
  std::span<const int32_t> prefill_chunk(int64_t most) const;
  // Whether the token after the next `count` ones is to be chosen.
  bool chooses_after(std::size_t count) const { return consumed_ + count == tokens_.size(); }
  // Tokens that may still be put out before max_tokens or the end of the context.
  int64_t remaining() const;
  // How many tokens should be drafted now; at most `most` when the request leaves it open.
  int wanted_drafts(int most) const;
  // The next tokens of Request::given_drafts, at most `count`; none once the output differs.
  std::span<const int32_t> given_drafts(int count) const;

  // Whether draft number `place` of the round, after everything appended so far, is accepted, where
  // the model would choose `chosen`.
  bool accepts(int place, int32_t draft, int32_t chosen) const;

  // What keeps device rounds (runtime/round.h) from running it behind its prompt, now and for good
  // but kMinTokens.
  enum class DeviceObstacle : uint8_t {
    kNone,
    kFilter,
    kLogitBias,
    kLogprobs,
    kPenalties,
    kStopStrings,
    kManyStops,
    kMinTokens,
    kGivenDrafts,
    kVocabulary  // too large to sample from
  };
  DeviceObstacle device_obstacle() const;
  // Its state for them. The request must outlive it.
  runtime::RoundStart round_start() const;

  // The next token from `logits` after everything appended so far; append() must follow.
  int32_t choose(Sampler& sampler, std::span<const float> logits);
  // Records that the runtime has consumed `count` more tokens.
  void consume(int64_t count) { consumed_ += static_cast<std::size_t>(count); }
  // Puts out a token and decides whether it was the last one.
  void append(int32_t token);

  // Goes on in `slot`, whose sequence is the first `consumed` tokens of this one (not all).
  void resume(int slot, int64_t consumed);
  // Prefilling stops at this length, so that the state there can be saved.
  void pause_at(int64_t length) { pause_ = static_cast<std::size_t>(length); }

  // Ends the sequence from outside.
  void abort(std::string reason);
  // Ends it with what it has thrown; its text stays as it is, and its slot holds anything.
  void fail(std::exception_ptr error);
  // What it has failed with; null otherwise.
  const std::exception_ptr& error() const { return error_; }
  bool finished() const { return finish_reason_.has_value(); }

  // Time stamps; the first of each counts.
  void started(Clock::time_point now);
  void produced(Clock::time_point now);
  std::optional<Clock::time_point> first_token_at() const { return first_token_; }

  // Tokens put out since the last call.
  std::span<const int32_t> take_new_tokens();
  std::span<const TokenLogprobs> take_new_logprobs();
  // Text settled since the last call (OutputText::settled()).
  std::string_view take_new_text();
  // Result of a finished sequence.
  Result result();

  SpeculationStats speculation;

 private:
  int max_drafts() const;
  void finish(FinishReason reason, std::string stop_reason);

  const Engine& engine_;
  const Request& request_;
  runtime::ExtendCuts cuts_;
  int slot_;
  uint64_t seed_;
  std::vector<int32_t> tokens_;
  std::size_t prompt_length_;
  std::size_t prefill_length_;
  std::size_t consumed_ = 0;
  std::size_t pause_ = 0;  // none when behind consumed_
  std::size_t reported_;   // of tokens_, by take_new_tokens()
  std::size_t reported_text_ = 0;
  std::size_t reported_logprobs_ = 0;
  bool follows_given_ = true;      // the output so far is a prefix of given_drafts
  std::vector<int32_t> stops_;     // token ids that end it
  std::vector<double> rates_;      // of synthetic acceptance, given that those before were accepted
  std::vector<uint64_t> allowed_;  // work space of the filter; empty without one
  std::vector<TokenLogprobs> logprobs_;
  TokenHistory history_;
  OutputText text_;
  std::optional<FinishReason> finish_reason_;
  std::string stop_reason_;
  std::exception_ptr error_;
  std::optional<Clock::time_point> start_, first_token_;
  Clock::time_point last_token_;
};

std::string_view name_of(Sequence::DeviceObstacle obstacle);

}  // namespace levin::engine
