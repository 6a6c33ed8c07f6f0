// One step of all running sequences together: draft, verify, accept, rewind, sample. This host-side
// version, built on the three primitives of the runtime, is the specification; a device version
// must put out the same tokens. Where the runtime has one (runtime/round.h), it runs what it can
// (round_pipeline.h), a round ahead of the host, and the host the rest.
//
// Speculation is lossless. The drafter is greedy, so its proposal distribution is one-hot, and the
// rule of speculative sampling (Leviathan et al., arXiv 2211.17192) becomes: accept draft d with
// probability p(d), else put out a token drawn from p without d. That is the same as drawing a
// token from p and accepting the draft when it is that token, which is what happens here, with the
// random number that belongs to the position. So the tokens are the very same for any number of
// drafts, and whatever is drafted, sampled or greedy, and penalties and stops need no extra rule:
// every token is chosen as without speculation, only earlier.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "engine/round_pipeline.h"
#include "engine/sampler.h"
#include "engine/sequence.h"
#include "runtime/runtime.h"

namespace levin::engine {

struct RoundLimits {
  // Of all prompts together. 0: they wait; else some prompt gets on, by more if it cannot by so
  // few.
  int64_t prompt_tokens = std::numeric_limits<int64_t>::max();
  int adaptive_drafts = std::numeric_limits<int>::max();  // SpeculativeConfig::adaptive
};

// What a round did, and how long it took.
struct RoundReport {
  int decoding = 0;  // sequences behind their prompt
  int decode_rows = 0;
  int64_t prompt_rows = 0;
  int drafting = 0;     // sequences that the draft head proposed for
  int draft_steps = 0;  // proposals for the one with most
  double draft_seconds = 0;
  double extend_seconds = 0;          // everything else
  SpeculationStats speculation = {};  // of all drafts, given ones too
  // By place of a proposal of the draft head: how often those before it were all right, and how
  // often it was too. [max_rewind]
  std::vector<int> drafts_tried = {}, drafts_right = {};
};

class Rounds {
 public:
  explicit Rounds(runtime::Runtime& runtime);

  // What concerns one sequence only and goes wrong (its filter, its logits, its text) fails that
  // sequence (Sequence::fail()); what a step throws concerns all.
  //
  // Advances every sequence that is not finished: those behind their prompt by 1 to 1 + k tokens,
  // prompts by a chunk, first come first served, as far as max_extend_tokens and the limits allow.
  // Allocates nothing. When it returns, a device may be working on the next round already: settle()
  // or drop() come before anybody else does anything with a sequence behind its prompt or its slot.
  void run(std::span<Sequence* const> sequences, const RoundLimits& limits = {});
  // Waits for what is in flight and puts it out. report() is of that then.
  void settle();
  // Tokens in flight for the sequence are forgotten. Its slot has to be reset before it is used.
  void drop(const Sequence& sequence) { pipeline_.drop(sequence); }
  // Of the last run().
  const RoundReport& report() const { return report_; }

 private:
  // A sequence's part of the current extend().
  struct Feed {
    Sequence* sequence = nullptr;
    std::vector<int32_t> tokens;  // a chunk of the prompt, or the last token and its drafts
    int drafts = 0;
    bool ends_prompt = false;
  };

  void clear_report();
  void clear_costs();
  // Those of `sequences` that the host runs, by primitives of the runtime.
  void run_on_host(std::span<Sequence* const> sequences, const RoundLimits& limits);
  void draft(std::span<Sequence* const> sequences, int adaptive_drafts);
  void add_block(Sequence& sequence);
  // At most `most` tokens; how many it was.
  int64_t add_prompt_chunk(Sequence& sequence, int64_t most);
  Feed& next_feed(Sequence& sequence);
  // Extends by everything that has been fed and puts out tokens.
  void flush();
  void accept(const Feed& feed, int entry);

  runtime::Runtime& runtime_;
  Sampler sampler_;
  int64_t budget_;  // rows left in the current extend()
  std::vector<runtime::Draft> draft_batch_;
  std::vector<std::vector<int32_t>> proposals_;  // by slot
  std::vector<Feed> feeds_;                      // the first `feed_count_` are in use
  std::size_t feed_count_ = 0;
  std::vector<runtime::Extend> batch_;
  RoundPipeline pipeline_;
  std::vector<Sequence*> on_device_, on_host_;
  RoundReport report_;
};

}  // namespace levin::engine
