// Perplexity of a model on text and, beside a baseline, the divergence of its predictions.
//
// A stream of tokens is cut into windows of W predictions: window k feeds tokens Wk .. Wk+W-1 to an
// empty sequence and predicts tokens Wk+1 .. Wk+W, so every token but the first is predicted once
// at most. Tokens after the last whole window are not scored, and counted. Text that is too short
// for one window is one shorter window.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "evaluate/text_set.h"
#include "runtime/runtime.h"

namespace levin::evaluate {

struct TextOptions {
  int64_t window = 2048;    // predictions; at most the model's length
  int64_t max_windows = 0;  // 0: all
};

// Sums over the predictions of one window; logarithms are natural.
struct WindowScore {
  int64_t predictions = 0;
  double nll = 0;           // of the true tokens, candidate
  double baseline_nll = 0;  // of the true tokens, baseline
  double kl = 0;            // KL(baseline || candidate) of the whole distributions
  int64_t agreements = 0;   // positions where both rank the same token first
};

struct TextScore {
  std::string kind;
  int64_t documents = 0;
  int64_t tokens = 0;     // of the stream
  int64_t leftover = 0;   // tokens after the last whole window, in no window
  int64_t unscored = 0;   // predictions in windows that max_windows left out
  int64_t window = 0;     // predictions of a whole window
  bool compared = false;  // a baseline was given
  std::vector<WindowScore> windows;

  WindowScore total() const;
  double perplexity() const;  // exp(nll / predictions)
  double baseline_perplexity() const;
  double mean_kl() const;  // nats per token
  double top1_agreement() const;
};

// Runs the stream through slot 0 of `candidate` and, unless null, of `baseline`, chunk by chunk in
// step, so that only one chunk's logits exist at a time. `on_predictions` is told of progress.
// Throws Error when the stream has fewer than two tokens, when the window exceeds a runtime's
// length, or when the vocabularies differ.
TextScore score_text(runtime::Runtime& candidate, runtime::Runtime* baseline,
                     const TokenStream& stream, const TextOptions& options,
                     const std::function<void(int64_t)>& on_predictions = {});

// Throws Error when the stream has fewer than two tokens, or windows of more than `length`.
void require_fit(const TokenStream& stream, const TextOptions& options, int64_t length);

// Predictions that score_text will make.
int64_t scored_predictions(int64_t tokens, const TextOptions& options);

}  // namespace levin::evaluate
