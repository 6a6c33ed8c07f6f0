#include "bench/roofline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/progress.h"

namespace levin::bench {
namespace {

std::unique_ptr<engine::Engine> tiny_engine(engine::RuntimeKind kind) {
  engine::LoadOptions options;
  options.runtime_kind = kind;
  options.runtime.threads = 2;
  options.runtime.max_model_len = 256;
  return engine::load_engine(std::filesystem::path(LEVIN_SOURCE_DIR) / "models/tiny", options);
}

const RooflineTable& table_of(const Roofline& roofline, const std::string& name) {
  for (const RooflineTable& table : roofline.tables) {
    if (table.name == name) return table;
  }
  throw std::runtime_error("no table " + name);
}

double sum(const RooflineTable& table, double (*value)(const RooflineLine&)) {
  double all = 0;
  for (const RooflineLine& line : table.lines) all += value(line);
  return all;
}

TEST(Roofline, EveryOperationOfTheCostModelHasAPhase) {
  const auto engine = tiny_engine(engine::RuntimeKind::kFast);
  const auto& config = engine->model->config;
  const auto tensors = model::sized_tensors(config, *engine->model->checkpoint);
  using runtime::Phase;
  std::map<std::string, Phase> phases;
  for (const auto& op : model::step_operations(config, tensors, {})) {
    phases[op.name] = phase_of(op, config);
  }
  for (const auto& op : model::draft_operations(config, tensors, {}, 1)) {
    phases[op.name] = phase_of(op, config);
  }
  EXPECT_EQ(phases.at("backbone.embeddings"), Phase::kEmbed);
  EXPECT_EQ(phases.at("backbone.norm_f"), Phase::kHead);
  EXPECT_EQ(phases.at("lm_head"), Phase::kHead);
  int experts = 0;
  for (const auto& [name, phase] : phases) {
    if (name.ends_with(".in_proj") || name.ends_with(".fc1_latent_proj")) {
      EXPECT_TRUE(phase == Phase::kMambaIn || phase == Phase::kMoeIn) << name;
    }
    if (name.ends_with(".ssm")) {
      EXPECT_EQ(phase, Phase::kMambaScan) << name;
    }
    if (name.ends_with(".eh_proj")) {
      EXPECT_EQ(phase, Phase::kDraftIn) << name;
    }
    if (name.ends_with(".attention")) {
      EXPECT_EQ(phase, Phase::kAttend) << name;
    }
    if (name.ends_with(".o_proj")) {
      EXPECT_EQ(phase, Phase::kAttentionOut) << name;
    }
    if (name.ends_with(".mixer.experts.up_proj")) {
      EXPECT_EQ(phase, Phase::kMoeUp) << name;
      ++experts;
    }
    if (name.ends_with(".mixer.experts.down_proj")) {
      EXPECT_EQ(phase, Phase::kMoeDown) << name;
    }
  }
  EXPECT_GT(experts, 0);
}

class RooflineOfTiny : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    Progress::set_enabled(false);
    engine_ = tiny_engine(engine::RuntimeKind::kFast);
    roofline_ =
        measure_roofline(*engine_, {.prompt_tokens = 64, .output_tokens = 48, .rounds = 3, .k = 3});
  }
  static void TearDownTestSuite() { engine_.reset(); }
  static std::unique_ptr<engine::Engine> engine_;
  static Roofline roofline_;
};
std::unique_ptr<engine::Engine> RooflineOfTiny::engine_;
Roofline RooflineOfTiny::roofline_;

TEST_F(RooflineOfTiny, HasATableForEachKindOfStep) {
  std::vector<std::string> names;
  for (const RooflineTable& table : roofline_.tables) names.push_back(table.name);
  EXPECT_THAT(names, ::testing::ElementsAre("decode", "prompt", "verify", "draft"));
  EXPECT_EQ(table_of(roofline_, "verify").rows, 4);
  EXPECT_EQ(table_of(roofline_, "prompt").rows, 64);
}

TEST_F(RooflineOfTiny, BytesOfPhasesAreTheCostModels) {
  const auto& config = engine_->model->config;
  const auto tensors = model::sized_tensors(config, *engine_->model->checkpoint);
  model::StepOptions options;
  options.context = 64 + 24;
  options.types.ssm =
      engine_->runtime->options().ssm_cache_dtype == runtime::SsmCacheDType::kF32 ? 4 : 2;
  const model::Operation total = model::total(model::step_operations(config, tensors, options));
  const RooflineTable& decode = table_of(roofline_, "decode");
  // One token reads as many experts as it chooses, so nothing differs but the order of the sum.
  EXPECT_NEAR(decode.cost.memory_bytes() / total.memory_bytes(), 1, 1e-9);
  EXPECT_NEAR(decode.cost.flops / total.flops, 1, 1e-9);
  // And the runtime counted that much.
  for (const char* name : {"decode", "verify", "prompt"}) {
    const RooflineTable& table = table_of(roofline_, name);
    EXPECT_NEAR(sum(table, [](const RooflineLine& line) { return line.counted_bytes; }) /
                    table.cost.memory_bytes(),
                1, 0.03)
        << name;
  }
}

TEST_F(RooflineOfTiny, ExpertsOfVerificationAreCounted) {
  const auto& config = engine_->model->config;
  for (const RooflineLine& line : table_of(roofline_, "verify").lines) {
    const bool experts =
        line.phase == runtime::Phase::kMoeUp || line.phase == runtime::Phase::kMoeDown;
    if (!experts) {
      EXPECT_EQ(line.experts, 0);
      continue;
    }
    EXPECT_GE(line.experts, static_cast<double>(config.num_experts_per_tok));
    EXPECT_LE(line.experts, static_cast<double>(
                                std::min(4 * config.num_experts_per_tok, config.n_routed_experts)));
  }
}

