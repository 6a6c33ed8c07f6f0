// When a generation ends, what it reports, and what it refuses: on a fake model that follows a
// script, for every number of drafts.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "core/error.h"
#include "fake_runtime.h"

namespace levin::engine {
namespace {

using testing::fake_engine;
using testing::fake_options;
using testing::FakeRuntime;
using testing::random_logits;
using testing::run;
using testing::scripted;
using testing::Tokens;

constexpr int64_t kVocab = 50;
const Tokens kPrompt = {40, 41, 42};
const Tokens kScript = {10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25};

// Follows kScript; the drafter does too, but for every third token.
std::unique_ptr<Engine> script_engine(const runtime::Options& options = fake_options()) {
  Tokens drafts = kScript;
  for (std::size_t i = 2; i < drafts.size(); i += 3) drafts[i] = 1;
  return fake_engine(kVocab, scripted(kPrompt.size(), kScript), scripted(kPrompt.size(), drafts),
                     options);
}

Request script_request(int k) {
  return {.prompt = kPrompt,
          .sampling = {.temperature = 0, .max_tokens = 16},
          .speculation = {.num_speculative_tokens = k}};
}

Tokens first(std::size_t count) {
  return {kScript.begin(), kScript.begin() + static_cast<std::ptrdiff_t>(count)};
}

class Ends : public ::testing::TestWithParam<int> {
 protected:
  Request request() const { return script_request(GetParam()); }
};

TEST_P(Ends, AtMaxTokens) {
  const auto engine = script_engine();
  for (std::size_t count = 1; count <= 16; ++count) {
    Request request = this->request();
    request.sampling.max_tokens = static_cast<int64_t>(count);
    const Result result = run(*engine, request);
    EXPECT_EQ(result.tokens, first(count));
    EXPECT_EQ(result.finish_reason, FinishReason::kLength);
    EXPECT_EQ(result.stop_reason, "");
  }
}

TEST_P(Ends, AtTheEndOfTheContext) {
  for (std::size_t room = 1; room <= 9; ++room) {
    runtime::Options options = fake_options();
    options.max_model_len = static_cast<int64_t>(kPrompt.size() + room);
    const auto engine = script_engine(options);
    const Result result = run(*engine, request());
    EXPECT_EQ(result.tokens, first(room));
    EXPECT_EQ(result.finish_reason, FinishReason::kLength);
  }
}

TEST_P(Ends, AtTheCheckpointsStopToken) {
  const auto engine = script_engine();
  for (std::size_t count = 1; count <= 12; ++count) {
    engine->stop_token_ids = {kScript[count - 1], 49};
    const Result result = run(*engine, request());
    EXPECT_EQ(result.tokens, first(count));
    EXPECT_EQ(result.finish_reason, FinishReason::kStop);
    EXPECT_EQ(result.stop_reason, std::to_string(kScript[count - 1]));
  }
}

TEST_P(Ends, AtTheRequestsStopTokenAlsoWhenEosIsIgnored) {
  const auto engine = script_engine();
  engine->stop_token_ids = {12};
  Request request = this->request();
  request.sampling.ignore_eos = true;
  EXPECT_EQ(run(*engine, request).tokens, first(16));
  request.sampling.stop_token_ids = {17};
  const Result result = run(*engine, request);
  EXPECT_EQ(result.tokens, first(8));
  EXPECT_EQ(result.finish_reason, FinishReason::kStop);
}

TEST_P(Ends, WithAStopTokenRatherThanForLength) {
  const auto engine = script_engine();
  engine->stop_token_ids = {14};
  Request request = this->request();
  request.sampling.max_tokens = 5;
  EXPECT_EQ(run(*engine, request).finish_reason, FinishReason::kStop);
}

TEST_P(Ends, NotBeforeMinTokens) {
  // The model wants to stop at once; a second choice is close behind.
  const auto model = [](std::span<const int32_t> history, std::span<float> logits) {
    std::fill(logits.begin(), logits.end(), 0.0F);
    logits[2] = 5.0F;
    logits[static_cast<std::size_t>(3 + history.size() % 7)] = 4.0F;
  };
  const auto engine = fake_engine(kVocab, model, model);
  engine->stop_token_ids = {2};
  Request request = this->request();
  for (int64_t least = 0; least <= 10; ++least) {
    request.sampling.min_tokens = least;
    const Result result = run(*engine, request);
    EXPECT_EQ(static_cast<int64_t>(result.tokens.size()), least + 1);
    EXPECT_EQ(result.tokens.back(), 2);
    EXPECT_EQ(std::count(result.tokens.begin(), result.tokens.end(), 2), 1);
  }
}

TEST_P(Ends, WhenTheCallerSaysSo) {
  const auto engine = script_engine();
  Request request = this->request();
  Tokens seen;
  request.on_tokens = [&](std::span<const int32_t> tokens) {
    seen.insert(seen.end(), tokens.begin(), tokens.end());
    return seen.size() < 6;
  };
  const Result result = run(*engine, request);
  EXPECT_EQ(result.finish_reason, FinishReason::kAbort);
  EXPECT_EQ(result.tokens, seen);
  EXPECT_GE(seen.size(), 6U);
  EXPECT_LT(seen.size(), 6U + 8U);
  EXPECT_EQ(seen, first(seen.size()));
}

TEST_P(Ends, EveryTokenIsReportedOnce) {
  const auto engine = script_engine();
  Request request = this->request();
  Tokens seen;
  request.on_tokens = [&](std::span<const int32_t> tokens) {
    EXPECT_FALSE(tokens.empty());
    seen.insert(seen.end(), tokens.begin(), tokens.end());
    return true;
  };
  const Result result = run(*engine, request);
  EXPECT_EQ(seen, first(16));
  EXPECT_EQ(result.tokens, seen);
  EXPECT_GT(result.timings.ttft_seconds, 0);
  EXPECT_GT(result.timings.decode_seconds, 0);
  EXPECT_EQ(result.timings.tpot_seconds(1), 0);
  EXPECT_DOUBLE_EQ(result.timings.tpot_seconds(16), result.timings.decode_seconds / 15);
}

// Penalties count the prompt and, token by token, the output: also inside a block of drafts.
TEST_P(Ends, PenaltiesCountWhatWasPutOut) {
  const auto model = [](std::span<const int32_t>, std::span<float> logits) {
    std::fill(logits.begin(), logits.end(), 0.0F);
    logits[3] = 1.0F;
    logits[4] = 0.9F;
    logits[5] = 0.8F;
  };
  const auto engine = fake_engine(kVocab, model, model);
  Request request = this->request();
  request.sampling.max_tokens = 6;
  request.sampling.frequency_penalty = 0.06;
  EXPECT_EQ(run(*engine, request).tokens, (Tokens{3, 3, 4, 3, 4, 3}));
  request.sampling.frequency_penalty = 0;
  request.sampling.presence_penalty = 0.15;
  EXPECT_EQ(run(*engine, request).tokens, (Tokens{3, 4, 3, 3, 3, 3}));
  request.sampling.presence_penalty = 0;
  request.sampling.repetition_penalty = 1.2;
  request.prompt = {3, 4};
  EXPECT_EQ(run(*engine, request).tokens, (Tokens{3, 3, 3, 3, 3, 3}));
  request.prompt = {3, 40};
  EXPECT_EQ(run(*engine, request).tokens, (Tokens{4, 3, 3, 3, 3, 3}));
}

INSTANTIATE_TEST_SUITE_P(Drafts, Ends, ::testing::Values(0, 1, 2, 3, 5, 7));

// --- stop strings, with the bundled tokenizer ---

class StopStrings : public ::testing::TestWithParam<int> {
 protected:
  StopStrings()
      : tokenizer_(text::Tokenizer::load(std::filesystem::path(LEVIN_SOURCE_DIR) / "models/tiny")) {
  }

