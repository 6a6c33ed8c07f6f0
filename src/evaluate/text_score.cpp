#include "evaluate/text_score.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "core/error.h"
#include "core/plural.h"

namespace levin::evaluate {
namespace {

// exp(logits - max) of one row and what normalizes them.
struct Distribution {
  std::vector<double> weights;  // exp(logit - max)
  double log_sum = 0;           // log of the sum of exp(logit)
  double sum = 0;               // of the weights
  std::size_t top = 0;

  void compute(std::span<const float> logits) {
    weights.resize(logits.size());
    top = static_cast<std::size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    const double largest = logits[top];
    sum = 0;
    for (std::size_t i = 0; i < logits.size(); ++i) {
      weights[i] = std::exp(static_cast<double>(logits[i]) - largest);
      sum += weights[i];
    }
    log_sum = largest + std::log(sum);
  }
};

// Sum over tokens of p (log p - log q), p the baseline, q the candidate.
double divergence(const Distribution& p, std::span<const float> p_logits, const Distribution& q,
                  std::span<const float> q_logits) {
  double difference = 0;
  for (std::size_t i = 0; i < p_logits.size(); ++i) {
    difference += p.weights[i] * (static_cast<double>(p_logits[i]) - q_logits[i]);
  }
  // Rounding can take a divergence of nothing below zero.
  return std::max(0.0, difference / p.sum + q.log_sum - p.log_sum);
}

struct Windows {
  int64_t length = 0;  // predictions of each
  int64_t count = 0;   // that will be scored
  int64_t whole = 0;   // that the stream has
};

Windows windows_of(int64_t tokens, const TextOptions& options) {
  const int64_t predictions = std::max<int64_t>(tokens - 1, 0);
  Windows windows;
  windows.length = std::min(options.window, predictions);
  windows.whole = windows.length > 0 ? predictions / windows.length : 0;
  windows.count =
      options.max_windows > 0 ? std::min(options.max_windows, windows.whole) : windows.whole;
  return windows;
}

void check(const runtime::Runtime& runtime, const TokenStream& stream, const TextOptions& options,
           const char* whose) {
  const int64_t set = runtime.options().max_model_len;
  const int64_t length = set > 0 ? set : runtime.model().config.max_position_embeddings;
  require_fit(stream, options, length);
  const int64_t vocabulary = runtime.model().config.vocab_size;
  for (const int32_t token : stream.tokens) {
    if (token >= 0 && token < vocabulary) continue;
    throw Error({.what = fmt::format("token is not in the {}'s vocabulary", whose),
                 .where = "text " + stream.kind,
                 .expected = fmt::format("ids below {}", vocabulary),
                 .found = fmt::format("{}", token),
                 .hint = "tokenizer.json and config.json do not belong together"});
  }
}

class Scorer {
 public:
  Scorer(runtime::Runtime& candidate, runtime::Runtime* baseline)
      : candidate_(candidate), baseline_(baseline) {
    chunk_ = candidate.options().max_extend_tokens;
    if (baseline != nullptr) chunk_ = std::min(chunk_, baseline->options().max_extend_tokens);
  }

  // `tokens`: the window's inputs and one more, the last target.
  WindowScore score(std::span<const int32_t> tokens, const std::function<void(int64_t)>& report) {
    WindowScore score;
    candidate_.reset(0);
    if (baseline_ != nullptr) baseline_->reset(0);
    const std::size_t inputs = tokens.size() - 1;
    for (std::size_t begin = 0; begin < inputs;) {
      const std::size_t count = std::min(inputs - begin, static_cast<std::size_t>(chunk_));
      extend(candidate_, tokens.subspan(begin, count));
      if (baseline_ != nullptr) extend(*baseline_, tokens.subspan(begin, count));
      for (std::size_t row = 0; row < count; ++row) {
        add_row(score, static_cast<int>(row), tokens[begin + row + 1]);
      }
      begin += count;
      if (report) report(static_cast<int64_t>(count));
    }
    return score;
  }

 private:
  static void extend(runtime::Runtime& runtime, std::span<const int32_t> tokens) {
    const std::array batch = {runtime::Extend{
        .slot = 0, .tokens = tokens, .logits_rows = static_cast<int>(tokens.size())}};
    runtime.extend(batch);
  }

