#include "engine/generate.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>

#include "core/error.h"
#include "core/plural.h"
#include "engine/scheduler.h"

namespace levin::engine {
namespace {

[[noreturn]] void refuse(std::string_view request, std::string what, std::string expected,
                         std::string found, std::string hint = {}) {
  throw Error({.what = std::move(what),
               .where = std::string(request),
               .expected = std::move(expected),
               .found = std::move(found),
               .hint = std::move(hint)});
}

// "request 3, stop_token_ids"
std::string field(std::string_view request, std::string_view name) {
  return request.empty() ? std::string(name) : fmt::format("{}, {}", request, name);
}

void check_prompt(const Engine& engine, const Request& request, std::string_view where) {
  require_fit(static_cast<int64_t>(request.prompt.size()), engine.runtime->options().max_model_len,
              where);
  const int64_t vocab = engine.model->config.vocab_size;
  require_known(request.prompt, vocab, field(where, "prompt"));
  require_known(request.given_drafts, vocab, field(where, "given drafts"));
  require_known(request.sampling.stop_token_ids, vocab, field(where, "stop_token_ids"));
  for (const auto& [token, bias] : request.sampling.logit_bias) {
    require_known({&token, 1}, vocab, field(where, "logit_bias"));
  }
}

void check_speculation(const Engine& engine, const Request& request, std::string_view where) {
  const int drafts = request.speculation.num_speculative_tokens;
  const runtime::Options& options = engine.runtime->options();
  require_drafts(engine, drafts, where);
  if (drafts > 0 && request.given_drafts.empty() && !options.mtp) {
    refuse(where, "there is no draft head to speculate with", "a checkpoint with mtp.* tensors",
           "none");
  }
  require_draft_vocab(engine, request.speculation.draft_vocab_size, where);
  if (request.speculation.draft_vocab_size > 0 && drafts == 0) {
    refuse(where, "draft_vocab_size is of drafts, and there are none",
           "num_speculative_tokens of at least 1 beside it, or draft_vocab_size 0",
           fmt::format("{}", request.speculation.draft_vocab_size));
  }
  const std::vector<double>& rates = request.speculation.synthetic_acceptance_rates;
  if (rates.empty()) return;
  bool ok = static_cast<int>(rates.size()) == drafts;
  for (std::size_t i = 0; i < rates.size(); ++i) {
    ok = ok && rates[i] >= 0 && rates[i] <= (i == 0 ? 1.0 : rates[i - 1]);
  }
  if (!ok) {
    refuse(where, "synthetic_acceptance_rates are no acceptance rates",
           fmt::format("{} numbers from 0 to 1, none above the one before", drafts),
           fmt::format("{}", fmt::join(rates, ", ")));
  }
}

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

void require_fit(int64_t length, int64_t context, std::string_view where) {
  if (length == 0) refuse(where, "prompt is empty", "at least one token", "none");
  if (length < context) return;
  refuse(where, "prompt is longer than the context",
         fmt::format("at most {}, so that one can follow", counted(context - 1, "token")),
         counted(length, "token"), "raise --max-model-len or shorten the prompt");
}

void require_known(std::span<const int32_t> ids, int64_t vocab_size, std::string_view where) {
  for (const int32_t id : ids) {
    if (id >= 0 && id < vocab_size) continue;
    refuse(where, "token id is not in the vocabulary", fmt::format("0 to {}", vocab_size - 1),
           fmt::format("{}", id));
  }
}

void require_drafts(const Engine& engine, int drafts, std::string_view where) {
  const int most = engine.runtime->options().max_rewind - 1;
  if (drafts >= 0 && drafts <= most) return;
  refuse(where, "num_speculative_tokens is out of range", fmt::format("0 to {}", most),
         fmt::format("{}", drafts),
         "the runtime's max_rewind bounds a block of the last token and its drafts");
}

void require_draft_vocab(const Engine& engine, int64_t size, std::string_view where) {
  const int64_t vocab = engine.model->config.vocab_size;
  if (size < 0 || size > vocab) {
    refuse(where, "draft_vocab_size is out of range", fmt::format("0 to {}", vocab),
           fmt::format("{}", size), "0 drafts from all tokens");
  }
}

void check_request(const Engine& engine, const Request& request, std::string_view where) {
  check_prompt(engine, request, where);
  validate(request.sampling);
  check_speculation(engine, request, where);
  if (!request.sampling.stop.empty() && !engine.tokenizer) {
    refuse(where, "stop strings need a tokenizer", "tokenizer.json in the model folder", "none");
  }
}

std::vector<Result> generate(Engine& engine, std::span<const Request> requests) {
  for (std::size_t i = 0; i < requests.size(); ++i) {
    check_request(engine, requests[i],
                  requests.size() == 1 ? std::string() : fmt::format("request {}", i));
  }
  std::vector<Result> results(requests.size());
  std::exception_ptr error;
  Scheduler scheduler(engine, {.decode_slowdown = 0});
  for (std::size_t i = 0; i < requests.size(); ++i) {
    scheduler.submit({.request = requests[i], .on_finish = [&, i](Completion&& completion) {
                        results[i] = std::move(completion.result);
                        if (completion.error && !error) error = completion.error;
                      }});
  }
  while (!error && scheduler.step()) {
  }
  if (error) std::rethrow_exception(error);
  return results;
}

}  // namespace levin::engine