  // Generates `text` and stops as `sampling` says.
  Result run_on(const std::string& text, SamplingParams sampling) {
    const Tokens script = tokenizer_.encode(text);
    const auto engine =
        fake_engine(tokenizer_.vocab_size(), scripted(1, script), scripted(1, script));
    engine->tokenizer =
        text::Tokenizer::load(std::filesystem::path(LEVIN_SOURCE_DIR) / "models/tiny");
    sampling.temperature = 0;
    sampling.max_tokens = static_cast<int64_t>(script.size());
    std::string streamed;
    Request request = {.prompt = {40},
                       .sampling = sampling,
                       .speculation = {.num_speculative_tokens = GetParam()}};
    request.on_text = [&](std::string_view piece) {
      EXPECT_FALSE(piece.empty());
      streamed += piece;
      return true;
    };
    const Result result = run(*engine, request);
    EXPECT_EQ(streamed, result.text);
    return result;
  }

  text::Tokenizer tokenizer_;
};

TEST_P(StopStrings, AcrossTokens) {
  const std::string text = "The quick brown fox jumps over the lazy dog. And then? And then.";
  const Result whole = run_on(text, {});
  EXPECT_EQ(whole.text, text);
  EXPECT_EQ(whole.finish_reason, FinishReason::kLength);
  for (const std::string stop :
       {"w", "ick bro", "fox", "jumps over the lazy", ". A", "?", "then."}) {
    const Result result = run_on(text, {.stop = {stop}});
    EXPECT_EQ(result.text, text.substr(0, text.find(stop))) << stop;
    EXPECT_EQ(result.finish_reason, FinishReason::kStop);
    EXPECT_EQ(result.stop_reason, stop);
    // The token that completed the string is the last one.
    const std::string decoded = tokenizer_.decode(result.tokens);
    EXPECT_NE(decoded.find(stop), std::string::npos);
    EXPECT_EQ(tokenizer_.decode(Tokens(result.tokens.begin(), result.tokens.end() - 1)).find(stop),
              std::string::npos);

    const Result included = run_on(text, {.stop = {stop}, .include_stop_str_in_output = true});
    EXPECT_EQ(included.text, text.substr(0, text.find(stop) + stop.size()));
  }
}

TEST_P(StopStrings, TheFirstThatIsCompletedWins) {
  const Result result = run_on("one two three four", {.stop = {"four", "three", "hree"}});
  EXPECT_EQ(result.text, "one two ");
  EXPECT_EQ(result.stop_reason, "three");
}

TEST_P(StopStrings, NotBeforeMinTokens) {
  const std::string text = "stop stop stop stop stop stop";
  const auto tokens = tokenizer_.encode(text);
  const Result result =
      run_on(text, {.min_tokens = static_cast<int64_t>(tokens.size()) - 1, .stop = {"stop"}});
  EXPECT_GE(result.tokens.size(), tokens.size() - 1);
}

TEST_P(StopStrings, CharactersOfSeveralBytes) {
  const std::string text = "na\xc3\xafve caf\xc3\xa9 \xe2\x82\xac 5 \xf0\x9f\x8e\x89 done";
  EXPECT_EQ(run_on(text, {}).text, text);
  const Result result = run_on(text, {.stop = {"\xe2\x82\xac"}});
  EXPECT_EQ(result.text, "na\xc3\xafve caf\xc3\xa9 ");
}

TEST_P(StopStrings, SpecialTokensOnRequest) {
  const std::string text = "<think>\nhm\n</think>\nyes<|im_end|>";
  EXPECT_EQ(run_on(text, {}).text, "\nhm\n\nyes");
  EXPECT_EQ(run_on(text, {.skip_special_tokens = false}).text, text);
  // The text of the token that stops is not part of the answer.
  const int32_t end = *tokenizer_.find("<|im_end|>");
  const Result result = run_on(text, {.stop_token_ids = {end}, .skip_special_tokens = false});
  EXPECT_EQ(result.text, "<think>\nhm\n</think>\nyes");
  EXPECT_EQ(result.tokens.back(), end);
}

INSTANTIATE_TEST_SUITE_P(Drafts, StopStrings, ::testing::Values(0, 3, 7));

// --- refused requests ---

void expect_refused(Engine& engine, const Request& request, const std::string& what) {
  try {
    run(engine, request);
    FAIL() << what;
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::kBadInput) << what;
  }
}

TEST(Generate, RefusesWhatCannotRun) {
  const auto engine = script_engine();
  Request request = script_request(0);
  request.prompt = {};
  expect_refused(*engine, request, "empty prompt");
  request.prompt.assign(256, 1);
  expect_refused(*engine, request, "prompt as long as the context");
  request.prompt = {50};
  expect_refused(*engine, request, "token outside the vocabulary");
  request.prompt = {-1};
  expect_refused(*engine, request, "negative token");
  request = script_request(8);
  expect_refused(*engine, request, "more drafts than can be rewound");
  request = script_request(-1);
  expect_refused(*engine, request, "negative drafts");
  // The same when a command starts, before there is a request.
  const int most = engine->runtime->options().max_rewind - 1;
  EXPECT_NO_THROW(require_drafts(*engine, most, "flag"));
  EXPECT_THROW(require_drafts(*engine, most + 1, "flag"), Error);
  request = script_request(0);
  request.sampling.temperature = -1;
  expect_refused(*engine, request, "sampling parameter");
  request = script_request(0);
  request.sampling.stop = {"x"};
  expect_refused(*engine, request, "stop string without tokenizer");
  request = script_request(0);
  request.given_drafts = {99};
  expect_refused(*engine, request, "given draft outside the vocabulary");
  request = script_request(0);
  request.sampling.stop_token_ids = {-3};
  expect_refused(*engine, request, "stop token outside the vocabulary");
  request = script_request(0);
  request.speculation.draft_vocab_size = 2;
  expect_refused(*engine, request, "draft vocabulary without drafts");
  const auto no_drafter = fake_engine(kVocab, scripted(3, kScript), nullptr);
  expect_refused(*no_drafter, script_request(1), "no draft head");

  // One bad request among good ones: nothing runs.
  auto& fake = static_cast<FakeRuntime&>(*engine->runtime);
  fake.extends = 0;
  std::vector<Request> requests(3, script_request(0));
  requests[2].prompt = {};
  EXPECT_THROW(generate(*engine, requests), Error);
  EXPECT_EQ(fake.extends, 0);
}

TEST(Generate, LongestPromptAndNoRequests) {
  const auto engine = fake_engine(kVocab, random_logits(1), nullptr);
  Request request = script_request(0);
  request.prompt.assign(255, 1);
  const Result result = run(*engine, request);
  EXPECT_EQ(result.tokens.size(), 1U);
  EXPECT_EQ(result.finish_reason, FinishReason::kLength);
  EXPECT_TRUE(generate(*engine, {}).empty());
}

// A running sequence whose blocks fill every extend() does not keep a prompt waiting.
TEST(Generate, PromptsAdvanceBesideFullBlocks) {
  runtime::Options options = fake_options();
  options.max_num_seqs = 2;
  options.max_extend_tokens = 4;
  const auto model = random_logits(1);
  const auto engine = fake_engine(kVocab, model, model, options);
  std::vector<int> order;
  std::vector<Request> requests(2);
  for (int i = 0; i < 2; ++i) {
    requests[static_cast<std::size_t>(i)] = {.prompt = Tokens(i == 0 ? 1 : 20, 5),
                                             .sampling = {.temperature = 0, .max_tokens = 100},
                                             .speculation = {.num_speculative_tokens = 3},
                                             .on_tokens = [&order, i](std::span<const int32_t>) {
                                               order.push_back(i);
                                               return true;
                                             }};
  }
  generate(*engine, requests);
  const auto first_of_second = std::find(order.begin(), order.end(), 1) - order.begin();
  EXPECT_LT(first_of_second, 10);
}

TEST(Generate, BrokenModelIsAnErrorNotGarbage) {
  const auto engine = fake_engine(
      kVocab,
      [](std::span<const int32_t>, std::span<float> logits) {
        std::fill(logits.begin(), logits.end(), std::numeric_limits<float>::quiet_NaN());
      },
      nullptr);
  EXPECT_THROW(run(*engine, script_request(0)), Error);
  // The engine is usable afterwards.
  EXPECT_THROW(run(*engine, script_request(0)), Error);
}

TEST(Generate, WithoutSeedTwoRunsDiffer) {
  const auto engine = fake_engine(kVocab, random_logits(1, 0.1F), nullptr);
  const Request request = {.prompt = {1}, .sampling = {.temperature = 1, .max_tokens = 40}};
  EXPECT_NE(run(*engine, request).tokens, run(*engine, request).tokens);
}

}  // namespace
}  // namespace levin::engine
