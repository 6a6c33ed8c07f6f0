// The planner: published figures from configurations alone, and every way a recipe and a model can
// fail to fit.
#include "quantize/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/files.h"

namespace levin::quantize {
namespace {

using checkpoint::QuantAlgo;
using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;

model::Config config_of(const std::string& folder) {
  const std::string path = std::string(LEVIN_SOURCE_DIR "/") + folder + "/config.json";
  return model::parse_config(read_json(path), path);
}

model::Config tiny() {
  return config_of("models/tiny");
}
model::Config lightning() {
  return config_of("configs/nemotron-3.5-lightning-30b-a3b");
}
model::Config super() {
  return config_of("configs/nemotron-3-super-120b-a12b");
}

Recipe recipe_of(const std::string& rules, const std::string& algorithm = "max") {
  return parse_recipe("quantize:\n  algorithm: " + algorithm + "\n  quant_cfg:\n" + rules,
                      "test.yaml");
}

constexpr const char* kAllOff = "    - {quantizer_name: '*', enable: false}\n";
constexpr const char* kNvfp4 =
    "cfg: {num_bits: e2m1, block_sizes: {-1: 16, type: dynamic, scale_bits: e4m3}}}\n";

std::string error_of(const model::Config& config, const Recipe& recipe) {
  try {
    make_plan(config, recipe);
  } catch (const Error& e) {
    EXPECT_EQ(e.exit_code(), ExitCode::kBadInput);
    return e.what();
  }
  return "no error";
}

struct Totals {
  double before = 0;
  double after = 0;
  int64_t matrices = 0;
};

Totals totals(const Plan& plan, const std::vector<std::string>& classes,
              const std::string& format = {}) {
  Totals sum;
  for (const ClassSize& entry : class_sizes(plan, nullptr)) {
    const bool named =
        classes.empty() || std::find(classes.begin(), classes.end(), entry.name) != classes.end();
    if (!named || (!format.empty() && entry.format != format)) continue;
    sum.before += static_cast<double>(entry.bytes_before) / 1e9;
    sum.after += static_cast<double>(entry.bytes_after) / 1e9;
    sum.matrices += entry.matrices;
  }
  return sum;
}

std::map<std::string, int64_t> counts(const Plan& plan) {
  std::map<std::string, int64_t> result;
  for (const LinearPlan& linear : plan.linears) {
    ++result[class_name(plan.tensor(linear)) + ": " + model::format_name(linear.quant)];
  }
  return result;
}

TEST(PublishedFigures, W4a4FullOfLightning) {
  const Plan plan = make_plan(lightning(), load_recipe("w4a4-full"));
  const auto by_class = counts(plan);
  EXPECT_EQ(by_class.at("routed experts: NVFP4 W4A4"), 5888);
  EXPECT_EQ(by_class.at("mtp routed experts: NVFP4 W4A4"), 256);
  EXPECT_EQ(by_class.at("mamba: FP8 W8A8") + by_class.at("shared experts: FP8 W8A8"), 92);
  EXPECT_EQ(by_class.at("lm_head: NVFP4 W4A16"), 1);
  EXPECT_EQ(by_class.at("attention: float"), 24);
  EXPECT_NEAR(totals(plan, {}).after, 19.9, 0.05);
  EXPECT_TRUE(plan.needs_calibration());
  EXPECT_EQ(plan.kv_cache(), checkpoint::KvCacheQuant::kNone);
}

TEST(PublishedFigures, Int4OfLightning) {
  const Plan plan = make_plan(lightning(), load_recipe("int4-g64"));
  int64_t quantized = 0;
  int64_t wide_1856 = 0;
  for (const LinearPlan& linear : plan.linears) {
    if (linear.quant.algo == QuantAlgo::kNone) continue;
    EXPECT_EQ(model::format_name(linear.quant), "INT4 g64");
    ++quantized;
    if (plan.tensor(linear).shape[1] == 1856) ++wide_1856;
  }
  EXPECT_EQ(quantized, 6004);
  EXPECT_EQ(wide_1856, 2944);
  EXPECT_FALSE(plan.needs_calibration());

  constexpr double kHalf = 0.0051;  // the published figures have two digits
  const Totals experts = totals(plan, {"routed experts"});
  EXPECT_NEAR(experts.before, 58.75, kHalf);
  EXPECT_NEAR(experts.after, 15.61, kHalf);
  const Totals mixers = totals(plan, {"mamba", "attention"}, "INT4 g64");
  EXPECT_NEAR(mixers.before, 2.06, kHalf);
  EXPECT_NEAR(mixers.after, 0.55, kHalf);
  const Totals shared = totals(plan, {"shared experts"});
  EXPECT_NEAR(shared.before, 0.92, kHalf);
  EXPECT_NEAR(shared.after, 0.24, kHalf);
  const Totals mtp = totals(plan, {"mtp routed experts", "mtp shared experts", "mtp attention",
                                   "mtp eh_proj", "mtp router", "mtp norms"});
  EXPECT_NEAR(mtp.after, 2.67, kHalf);
  EXPECT_DOUBLE_EQ(mtp.before, mtp.after);
  EXPECT_NEAR(totals(plan, {"embeddings", "lm_head"}).after, 1.41, kHalf);
  EXPECT_NEAR(totals(plan, {"router"}).after, 0.02, kHalf);
  EXPECT_NEAR(totals(plan, {}).before, 65.83, kHalf);
  EXPECT_NEAR(totals(plan, {}).after, 20.49, kHalf);
}

TEST(Plan, EveryShippedRecipeFitsTheTinyModelAndThePublicOnes) {
  for (const std::string& name : shipped_recipes()) {
    SCOPED_TRACE(name);
    for (const model::Config& config : {tiny(), lightning(), super()}) {
      const Plan plan = make_plan(config, load_recipe(name));
      EXPECT_FALSE(plan.linears.empty());
      EXPECT_LT(totals(plan, {}).after, totals(plan, {}).before);
      EXPECT_THAT(plan_table(plan, nullptr), HasSubstr("in all"));
    }
  }
}

TEST(Plan, NaiveQuantizesEveryLinearAndNothingElse) {
  const Plan plan = make_plan(tiny(), load_recipe("w4a4-naive"));
  for (const LinearPlan& linear : plan.linears) {
    EXPECT_EQ(linear.quant.algo, QuantAlgo::kNvfp4) << plan.tensor(linear).name;
    EXPECT_EQ(linear.input_scale, InputScale::kMax);
  }
  for (const ClassSize& entry : class_sizes(plan, nullptr)) {
    if (entry.name == "router" || entry.name == "embeddings" || entry.name == "norms") {
      EXPECT_EQ(entry.bytes_before, entry.bytes_after) << entry.name;
    }
  }
}

TEST(Plan, W4a4HasHeadroomForExpertsAndMaxForFp8) {
  const Plan plan = make_plan(tiny(), load_recipe("w4a4"));
  for (const LinearPlan& linear : plan.linears) {
    const bool expert = plan.tensor(linear).role == model::Role::kRoutedExperts;
    if (plan.tensor(linear).mtp) {
      EXPECT_EQ(linear.quant.algo, QuantAlgo::kNone);
    } else if (expert) {
      EXPECT_EQ(linear.policy, codec::Nvfp4Policy::kFourOverSix);
      EXPECT_EQ(linear.input_scale, InputScale::kActHeadroom);
    } else if (linear.quant.algo == QuantAlgo::kFp8) {
      EXPECT_EQ(linear.input_scale, InputScale::kMax);
    }
  }
}

TEST(Plan, AggressiveHasAnFp8CacheWithUnitScalesAndACalibratedDrafter) {
  const Plan plan = make_plan(tiny(), load_recipe("nvfp4-aggressive-mse"));
  EXPECT_EQ(plan.kv_cache(), checkpoint::KvCacheQuant::kFp8);
  for (const KvPlan& block : plan.kv) {
    EXPECT_EQ(block.scale, block.mtp ? KvScale::kCalibrated : KvScale::kUnit) << block.attention;
  }
  EXPECT_EQ(counts(plan).at("lm_head: FP8 W8A8"), 1);
}

TEST(Plan, MegatronSpellingsMean) {
  const Recipe recipe =
      recipe_of(std::string(kAllOff) + "    - {quantizer_name: '*mlp.experts*weight_quantizer', " +
                kNvfp4 + "    - {quantizer_name: 'output_layer.weight_quantizer', " + kNvfp4 +
                "    - {quantizer_name: '*self_attention.linear_qkv.weight_quantizer', " + kNvfp4);
  const auto by_class = counts(make_plan(tiny(), recipe));
  EXPECT_EQ(by_class.at("routed experts: NVFP4 W4A16"), 6 * 16 * 2);
  EXPECT_EQ(by_class.at("lm_head: NVFP4 W4A16"), 1);
  EXPECT_EQ(by_class.at("attention: NVFP4 W4A16"), 2 * 3);
  EXPECT_EQ(by_class.at("attention: float"), 2);
}

TEST(Plan, LastMatchWinsAndReplacesAllAttributes) {
  const Recipe recipe = recipe_of(
      std::string(kAllOff) + "    - {quantizer_name: '*lm_head.weight_quantizer', " + kNvfp4 +
      "    - {quantizer_name: '*lm_head.*', enable: false}\n"
      "    - {quantizer_name: 'lm_head.weight_quantizer', enable: true}\n");
  // Only toggled off and on again: the attributes survive.
  EXPECT_EQ(counts(make_plan(tiny(), recipe)).at("lm_head: NVFP4 W4A16"), 1);

  const Recipe replaced =
      recipe_of(std::string(kAllOff) + "    - {quantizer_name: '*lm_head.weight_quantizer', " +
                kNvfp4 + "    - {quantizer_name: 'lm_head.weight_quantizer', cfg: {axis: 0}}\n");
  // num_bits is back at its default of 8, an integer format.
  EXPECT_THAT(error_of(tiny(), replaced), HasSubstr("int8"));
}

TEST(Plan, ParentClassFilters) {
  const Recipe recipe = recipe_of(
      std::string(kAllOff) +
      "    - {quantizer_name: '*lm_head.weight_quantizer', parent_class: nn.Linear, " + kNvfp4 +
      "    - {quantizer_name: '*', parent_class: nn.Embedding, enable: false}\n");
  EXPECT_EQ(counts(make_plan(tiny(), recipe)).at("lm_head: NVFP4 W4A16"), 1);
}

TEST(PlanErrors, RuleThatMatchesNothingIsNamedWithItsNeighbours) {
  const std::string error = error_of(
      tiny(), recipe_of(std::string(kAllOff) +
                        "    - {quantizer_name: '*mixer.expert.*weight_quantizer', " + kNvfp4));
  EXPECT_THAT(error, HasSubstr("'*mixer.expert.*weight_quantizer'"));
  EXPECT_THAT(error, HasSubstr("test.yaml:5"));
  EXPECT_THAT(error, HasSubstr("mixer.experts.*.up_proj.weight_quantizer"));
}

TEST(PlanErrors, RuleForWhatStaysFloatSaysSo) {
  for (const char* name : {"*mixer.gate*", "*embeddings*weight_quantizer", "*conv1d*"}) {
    const std::string error = error_of(
        tiny(),
        recipe_of(std::string(kAllOff) + "    - {quantizer_name: '" + name + "', " + kNvfp4));
    EXPECT_THAT(error, HasSubstr("stays as it is")) << name;
  }
}

TEST(PlanErrors, DisabledRulesMayMatchNothing) {
  const Recipe recipe =
      recipe_of(std::string(kAllOff) + "    - {quantizer_name: '*vision*', enable: false}\n" +
                "    - {quantizer_name: lm_head.weight_quantizer, " + kNvfp4);
  EXPECT_NO_THROW(make_plan(tiny(), recipe));
}

TEST(PlanErrors, RulesForOtherModelFamiliesMayMatchNothing) {
  const Recipe recipe =
      recipe_of(std::string(kAllOff) + "    - {quantizer_name: '*block_sparse_moe*', " + kNvfp4 +
                "    - {quantizer_name: lm_head.weight_quantizer, " + kNvfp4);
  EXPECT_THAT(make_plan(tiny(), recipe).notes, Contains(HasSubstr("another model family")));
}

TEST(PlanErrors, UndecidedLinearsAreCounted) {
  const std::string error = error_of(
      tiny(), recipe_of(std::string("    - {quantizer_name: '*.experts.*_quantizer', ") + kNvfp4));
  EXPECT_THAT(error, HasSubstr("no rule of the recipe decides"));
  EXPECT_THAT(error, HasSubstr("lm_head"));
  EXPECT_THAT(error, HasSubstr("'*', enable: false"));
}

TEST(PlanErrors, GroupOf128IsRefusedForEveryDownProjection) {
  const Recipe recipe = recipe_of(std::string(kAllOff) +
                                  "    - {quantizer_name: '*weight_quantizer', "
                                  "cfg: {num_bits: 4, block_sizes: {-1: 128, type: static}}}\n"
                                  "    - {quantizer_name: '*lm_head*', enable: false}\n"
                                  "    - {quantizer_name: 'mtp.*', enable: false}\n");
  const std::string error = error_of(lightning(), recipe);
  EXPECT_THAT(error, HasSubstr("2944"));
  EXPECT_THAT(error, HasSubstr("input width 1856"));
  EXPECT_THAT(error, HasSubstr("8, 16, 32, 64"));
}

TEST(PlanErrors, Nvfp4NeedsMultiplesOf16) {
  model::Config config = tiny();
  config.moe_intermediate_size = 200;
  EXPECT_THAT(error_of(config, load_recipe("w4a16")), HasSubstr("multiples of 16"));
}

TEST(PlanErrors, Int4CannotBeMixed) {
  const Recipe recipe = recipe_of(std::string(kAllOff) +
                                  "    - {quantizer_name: '*.experts.*weight_quantizer', "
                                  "cfg: {num_bits: 4, block_sizes: {-1: 64}}}\n"
                                  "    - {quantizer_name: 'lm_head.weight_quantizer', " +
                                  kNvfp4);
  EXPECT_THAT(error_of(tiny(), recipe), HasSubstr("quant_method"));
}

TEST(PlanErrors, WhatLevinCannotWriteIsRefusedByName) {
  const auto refusal = [&](const std::string& rules, const std::string& algorithm = "max") {
    return error_of(tiny(), recipe_of(kAllOff + rules, algorithm));
  };
  EXPECT_THAT(refusal("    - {quantizer_name: '*output_quantizer', cfg: {num_bits: e4m3}}\n"),
              HasSubstr("output_quantizer"));
  EXPECT_THAT(refusal("    - {quantizer_name: '*q_bmm_quantizer', cfg: {num_bits: e4m3}}\n"),
              HasSubstr("q_bmm_quantizer"));
  EXPECT_THAT(
      refusal("    - {quantizer_name: '*lm_head.input_quantizer', cfg: {num_bits: e4m3}}\n"),
      HasSubstr("unquantized weights"));
  EXPECT_THAT(
      refusal("    - {quantizer_name: '*lm_head.weight_quantizer', cfg: {num_bits: e4m3}}\n"),
      HasSubstr("weights of e4m3 with unquantized inputs"));
  EXPECT_THAT(refusal("    - {quantizer_name: '*lm_head.weight_quantizer', "
                      "cfg: {num_bits: e2m1, block_sizes: {-1: 32, type: dynamic, "
                      "scale_bits: e8m0}}}\n"),
              HasSubstr("e8m0"));
  EXPECT_THAT(refusal("    - {quantizer_name: '*k_bmm_quantizer', cfg: {num_bits: e4m3}}\n"),
              HasSubstr("keys and values"));
  EXPECT_THAT(refusal("    - {quantizer_name: '*layers.5.*[kv]_bmm_quantizer', "
                      "cfg: {num_bits: e4m3}}\n"),
              HasSubstr("some attention layers only"));
  EXPECT_THAT(refusal(""), AllOf(HasSubstr("quantizes no linear"), HasSubstr("everything off")));
  EXPECT_THAT(refusal("    - {quantizer_name: '*[kv]_bmm_quantizer', cfg: {num_bits: e4m3}}\n"),
              AllOf(HasSubstr("an FP8 KV cache alone"), HasSubstr("--kv-cache-dtype fp8")));
  const std::string four_over_six =
      "    - {quantizer_name: 'lm_head.weight_quantizer', cfg: {num_bits: e2m1, "
      "block_sizes: {-1: 16, type: static, scale_bits: e4m3, four_over_six: true}}}\n";
  EXPECT_THAT(refusal(four_over_six), HasSubstr("their own algorithm"));
  EXPECT_THAT(refusal(four_over_six, "{method: mse, fp8_scale_sweep: true}"),
              HasSubstr("their own algorithm"));
}

TEST(PlanNotes, BroadRuleOverTheDrafterIsMentioned) {
  const Plan plan = make_plan(tiny(), load_recipe("w4a16"));
  EXPECT_THAT(plan.notes, Contains(HasSubstr("MTP draft head")));
  EXPECT_THAT(make_plan(tiny(), load_recipe("w4a4-full")).notes,
              Not(Contains(HasSubstr("MTP draft head"))));
}

TEST(PlanNotes, MixedExpertsOfALayerAreMentioned) {
  const Recipe recipe = recipe_of(
      std::string(kAllOff) + "    - {quantizer_name: '*.experts.3.*weight_quantizer', " + kNvfp4);
  EXPECT_THAT(make_plan(tiny(), recipe).notes, Contains(HasSubstr("vLLM gives all experts")));
}

TEST(PlanTable, CollapsesExpertsToOneRow) {
  const std::string table = plan_table(make_plan(lightning(), load_recipe("w4a4-full")), nullptr);
  EXPECT_THAT(table, HasSubstr("backbone.layers.*.mixer.experts.*.{down_proj,up_proj}"));
  EXPECT_THAT(table, HasSubstr("5888"));
  EXPECT_LT(std::count(table.begin(), table.end(), '\n'), 60);
}

TEST(PlanTable, UnitFollowsTheModel) {
  EXPECT_THAT(plan_table(make_plan(lightning(), load_recipe("fp8")), nullptr),
              HasSubstr("GB before"));
  const std::string small = plan_table(make_plan(tiny(), load_recipe("fp8")), nullptr);
  EXPECT_THAT(small, HasSubstr("MB before"));
  EXPECT_THAT(small, HasSubstr("18.874     9.4"));  // routed experts
}

// What the cost model gets: the same bytes as the table, tensor by tensor.
TEST(PlannedTensors, AddUpToTheClassSizes) {
  for (const std::string& name : shipped_recipes()) {
    SCOPED_TRACE(name);
    const Plan plan = make_plan(lightning(), load_recipe(name));
    double bytes = 0;
    for (const model::SizedTensor& tensor : planned_tensors(plan, nullptr)) bytes += tensor.bytes;
    for (const ClassSize& size : class_sizes(plan, nullptr)) {
      if (size.name == "KV cache scales") bytes += static_cast<double>(size.bytes_after);
    }
    EXPECT_NEAR(bytes / 1e9, totals(plan, {}).after, 1e-9);
  }
}

}  // namespace
}  // namespace levin::quantize
