#include "bench/timing.h"

#include <gtest/gtest.h>

#include "bench/bench.h"
#include "core/error.h"
#include "core/progress.h"

namespace levin::bench {
namespace {

const std::filesystem::path kModel = LEVIN_SOURCE_DIR "/models/tiny";

class TimingTest : public testing::Test {
 protected:
  TimingTest() { Progress::set_enabled(false); }
  static std::unique_ptr<engine::Engine> load(bool mtp = true) {
    engine::LoadOptions options;
    options.runtime.max_model_len = 512;
    options.runtime.mtp = mtp;
    return engine::load_engine(kModel, options);
  }
};

TEST_F(TimingTest, WorkloadIsFixed) {
  const auto engine = load();
  const Workload workload = fixed_workload(*engine, 300);
  ASSERT_EQ(workload.prompts.size(), 3u);
  EXPECT_EQ(workload.prompts[0].tokens.size(), 300u);
  EXPECT_EQ(workload.prompts[1].tokens.size(), 300u);
  EXPECT_EQ(workload.hash, fixed_workload(*engine, 300).hash);
  EXPECT_NE(workload.hash, fixed_workload(*engine, 299).hash);
  EXPECT_EQ(workload.prompt_tokens(),
            600 + static_cast<int64_t>(workload.prompts[2].tokens.size()));
}

TEST_F(TimingTest, WithoutTokenizerThePromptIsRandom) {
  const auto engine = load();
  engine->tokenizer.reset();
  const Workload workload = fixed_workload(*engine, 50);
  ASSERT_EQ(workload.prompts.size(), 1u);
  EXPECT_EQ(workload.prompts[0].tokens.size(), 50u);
  EXPECT_THROW(file_workload(*engine, kModel / "config.json"), Error);
}

TEST_F(TimingTest, RefusesWorkThatDoesNotFit) {
  const auto engine = load();
  EXPECT_NO_THROW(require_fit(fixed_workload(*engine, 400), *engine, 112));
  EXPECT_THROW(require_fit(fixed_workload(*engine, 400), *engine, 113), Error);
}

TEST_F(TimingTest, EveryContenderRunsEveryPromptInEveryRound) {
  const auto engine = load();
  const Workload workload = fixed_workload(*engine, 20);
  const std::vector<Contender> contenders = {
      {"control", engine.get(), {}}, {"speculating", engine.get(), {.num_speculative_tokens = 3}}};
  const TimingOptions options{.output_tokens = 12, .rounds = 3, .warm_up = 1};
  int runs = 0;
  const auto timings = time_contenders(contenders, workload, options, [&] { ++runs; });
  EXPECT_EQ(runs, 2 * 3 * 4);
  ASSERT_EQ(timings.size(), 2u);
  for (const ContenderTiming& timing : timings) {
    EXPECT_EQ(timing.tpot.size(), 3u);
    EXPECT_EQ(timing.ttft.size(), 3u);
    ASSERT_EQ(timing.outputs.size(), 3u);
    for (const auto& output : timing.outputs) EXPECT_EQ(output.size(), 12u);
    for (const double seconds : timing.tpot) EXPECT_GT(seconds, 0);
    for (const double seconds : timing.ttft) EXPECT_GT(seconds, 0);
  }
  EXPECT_EQ(timings[0].outputs, timings[1].outputs);  // lossless
  EXPECT_EQ(timings[0].speculation.num_drafts, 0);
  EXPECT_GT(timings[1].speculation.num_drafts, 0);
  EXPECT_EQ(accepted_per_position(timings[1].speculation).size(), 3u);
  // Of one round: accepted tokens and one more per drafting round make the outputs, but for the
  // first token of each and what the limit cut off.
  const auto& stats = timings[1].speculation;
  EXPECT_GE(stats.num_drafts + stats.num_accepted_tokens, 3 * 11 - 3);
}

TEST(ContenderTimingTest, FiguresFollowTheirDefinitions) {
  ContenderTiming timing;
  timing.ttft = {0.1, 0.2, 0.4};
  timing.tpot = {0.01, 0.02, 0.04};
  timing.prompt_tokens = 100;
  EXPECT_DOUBLE_EQ(timing.ttft_ms().median, 200);
  EXPECT_DOUBLE_EQ(timing.tpot_ms().min, 10);
  EXPECT_DOUBLE_EQ(timing.decode_tokens_per_second().median, 50);
  EXPECT_DOUBLE_EQ(timing.prefill_tokens_per_second().max, 1000);
  ContenderTiming control = timing;
  for (double& seconds : control.tpot) seconds *= 3;
  EXPECT_DOUBLE_EQ(speedup(timing, control).median, 3);
}

TEST(AcceptedPerPosition, IsAShareOfDraftingRounds) {
  const engine::SpeculationStats stats{.num_drafts = 10,
                                       .num_draft_tokens = 30,
                                       .num_accepted_tokens = 16,
                                       .num_accepted_tokens_per_pos = {9, 5, 2}};
  EXPECT_EQ(accepted_per_position(stats), (std::vector<double>{0.9, 0.5, 0.2}));
  EXPECT_TRUE(accepted_per_position({}).empty());
}

TEST_F(TimingTest, BenchRefusesSpeculationWithoutAHead) {
  const auto engine = load(false);
  BenchOptions options;
  options.speculation.num_speculative_tokens = 2;
  EXPECT_THROW(run_bench(*engine, options), Error);
}

// A BF16 token reads at least the active weights of the model and at most all of them and a state.
TEST_F(TimingTest, PredictionIsPlausible) {
  const auto engine = load();
  const Prediction alone = predict_decode(*engine->model, 100, 0, 1);
  EXPECT_GT(alone.bytes_per_token, 8e6);
  EXPECT_LT(alone.bytes_per_token, 40e6);
  const Prediction drafting = predict_decode(*engine->model, 100, 3, 3.0);
  EXPECT_LT(drafting.bytes_per_token, alone.bytes_per_token * 1.5);
  EXPECT_GT(predict_decode(*engine->model, 100, 3, 1.0).bytes_per_token, alone.bytes_per_token);
  EXPECT_DOUBLE_EQ(alone.tpot_seconds(10), alone.bytes_per_token / 10e9);
  EXPECT_EQ(Prediction{.bytes_per_token = 7.6}.whole_bytes(), 8);
}

}  // namespace
}  // namespace levin::bench