  void add_row(WindowScore& score, int row, int32_t target) {
    const std::span<const float> logits = candidate_.logits(0, row);
    q_.compute(logits);
    ++score.predictions;
    score.nll += q_.log_sum - logits[static_cast<std::size_t>(target)];
    if (baseline_ == nullptr) return;
    const std::span<const float> base = baseline_->logits(0, row);
    p_.compute(base);
    score.baseline_nll += p_.log_sum - base[static_cast<std::size_t>(target)];
    score.kl += divergence(p_, base, q_, logits);
    score.agreements += p_.top == q_.top;
  }

  runtime::Runtime& candidate_;
  runtime::Runtime* baseline_;
  int chunk_ = 1;
  Distribution p_, q_;  // baseline, candidate
};

}  // namespace

WindowScore TextScore::total() const {
  WindowScore sum;
  for (const WindowScore& window_score : windows) {
    sum.predictions += window_score.predictions;
    sum.nll += window_score.nll;
    sum.baseline_nll += window_score.baseline_nll;
    sum.kl += window_score.kl;
    sum.agreements += window_score.agreements;
  }
  return sum;
}

double TextScore::perplexity() const {
  const WindowScore sum = total();
  return std::exp(sum.nll / static_cast<double>(sum.predictions));
}

double TextScore::baseline_perplexity() const {
  const WindowScore sum = total();
  return std::exp(sum.baseline_nll / static_cast<double>(sum.predictions));
}

double TextScore::mean_kl() const {
  const WindowScore sum = total();
  return sum.kl / static_cast<double>(sum.predictions);
}

double TextScore::top1_agreement() const {
  const WindowScore sum = total();
  return static_cast<double>(sum.agreements) / static_cast<double>(sum.predictions);
}

void require_fit(const TokenStream& stream, const TextOptions& options, int64_t length) {
  const auto tokens = static_cast<int64_t>(stream.tokens.size());
  const Windows windows = windows_of(tokens, options);
  if (windows.count == 0) {
    throw Error({.what = "text is too short to predict anything",
                 .where = "text " + stream.kind,
                 .expected = "at least 2 tokens",
                 .found = fmt::format("{}", tokens),
                 .hint = {}});
  }
  if (windows.length <= length) return;
  throw Error({.what = "window is longer than the model's sequences",
               .where = "text " + stream.kind,
               .expected = "at most " + counted(length, "token"),
               .found = counted(windows.length, "token"),
               .hint = "choose a smaller --window or a larger --max-model-len"});
}

TextScore score_text(runtime::Runtime& candidate, runtime::Runtime* baseline,
                     const TokenStream& stream, const TextOptions& options,
                     const std::function<void(int64_t)>& on_predictions) {
  const auto tokens = static_cast<int64_t>(stream.tokens.size());
  const Windows windows = windows_of(tokens, options);
  check(candidate, stream, options, "candidate");
  if (baseline != nullptr) check(*baseline, stream, options, "baseline");
  if (baseline != nullptr &&
      baseline->model().config.vocab_size != candidate.model().config.vocab_size) {
    throw Error({.what = "baseline and candidate have different vocabularies",
                 .where = "text " + stream.kind,
                 .expected = fmt::format("{} tokens", baseline->model().config.vocab_size),
                 .found = fmt::format("{} tokens", candidate.model().config.vocab_size),
                 .hint = {}});
  }

  TextScore score{.kind = stream.kind,
                  .documents = stream.documents,
                  .tokens = tokens,
                  .leftover = tokens - 1 - windows.whole * windows.length,
                  .unscored = (windows.whole - windows.count) * windows.length,
                  .window = windows.length,
                  .compared = baseline != nullptr,
                  .windows = {}};
  Scorer scorer(candidate, baseline);
  for (int64_t i = 0; i < windows.count; ++i) {
    const auto begin = static_cast<std::size_t>(i * windows.length);
    const auto count = static_cast<std::size_t>(windows.length) + 1;
    score.windows.push_back(
        scorer.score(std::span(stream.tokens).subspan(begin, count), on_predictions));
  }
  return score;
}

int64_t scored_predictions(int64_t tokens, const TextOptions& options) {
  const Windows windows = windows_of(tokens, options);
  return windows.count * windows.length;
}

}  // namespace levin::evaluate
