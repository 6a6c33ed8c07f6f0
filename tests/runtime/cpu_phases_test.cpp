// What the CPU runtime records of its phases: complete, in order, and the bytes that the cost model
// expects.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "model/cost.h"
#include "model/model.h"
#include "runtime/phases.h"
#include "runtime/runtime.h"

namespace levin::runtime {
namespace {

std::shared_ptr<const model::Model> tiny_model() {
  return model::load_model(std::filesystem::path(LEVIN_SOURCE_DIR) / "models/tiny",
                           model::LoadFormat::kAuto, {});
}

Options small_options(int threads) {
  return {.max_model_len = 256, .max_extend_tokens = 64, .threads = threads};
}

// Bytes of all threads in a step, by phase.
std::map<Phase, double> bytes_of(const PhaseRecorder& recorder, const StepRecord& step) {
  std::map<Phase, double> bytes;
  for (int thread = 0; thread < recorder.threads(); ++thread) {
    for (uint64_t i = step.first_phase; i < step.first_phase + step.phases; ++i) {
      const PhaseRecord& record = recorder.phase(thread, i);
      bytes[record.phase] += static_cast<double>(record.bytes);
    }
  }
  return bytes;
}

double sum_of(const std::map<Phase, double>& bytes) {
  double sum = 0;
  for (const auto& [phase, value] : bytes) sum += value;
  return sum;
}

class CpuPhases : public ::testing::TestWithParam<int> {};

TEST_P(CpuPhases, FollowEachOtherAndFillTheStep) {
  const auto runtime = make_cpu_runtime(tiny_model(), small_options(GetParam()));
  PhaseRecorder recorder(GetParam(), 4096, 16);
  ASSERT_TRUE(runtime->set_phase_recorder(&recorder));
  const std::vector<int32_t> prompt(20, 7);
  const std::vector<int32_t> token = {9};
  runtime->extend(std::vector<Extend>{{.slot = 0, .tokens = prompt}});
  runtime->extend(std::vector<Extend>{{.slot = 0, .tokens = token}});
  runtime->draft(std::vector<Draft>{{.slot = 0, .next_token = 3, .k = 2}});
  runtime->set_phase_recorder(nullptr);
  runtime->extend(std::vector<Extend>{{.slot = 0, .tokens = token}});

  const std::vector<StepRecord> steps = recorder.steps();
  ASSERT_EQ(steps.size(), 3U);
  EXPECT_EQ(steps[0].rows, 20);
  EXPECT_EQ(steps[1].rows, 1);
  EXPECT_EQ(steps[2].kind, StepKind::kDraft);
  EXPECT_EQ(steps[2].rows, 2);
  for (const StepRecord& step : steps) {
    ASSERT_GT(step.phases, 4U);
    for (int thread = 0; thread < recorder.threads(); ++thread) {
      uint64_t before = step.begin;
      for (uint64_t i = step.first_phase; i < step.first_phase + step.phases; ++i) {
        const PhaseRecord& record = recorder.phase(thread, i);
        EXPECT_LE(before, record.begin);
        EXPECT_LE(record.begin, record.arrived);
        EXPECT_LE(record.arrived, record.end);
        EXPECT_EQ(record.phase, recorder.phase(0, i).phase);
        EXPECT_EQ(record.layer, recorder.phase(0, i).layer);
        // A prompt makes entries of the draft head's cache along the way.
        if (step.rows == 1) {
          EXPECT_FALSE(record.draft);
        }
        if (step.kind == StepKind::kDraft) {
          EXPECT_TRUE(record.draft);
        }
        before = record.end;
      }
      EXPECT_LE(before, step.end);
    }
  }
  // 12 layers or so, each with two phases or more.
  EXPECT_GE(steps[1].phases, 2 * runtime->model().layers.size());
}

TEST_P(CpuPhases, CountTheBytesThatTheCostModelExpects) {
  const auto model = tiny_model();
  const auto runtime = make_cpu_runtime(model, small_options(GetParam()));
  PhaseRecorder recorder(GetParam(), 4096, 16);
  runtime->set_phase_recorder(&recorder);
  const std::vector<int32_t> prompt(40, 7);
  const std::vector<int32_t> token = {9};
  runtime->extend(std::vector<Extend>{{.slot = 0, .tokens = prompt}});
  // The second writes the state that the first one left to it.
  for (int i = 0; i < 2; ++i) runtime->extend(std::vector<Extend>{{.slot = 0, .tokens = token}});

  const model::Config& config = model->config;
  model::StepOptions options;
  options.context = 41;
  options.types.ssm = 4;
  const auto tensors = model::sized_tensors(config, *model->checkpoint);
  const model::Operation cost = model::total(model::step_operations(config, tensors, options));
  const std::map<Phase, double> bytes = bytes_of(recorder, recorder.steps()[2]);
  // The embedding's row, norms, convolutions and their inputs are left out of the record; padding
  // of panels is in it.
  EXPECT_NEAR(sum_of(bytes) / cost.memory_bytes(), 1, 0.02);
  EXPECT_EQ(bytes.at(Phase::kMambaScan),
            static_cast<double>(2 * model::state_size(config, options.types).ssm_bytes));
  int64_t attention = 0;
  for (const auto kind : config.layers) attention += kind == model::BlockKind::kAttention ? 1 : 0;
  EXPECT_EQ(bytes.at(Phase::kAttend),
            static_cast<double>(attention * 42 * 2 * config.kv_rows() * options.types.kv));
}

TEST_P(CpuPhases, CountTheExpertsThatTokensReach) {
  const auto runtime = make_cpu_runtime(tiny_model(), small_options(GetParam()));
  PhaseRecorder recorder(GetParam(), 4096, 16);
  runtime->set_phase_recorder(&recorder);
  const auto chosen = static_cast<int>(runtime->model().config.num_experts_per_tok);
  const auto all = static_cast<int>(runtime->model().config.n_routed_experts);
  const std::vector<int32_t> one = {9};
  const std::vector<int32_t> several = {9, 101, 202, 303};
  for (const auto* tokens : {&one, &several}) {
    runtime->reset(0);
    runtime->extend(std::vector<Extend>{{.slot = 0, .tokens = *tokens}});
    const StepRecord step = recorder.steps().back();
    int moe = 0;
    for (uint64_t i = step.first_phase; i < step.first_phase + step.phases; ++i) {
      const PhaseRecord& record = recorder.phase(0, i);
      const bool experts = record.phase == Phase::kMoeUp || record.phase == Phase::kMoeDown;
      if (!experts) {
        EXPECT_EQ(record.experts, 0);
        continue;
      }
      ++moe;
      if (tokens->size() == 1) {
        EXPECT_EQ(record.experts, chosen);
      } else {
        EXPECT_GE(record.experts, chosen);
        EXPECT_LE(record.experts, std::min(all, chosen * static_cast<int>(tokens->size())));
      }
    }
    EXPECT_GT(moe, 0);
  }
}

TEST(PhaseRecorder, KeepsTheLastStepsWhole) {
  PhaseRecorder recorder(1, 8, 4);
  for (int step = 0; step < 6; ++step) {
    recorder.begin_step(StepKind::kExtend, 1, step);
    recorder.begin(0);
    for (int i = 0; i < 3; ++i) recorder.add(0, {.rows = step});
    recorder.end_step();
  }
  const std::vector<StepRecord> steps = recorder.steps();
  ASSERT_EQ(steps.size(), 2U);  // 8 phases hold two steps of 3
  EXPECT_EQ(steps[0].rows, 4);
  EXPECT_EQ(steps[1].rows, 5);
  EXPECT_EQ(recorder.phase(0, steps[0].first_phase).rows, 4);
  recorder.clear();
  EXPECT_TRUE(recorder.steps().empty());
}

INSTANTIATE_TEST_SUITE_P(Threads, CpuPhases, ::testing::Values(1, 2));

}  // namespace
}  // namespace levin::runtime
