#include "evaluate/text_score.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "core/error.h"
#include "fake_runtime.h"

namespace levin::evaluate {
namespace {

constexpr int32_t kVocab = 11;

TokenStream stream_of(int64_t tokens) {
  std::mt19937 random(1);
  std::uniform_int_distribution<int32_t> any(0, kVocab - 1);
  TokenStream stream{.kind = "test", .documents = 1, .tokens = {}};
  for (int64_t i = 0; i < tokens; ++i) stream.tokens.push_back(any(random));
  return stream;
}

// log p(next | before, last), in double, without the tricks of the implementation.
double log_probability(int32_t before, int32_t last, int32_t next, float tilt) {
  double sum = 0;
  for (int32_t other = 0; other < kVocab; ++other) {
    sum += std::exp(static_cast<double>(fake_logit(before, last, other, tilt)));
  }
  return static_cast<double>(fake_logit(before, last, next, tilt)) - std::log(sum);
}

struct Expected {
  double nll = 0, kl = 0;
  int64_t agreements = 0;
};

Expected expected(const TokenStream& stream, int64_t begin, int64_t window, float tilt) {
  Expected result;
  for (int64_t i = begin; i < begin + window; ++i) {
    const auto at = [&](int64_t position) {
      return stream.tokens[static_cast<std::size_t>(position)];
    };
    const int32_t before = i > begin ? at(i - 1) : 0;
    result.nll -= log_probability(before, at(i), at(i + 1), tilt);
    int32_t top_p = 0;
    int32_t top_q = 0;
    for (int32_t next = 0; next < kVocab; ++next) {
      const double p = log_probability(before, at(i), next, 0);
      const double q = log_probability(before, at(i), next, tilt);
      result.kl += std::exp(p) * (p - q);
      if (p > log_probability(before, at(i), top_p, 0)) top_p = next;
      if (q > log_probability(before, at(i), top_q, tilt)) top_q = next;
    }
    result.agreements += top_p == top_q;
  }
  return result;
}

TEST(TextScore, EveryTokenOfWholeWindowsIsPredictedOnce) {
  FakeRuntime runtime(kVocab, {.max_extend_tokens = 7});
  const TokenStream stream = stream_of(100);
  const TextScore score = score_text(runtime, nullptr, stream, {.window = 20});
  ASSERT_EQ(score.windows.size(), 4u);  // 99 predictions
  EXPECT_EQ(score.leftover, 19);
  EXPECT_EQ(score.total().predictions, 80);
  EXPECT_EQ(score.tokens, 100);
  for (int64_t w = 0; w < 4; ++w) {
    EXPECT_NEAR(score.windows[static_cast<std::size_t>(w)].nll, expected(stream, 20 * w, 20, 0).nll,
                1e-4);
  }
  EXPECT_LE(runtime.largest_extend, 7u);
}

TEST(TextScore, ExactWindowsLeaveNothingOver) {
  FakeRuntime runtime(kVocab, {});
  const TextScore score = score_text(runtime, nullptr, stream_of(41), {.window = 20});
  EXPECT_EQ(score.windows.size(), 2u);
  EXPECT_EQ(score.leftover, 0);
}

TEST(TextScore, ShortTextIsOneShorterWindow) {
  FakeRuntime runtime(kVocab, {});
  const TokenStream stream = stream_of(15);
  const TextScore score = score_text(runtime, nullptr, stream, {.window = 20});
  ASSERT_EQ(score.windows.size(), 1u);
  EXPECT_EQ(score.window, 14);
  EXPECT_EQ(score.leftover, 0);
  EXPECT_NEAR(score.windows[0].nll, expected(stream, 0, 14, 0).nll, 1e-4);
}

TEST(TextScore, MaxWindowsCountsWhatItLeavesOut) {
  FakeRuntime runtime(kVocab, {});
  const TextOptions options{.window = 20, .max_windows = 1};
  const TextScore score = score_text(runtime, nullptr, stream_of(100), options);
  EXPECT_EQ(score.windows.size(), 1u);
  EXPECT_EQ(score.unscored, 60);
  EXPECT_EQ(score.leftover, 19);
  EXPECT_EQ(scored_predictions(100, options), 20);
}

TEST(TextScore, ChunkSizeDoesNotMatter) {
  const TokenStream stream = stream_of(61);
  double first = 0;
  for (int chunk : {1, 3, 20, 512}) {
    FakeRuntime runtime(kVocab, {.max_extend_tokens = chunk});
    const double nll = score_text(runtime, nullptr, stream, {.window = 30}).total().nll;
    if (chunk == 1) first = nll;
    EXPECT_EQ(nll, first) << chunk;
  }
}

TEST(TextScore, DivergenceAndAgreementBesideABaseline) {
  constexpr float kTilt = 0.7F;
  FakeRuntime candidate(kVocab, {.max_extend_tokens = 9}, kTilt);
  FakeRuntime baseline(kVocab, {.max_extend_tokens = 4});
  const TokenStream stream = stream_of(41);
  const TextScore score = score_text(candidate, &baseline, stream, {.window = 20});
  ASSERT_EQ(score.windows.size(), 2u);
  for (int64_t w = 0; w < 2; ++w) {
    const WindowScore& window = score.windows[static_cast<std::size_t>(w)];
    const Expected want = expected(stream, 20 * w, 20, kTilt);
    EXPECT_NEAR(window.nll, want.nll, 1e-4);
    EXPECT_NEAR(window.baseline_nll, expected(stream, 20 * w, 20, 0).nll, 1e-4);
    EXPECT_NEAR(window.kl, want.kl, 1e-4);
    EXPECT_EQ(window.agreements, want.agreements);
  }
  EXPECT_GT(score.mean_kl(), 0);
  EXPECT_LT(score.top1_agreement(), 1);
  EXPECT_LE(candidate.largest_extend, 4u);  // both advance in the smaller chunk
}

TEST(TextScore, AModelDoesNotDivergeFromItself) {
  FakeRuntime candidate(kVocab, {});
  FakeRuntime baseline(kVocab, {});
  const TextScore score = score_text(candidate, &baseline, stream_of(41), {.window = 20});
  EXPECT_EQ(score.mean_kl(), 0);
  EXPECT_EQ(score.top1_agreement(), 1);
  EXPECT_EQ(score.perplexity(), score.baseline_perplexity());
}

TEST(TextScore, ReportsProgressOfEveryPrediction) {
  FakeRuntime runtime(kVocab, {.max_extend_tokens = 7});
  int64_t told = 0;
  score_text(runtime, nullptr, stream_of(100), {.window = 20}, [&](int64_t n) { told += n; });
  EXPECT_EQ(told, 80);
}

TEST(TextScore, RefusesWhatCannotBeScored) {
  FakeRuntime runtime(kVocab, {});
  EXPECT_THROW(score_text(runtime, nullptr, stream_of(0), {}), Error);
  EXPECT_THROW(score_text(runtime, nullptr, stream_of(1), {}), Error);

  FakeRuntime small(kVocab, {.max_model_len = 16});
  EXPECT_THROW(score_text(small, nullptr, stream_of(100), {.window = 17}), Error);
  EXPECT_NO_THROW(score_text(small, nullptr, stream_of(100), {.window = 16}));

  FakeRuntime fewer_words(kVocab - 3, {});
  EXPECT_THROW(score_text(fewer_words, nullptr, stream_of(100), {.window = 20}), Error);
  FakeRuntime more_words(kVocab + 1, {});
  EXPECT_THROW(score_text(runtime, &more_words, stream_of(100), {.window = 20}), Error);
}

}  // namespace
}  // namespace levin::evaluate