TEST_F(RooflineOfTiny, PhasesFillTheStep) {
  for (const RooflineTable& table : roofline_.tables) {
    EXPECT_GT(table.steps, 0);
    // Of each step phases are a part, so of the medians, too.
    EXPECT_LE(table.phase_seconds, table.seconds.median) << table.name;
    EXPECT_GE(table.rest_seconds, 0) << table.name;
    // Even where threads have to be woken up by a busy machine.
    EXPECT_GT(table.phase_seconds, 0.6 * table.seconds.median) << table.name;
    double lines = 0;
    for (const RooflineLine& line : table.lines) lines += line.seconds.min;
    EXPECT_LE(lines, 1.001 * table.phase_seconds) << table.name;
    EXPECT_GE(table.waiting, 0);
    EXPECT_LT(table.waiting, 1);
    EXPECT_GT(table.floor_seconds, 0);
  }
}

TEST_F(RooflineOfTiny, JsonHasWhatTheTextHas) {
  const auto json = to_json(roofline_);
  ASSERT_EQ(json.at("roofline").size(), 4U);
  const auto& decode = json.at("roofline").at(0);
  EXPECT_EQ(decode.at("step"), "decode");
  double us = 0;
  for (const auto& line : decode.at("phases")) us += line.at("us").get<double>();
  EXPECT_GT(us, 0);
  EXPECT_GT(decode.at("phases_us").get<double>(), 0);
  EXPECT_GT(json.at("device").at("arithmetic").at("F32").at("gflop_per_s").get<double>(), 0);
  EXPECT_THAT(to_text(roofline_), ::testing::HasSubstr("mamba scan"));
  for (const char* column : {"barriers", "MB", "counted", "act. MB", "MFLOP", "floor us", "us, min",
                             "GB/s", "ceiling", "waiting", "experts"}) {
    EXPECT_THAT(to_text(roofline_), ::testing::HasSubstr(std::string("\n  ") + column + " "));
  }
}

TEST(Roofline, OfABusyMachineSaysSoWhereItIsRead) {
  Roofline roofline;
  EXPECT_THAT(to_text(roofline), ::testing::Not(::testing::HasSubstr("BUSY")));
  EXPECT_FALSE(to_json(roofline).at("machine_was_busy").at("noticeable").get<bool>());
  roofline.neighbours = {.others = 0.34};
  EXPECT_THAT(to_text(roofline), ::testing::HasSubstr("THE MACHINE WAS BUSY: other processes"));
  EXPECT_TRUE(to_json(roofline).at("machine_was_busy").at("noticeable").get<bool>());
}

TEST(Roofline, SlowModelsGetFewerRounds) {
  RooflineOptions options;
  options.rounds = 5;
  EXPECT_EQ(affordable_rounds(options, 1000), 5);  // no limit
  options.seconds = 20;
  EXPECT_EQ(affordable_rounds(options, 0.1), 5);
  EXPECT_EQ(affordable_rounds(options, 4), 5);
  EXPECT_EQ(affordable_rounds(options, 6), 3);
  EXPECT_EQ(affordable_rounds(options, 41), 1);
}

TEST(Roofline, SaysWhichTablesThereAreNot) {
  const auto engine = tiny_engine(engine::RuntimeKind::kFast);
  const Roofline roofline =
      measure_roofline(*engine, {.prompt_tokens = 4, .output_tokens = 4, .rounds = 1, .k = 3});
  ASSERT_EQ(roofline.tables.size(), 1U);
  std::vector<std::string> names;
  for (const RooflineGap& gap : roofline.gaps) names.push_back(gap.name);
  EXPECT_THAT(names, ::testing::ElementsAre("prompt", "verify", "draft"));
  for (const RooflineGap& gap : roofline.gaps) {
    EXPECT_THAT(to_text(roofline), ::testing::HasSubstr(gap.name + ": no table: " + gap.why));
  }
}

TEST(Roofline, RefusesARuntimeWithoutPhases) {
  const auto engine = tiny_engine(engine::RuntimeKind::kReference);
  EXPECT_THROW(measure_roofline(*engine, {}), Error);
}

TEST(Arithmetic, TakesNoWaitForWork) {
  int calls = 0;
  const auto seconds = [&](int64_t steps) {
    return ++calls == 2 ? 1.0 : static_cast<double>(steps) * 1e-7;  // the second one waits
  };
  EXPECT_EQ(steps_that_take(0.02, seconds), 1 << 18);
  EXPECT_EQ(steps_that_take(0.02, [](int64_t) { return 1.0; }), 1 << 12);
}

TEST(Arithmetic, IsPlausible) {
  const auto rates = measure_arithmetic({.threads = 2, .passes = 3});
  ASSERT_FALSE(rates.empty());
  EXPECT_EQ(rates.back().name, "F32");
  EXPECT_EQ(&rate_of(rates, "no such"), &rates.back());
  for (const ArithmeticRate& rate : rates) {
    EXPECT_GT(rate.one_thread.median, 0.1) << rate.name;
    // 6 GHz, four pipes or a tile's product every eight cycles: more than anything sold.
    const double most = rate.instruction == "tdpbf16ps" ? 6 * 16384 / 8.0 : 6 * 4 * 128;
    EXPECT_LT(rate.one_thread.median, most) << rate.name;
    EXPECT_GT(rate.all_threads.median, 0) << rate.name;  // of a busy machine, anything
  }
  // A dot product of four bytes does at least the work of one of two halves; tiles do more.
  if (rates.front().instruction == "vdpbf16ps" && rates[1].name == "INT8") {
    EXPECT_GT(rates[1].one_thread.max, rates[0].one_thread.min);
  }
}

}  // namespace
}  // namespace levin::bench
