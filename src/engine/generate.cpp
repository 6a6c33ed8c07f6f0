#include "engine/generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <random>

#include "core/error.h"
#include "engine/round.h"
#include "engine/sequence.h"

namespace levin::engine {
namespace {

[[noreturn]] void refuse(std::size_t request, std::string what, std::string expected,
                         std::string found, std::string hint = {}) {
  throw Error({.what = std::move(what),
               .where = fmt::format("request {}", request),
               .expected = std::move(expected),
               .found = std::move(found),
               .hint = std::move(hint)});
}

void check_prompt(const Engine& engine, const Request& request, std::size_t index) {
  const int64_t context = engine.runtime->options().max_model_len;
  const auto length = static_cast<int64_t>(request.prompt.size());
  if (length == 0) refuse(index, "prompt is empty", "at least one token", "none");
  if (length >= context) {
    refuse(index, "prompt is longer than the context",
           fmt::format("at most {} tokens, so that one can follow", context - 1),
           fmt::format("{} tokens", length), "raise --max-model-len or shorten the prompt");
  }
  const int64_t vocab = engine.model->config.vocab_size;
  for (const auto* tokens :
       {&request.prompt, &request.given_drafts, &request.sampling.stop_token_ids}) {
    for (const int32_t token : *tokens) {
      if (token >= 0 && token < vocab) continue;
      refuse(index, "token id is not in the vocabulary", fmt::format("0 to {}", vocab - 1),
             fmt::format("{}", token));
    }
  }
}

void check_speculation(const Engine& engine, const Request& request, std::size_t index) {
  const int drafts = request.speculation.num_speculative_tokens;
  const runtime::Options& options = engine.runtime->options();
  if (drafts < 0 || drafts > options.max_rewind - 1) {
    refuse(index, "num_speculative_tokens is out of range",
           fmt::format("0 to {}", options.max_rewind - 1), fmt::format("{}", drafts),
           "the runtime's max_rewind bounds a block of the last token and its drafts");
  }
  if (drafts > 0 && request.given_drafts.empty() && !options.mtp) {
    refuse(index, "there is no draft head to speculate with", "a checkpoint with mtp.* tensors",
           "none");
  }
}

void check(const Engine& engine, const Request& request, std::size_t index) {
  check_prompt(engine, request, index);
  validate(request.sampling);
  check_speculation(engine, request, index);
  if (!request.sampling.stop.empty() && !engine.tokenizer) {
    refuse(index, "stop strings need a tokenizer", "tokenizer.json in the model folder", "none");
  }
}

uint64_t seed_of(const Request& request) {
  if (request.sampling.seed) return *request.sampling.seed;
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

// Requests in the slots of the runtime.
class Wave {
 public:
  Wave(Engine& engine, std::span<const Request> requests, std::span<Result> results)
      : engine_(engine), requests_(requests), results_(results), rounds_(*engine.runtime) {
    for (int slot = engine.runtime->options().max_num_seqs - 1; slot >= 0; --slot) {
      free_slots_.push_back(slot);
    }
  }

  void run() {
    while (next_ < requests_.size() || !running_.empty()) {
      admit();
      views_.clear();
      for (const Running& running : running_) views_.push_back(running.sequence.get());
      rounds_.run(views_);
      report();
      retire();
    }
  }

 private:
  struct Running {
    std::unique_ptr<Sequence> sequence;
    std::size_t request;
  };

  void admit() {
    while (next_ < requests_.size() && !free_slots_.empty()) {
      const int slot = free_slots_.back();
      free_slots_.pop_back();
      engine_.runtime->reset(slot);
      const Request& request = requests_[next_];
      running_.push_back(
          {std::make_unique<Sequence>(engine_, request, slot, seed_of(request)), next_});
      ++next_;
    }
  }

  void report() {
    for (const Running& running : running_) {
      Sequence& sequence = *running.sequence;
      const Request& request = sequence.request();
      const std::span<const int32_t> tokens = sequence.take_new_tokens();
      if (request.on_tokens && !tokens.empty() && !request.on_tokens(tokens)) sequence.abort();
      const std::string_view text = sequence.take_new_text();
      if (request.on_text && !text.empty() && !request.on_text(text)) sequence.abort();
    }
  }

  void retire() {
    std::erase_if(running_, [&](const Running& running) {
      if (!running.sequence->finished()) return false;
      results_[running.request] = running.sequence->result();
      free_slots_.push_back(running.sequence->slot());
      return true;
    });
  }

  Engine& engine_;
  std::span<const Request> requests_;
  std::span<Result> results_;
  Rounds rounds_;
  std::vector<int> free_slots_;
  std::vector<Running> running_;
  std::vector<Sequence*> views_;
  std::size_t next_ = 0;
};

}  // namespace

std::string_view name_of(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kAbort:
      break;
  }
  return "abort";
}

double SpeculationStats::mean_acceptance_length() const {
  if (num_drafts == 0) return 1;
  return 1 + static_cast<double>(num_accepted_tokens) / static_cast<double>(num_drafts);
}

void SpeculationStats::add(const SpeculationStats& other) {
  num_drafts += other.num_drafts;
  num_draft_tokens += other.num_draft_tokens;
  num_accepted_tokens += other.num_accepted_tokens;
  auto& mine = num_accepted_tokens_per_pos;
  const auto& theirs = other.num_accepted_tokens_per_pos;
  mine.resize(std::max(mine.size(), theirs.size()));
  for (std::size_t i = 0; i < theirs.size(); ++i) mine[i] += theirs[i];
}

double Timings::tpot_seconds(int64_t tokens) const {
  return tokens > 1 ? decode_seconds / static_cast<double>(tokens - 1) : 0;
}

std::vector<Result> generate(Engine& engine, std::span<const Request> requests) {
  for (std::size_t i = 0; i < requests.size(); ++i) check(engine, requests[i], i);
  std::vector<Result> results(requests.size());
  Wave(engine, requests, results).run();
  return results;
}

}  // namespace levin::engine
