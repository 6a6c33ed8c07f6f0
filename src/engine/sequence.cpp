#include "engine/sequence.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/random.h"

namespace levin::engine {

Sequence::Sequence(const Engine& engine, const Request& request, int slot, uint64_t seed,
                   const runtime::ExtendCuts& cuts)
    : engine_(engine),
      request_(request),
      cuts_(cuts),
      slot_(slot),
      seed_(seed),
      tokens_(request.prompt),
      prompt_length_(request.prompt.size()),
      prefill_length_(request.prompt.size()),
      reported_(request.prompt.size()),
      history_(request.sampling, engine.model->config.vocab_size,
               static_cast<int64_t>(request.prompt.size()) + remaining()),
      text_(engine.tokenizer ? &*engine.tokenizer : nullptr, request.sampling) {
  tokens_.reserve(prompt_length_ + static_cast<std::size_t>(remaining()));
  if (!request.sampling.ignore_eos) stops_ = engine.stop_token_ids;
  stops_.insert(stops_.end(), request.sampling.stop_token_ids.begin(),
                request.sampling.stop_token_ids.end());
  if (request.filter) {
    allowed_.resize((static_cast<std::size_t>(engine.model->config.vocab_size) + 63) / 64);
  }
  history_.add_prompt(request.prompt);
  double before = 1;
  for (const double rate : request.speculation.synthetic_acceptance_rates) {
    rates_.push_back(before > 0 ? rate / before : 0);
    before = rate;
  }
  speculation.num_accepted_tokens_per_pos.resize(static_cast<std::size_t>(max_drafts()));
}

// The block of the last token and its drafts must be one that can be rewound.
int Sequence::max_drafts() const {
  const int most = engine_.runtime->options().max_rewind - 1;
  const int asked = request_.speculation.num_speculative_tokens;
  if (asked == 0 && !request_.given_drafts.empty()) return most;
  return std::min(asked, most);
}

int64_t Sequence::remaining() const {
  const auto length = static_cast<int64_t>(tokens_.size());
  const auto produced = length - static_cast<int64_t>(prompt_length_);
  return std::min(request_.sampling.max_tokens - produced,
                  engine_.runtime->options().max_model_len - length);
}

std::span<const int32_t> Sequence::prefill_chunk(int64_t most) const {
  const std::size_t end = pause_ > consumed_ ? std::min(pause_, prefill_length_) : prefill_length_;
  const int64_t size = next_extend(cuts_,
                                   {.consumed = consumed(),
                                    .prompt = static_cast<int64_t>(prompt_length_),
                                    .end = static_cast<int64_t>(end)},
                                   most);
  return std::span(tokens_).subspan(consumed_, static_cast<std::size_t>(size));
}

void Sequence::resume(int slot, int64_t consumed) {
  slot_ = slot;
  consumed_ = static_cast<std::size_t>(consumed);
  // Where the cuts matter, a prompt that has just begun is read to its end in any case.
  prefill_length_ = cuts_.alignment > 1 && output().empty() ? prompt_length_ : tokens_.size() - 1;
  pause_ = 0;
}

int Sequence::wanted_drafts(int most) const {
  if (consumed_ == 0) return 0;  // there is nothing to draft from
  int wanted = max_drafts();
  if (request_.speculation.adaptive) wanted = std::min(wanted, most);
  if (!request_.given_drafts.empty()) wanted = static_cast<int>(given_drafts(wanted).size());
  // Drafts beyond the last token that may be put out are useless.
  return static_cast<int>(std::clamp<int64_t>(remaining() - 1, 0, wanted));
}

std::span<const int32_t> Sequence::given_drafts(int count) const {
  const std::span<const int32_t> given = request_.given_drafts;
  const std::size_t done = output().size();
  if (!follows_given_ || done >= given.size()) return {};
  return given.subspan(done, std::min(static_cast<std::size_t>(count), given.size() - done));
}

bool Sequence::accepts(int place, int32_t draft, int32_t chosen) const {
  if (rates_.empty()) return draft == chosen;
  const double u =
      uniform(seed_, static_cast<int64_t>(tokens_.size()), Purpose::kSyntheticAcceptance);
  return u <= rates_[static_cast<std::size_t>(place)];
}

Sequence::DeviceObstacle Sequence::device_obstacle() const {
  const SamplingParams& sampling = request_.sampling;
  if (request_.filter) return DeviceObstacle::kFilter;
  if (!sampling.logit_bias.empty()) return DeviceObstacle::kLogitBias;
  if (sampling.logprobs) return DeviceObstacle::kLogprobs;
  if (history_.penalizes()) return DeviceObstacle::kPenalties;
  if (!sampling.stop.empty()) return DeviceObstacle::kStopStrings;
  if (stops_.size() > std::size_t{runtime::kMaxRoundStops}) return DeviceObstacle::kManyStops;
  if (!request_.given_drafts.empty()) return DeviceObstacle::kGivenDrafts;
  const bool may_stop = static_cast<int64_t>(output().size()) >= sampling.min_tokens;
  return may_stop ? DeviceObstacle::kNone : DeviceObstacle::kMinTokens;
}

std::string_view name_of(Sequence::DeviceObstacle obstacle) {
  switch (obstacle) {
    case Sequence::DeviceObstacle::kFilter:
      return "constrained output";
    case Sequence::DeviceObstacle::kLogitBias:
      return "logit_bias";
    case Sequence::DeviceObstacle::kLogprobs:
      return "log probabilities";
    case Sequence::DeviceObstacle::kPenalties:
      return "penalties";
    case Sequence::DeviceObstacle::kStopStrings:
      return "stop strings";
    case Sequence::DeviceObstacle::kManyStops:
      return "more than 32 stop tokens";
    case Sequence::DeviceObstacle::kMinTokens:
      return "min_tokens, until there are as many,";
    case Sequence::DeviceObstacle::kGivenDrafts:
      return "drafts from outside";
    case Sequence::DeviceObstacle::kVocabulary:
      return "sampling from a vocabulary as large as this";
    case Sequence::DeviceObstacle::kNone:
      break;
  }
  return "nothing special";
}

runtime::RoundStart Sequence::round_start() const {
  return {.slot = slot_,
          .last_token = tokens_.back(),
          .remaining = remaining(),
          .sampling = sampling_rule(request_.sampling, seed_),
          .stops = stops_,
          .draft_vocab = request_.speculation.draft_vocab_size,
          .synthetic_rates = rates_};
}

int32_t Sequence::choose(Sampler& sampler, std::span<const float> logits) {
  if (request_.filter) request_.filter->allowed(allowed_);
  const bool may_stop = static_cast<int64_t>(output().size()) >= request_.sampling.min_tokens;
  const int32_t token =
      sampler.choose(logits, {.params = request_.sampling,
                              .history = history_,
                              .banned = may_stop ? std::span<const int32_t>() : stops_,
                              .allowed = allowed_,
                              .seed = seed_,
                              .position = static_cast<int64_t>(tokens_.size())});
  if (const auto count = request_.sampling.logprobs) {
    logprobs_.push_back(logprobs_of(logits, token, *count));
  }
  return token;
}

void Sequence::append(int32_t token) {
  const std::size_t index = output().size();
  follows_given_ = follows_given_ && index < request_.given_drafts.size() &&
                   request_.given_drafts[index] == token;
  tokens_.push_back(token);
  history_.add_output(token);
  if (request_.filter) request_.filter->accept(token);
  const bool may_stop = static_cast<int64_t>(output().size()) >= request_.sampling.min_tokens;
  // Stop tokens come before lengths, as in vLLM's check_stop. Their text is not put out.
  if (may_stop && std::find(stops_.begin(), stops_.end(), token) != stops_.end()) {
    finish(FinishReason::kStop, fmt::format("{}", token));
  } else if (const auto stop_string = text_.push(token, may_stop)) {
    finish(FinishReason::kStop, *stop_string);
  } else if (remaining() <= 0) {
    finish(FinishReason::kLength, "");
  }
}

void Sequence::finish(FinishReason reason, std::string stop_reason) {
  text_.finish();
  finish_reason_ = reason;
  stop_reason_ = std::move(stop_reason);
}

void Sequence::abort(std::string reason) {
  if (!finished()) finish(FinishReason::kAbort, std::move(reason));
}

void Sequence::fail(std::exception_ptr error) {
  finish_reason_ = FinishReason::kAbort;
  stop_reason_ = "error";
  error_ = std::move(error);
}

void Sequence::started(Clock::time_point now) {
  if (!start_) start_ = now;
}

void Sequence::produced(Clock::time_point now) {
  if (!first_token_) first_token_ = now;
  last_token_ = now;
}

std::span<const int32_t> Sequence::take_new_tokens() {
  const std::span<const int32_t> fresh = std::span(tokens_).subspan(reported_);
  reported_ = tokens_.size();
  return fresh;
}

std::span<const TokenLogprobs> Sequence::take_new_logprobs() {
  const auto fresh = std::span<const TokenLogprobs>(logprobs_).subspan(reported_logprobs_);
  reported_logprobs_ = logprobs_.size();
  return fresh;
}

std::string_view Sequence::take_new_text() {
  const std::string_view fresh =
      std::string_view(text_.text()).substr(reported_text_, text_.settled() - reported_text_);
  reported_text_ = text_.settled();
  return fresh;
}

Result Sequence::result() {
  const auto seconds = [](Clock::duration duration) {
    return std::chrono::duration<double>(duration).count();
  };
  Result result;
  result.tokens.assign(output().begin(), output().end());
  result.logprobs = logprobs_;
  result.text = text_.text();
  result.finish_reason = finish_reason_.value_or(FinishReason::kAbort);
  result.stop_reason = stop_reason_;
  result.speculation = speculation;
  if (start_ && first_token_) {
    result.timings.ttft_seconds = seconds(*first_token_ - *start_);
    result.timings.decode_seconds = seconds(last_token_ - *first_token_);
  }
  return result;
}

}  // namespace levin::engine
