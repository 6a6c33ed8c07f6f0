// Text generation over a runtime: sampling, lossless speculation, stopping. Requests run up to
// max_num_seqs at a time and are refilled as they finish.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "engine/logprobs.h"
#include "engine/sampling.h"
#include "engine/token_filter.h"

namespace levin::engine {

// vLLM's --speculative-config: {"method": "mtp", "num_speculative_tokens": k}.
struct SpeculativeConfig {
  int num_speculative_tokens = 0;  // 0: off
  // Each round drafts as many as pay, from 0 to num_speculative_tokens (step_policy.h).
  bool adaptive = false;
  // Drafts are among the first so many tokens; 0: all. Where frequent tokens come first, as in
  // vocabularies of merged pairs, little acceptance is lost and much of lm_head need not be read.
  int64_t draft_vocab_size = 0;
  // Rounds by the device where it can do them (runtime/round.h); false: by calls of the host.
  bool device_rounds = true;
  // Benchmarks only, as vLLM's "rejection_sample_method": "synthetic": draft i is accepted in this
  // share of the rounds, all before it included, whatever the model says; the output is not the
  // model's. One for each draft, not increasing. Empty: drafts are verified.
  std::vector<double> synthetic_acceptance_rates = {};
};

// vLLM's names: a stop token or string; max_tokens or the end of the context; cancelled.
enum class FinishReason : uint8_t { kStop, kLength, kAbort };
std::string_view name_of(FinishReason reason);  // "stop", "length", "abort"

// Named as vLLM's spec_decode_* metrics.
struct SpeculationStats {
  int64_t num_drafts = 0;                            // rounds that drafted
  int64_t num_draft_tokens = 0;                      // tokens proposed
  int64_t num_accepted_tokens = 0;                   // tokens accepted
  std::vector<int64_t> num_accepted_tokens_per_pos;  // [k], unconditional

  // 1 + accepted / drafts; 1 when nothing was drafted.
  double mean_acceptance_length() const;
  void add(const SpeculationStats& other);
};

struct Timings {
  double queue_seconds = 0;   // submission to a slot
  double ttft_seconds = 0;    // start of the request's prefill to its first token
  double decode_seconds = 0;  // first token to last token
  // decode seconds per token after the first; 0 for a single token
  double tpot_seconds(int64_t tokens) const;
};

struct Request {
  std::vector<int32_t> prompt;  // at least one token
  SamplingParams sampling = {};
  SpeculativeConfig speculation = {};
  // Drafts from outside instead of the MTP head: while the output so far equals a prefix of this,
  // the next tokens of it are proposed, num_speculative_tokens at a time (when that is 0, as many
  // as the runtime can rewind). Lossless like any draft. Evaluation proposes the expected answer
  // this way.
  std::vector<int32_t> given_drafts = {};
  // Decides what may come next; of this request alone. None: anything may.
  std::shared_ptr<TokenFilter> filter = {};
  // Called in front of on_tokens for the same tokens, when SamplingParams::logprobs asks for it.
  std::function<bool(std::span<const TokenLogprobs>)> on_logprobs = {};
  // Called with each round's new tokens; returning false cancels the request (kAbort).
  std::function<bool(std::span<const int32_t>)> on_tokens = {};
  // Called with the text that each round settles: whole characters, and none that a stop string may
  // still cut away. All pieces together are Result::text. Returning false cancels.
  std::function<bool(std::string_view)> on_text = {};
};

struct Result {
  std::vector<int32_t> tokens;  // without the prompt; a stop token that ended it is included
  std::vector<TokenLogprobs> logprobs;  // of all tokens, when asked for
  std::string text;                     // decoded, without the stop token, cut before a stop string
  FinishReason finish_reason = FinishReason::kLength;
  std::string stop_reason;    // the stop string or token that matched; why it was aborted
  int64_t cached_tokens = 0;  // of the prompt, restored and not computed
  int preemptions = 0;        // times it lost its slot to another request
  SpeculationStats speculation;
  Timings timings;
};

// Throws Error when a prompt of `length` tokens is empty or leaves no room for an answer in
// `context` tokens. `where` names it.
void require_fit(int64_t length, int64_t context, std::string_view where);

// Throws Error naming `where` for an id that is not in the vocabulary.
void require_known(std::span<const int32_t> ids, int64_t vocab_size, std::string_view where);

// Throws unless the loaded runtime verifies so many drafts of a sequence at once.
void require_drafts(const Engine& engine, int drafts, std::string_view where);

// Throws unless this model has so many tokens to draft from.
void require_draft_vocab(const Engine& engine, int64_t size, std::string_view where);

// Throws Error when a request cannot be run: empty prompt or one that leaves no room in the
// context, token ids outside the vocabulary, sampling parameters out of range, stop strings without
// a tokenizer, speculation without a draft head or with more drafts than can be rewound. `where`
// names the request; empty when there is only one.
void check_request(const Engine& engine, const Request& request, std::string_view where);

// Runs all requests, up to max_num_seqs at a time (a Scheduler of its own); results in the same
// order. A request without a seed gets a random one. Throws Error as check_request() does, before
// anything runs, and what a callback throws.
std::vector<Result> generate(Engine& engine, std::span<const Request> requests);

}  // namespace levin::engine
