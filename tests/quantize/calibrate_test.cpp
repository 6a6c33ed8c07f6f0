// Activation scales: what is watched, and what becomes of it.
#include "quantize/calibrate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/progress.h"
#include "quantize/calibration_text.h"
#include "quantize/run.h"

namespace levin::quantize {
namespace {

using test::TempFolder;
using test::write_file;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;

const std::string kTiny = LEVIN_SOURCE_DIR "/models/tiny";
const std::string kProse = LEVIN_SOURCE_DIR "/evals/tiny/text/prose.jsonl";

Plan tiny_plan(const std::string& recipe) {
  return open_source(kTiny, recipe, model::LoadFormat::kAuto).plan;
}

std::string expert(int index, const char* projection) {
  return "backbone.layers.1.mixer.experts." + std::to_string(index) + "." + projection;
}

// One row of this magnitude.
codec::ActivationStats seen(float magnitude) {
  codec::ActivationStats stats;
  stats.add(std::vector<float>(32, magnitude));
  return stats;
}

TEST(DeriveScales, ExpertsOfALayerShareTheLargestAmaxOfTheirProjection) {
  const Plan plan = tiny_plan("w4a4-naive");
  Observations observations;
  observations.inputs[expert(3, "up_proj")] = seen(2.0F);
  observations.inputs[expert(5, "up_proj")] = seen(7.0F);
  observations.inputs[expert(5, "down_proj")] = seen(1.5F);
  const Calibration calibration = derive_scales(plan, observations);
  for (int i = 0; i < 16; ++i) {
    EXPECT_EQ(calibration.scales.input_amax.at(expert(i, "up_proj")), 7.0) << i;
    EXPECT_EQ(calibration.scales.input_amax.at(expert(i, "down_proj")), 1.5) << i;
  }
  EXPECT_EQ(calibration.experts, 6 * 32 + 32);
  EXPECT_EQ(calibration.unseen.size(), 6U * 32 + 32 - 3);
  EXPECT_THAT(calibration.unseen, Contains(expert(0, "up_proj")));
  EXPECT_EQ(calibration.fewest_tokens, 1);
  EXPECT_THAT(calibration.warnings, Contains(HasSubstr("no token")));
}

TEST(DeriveScales, NothingSeenGivesTheNeutralAmaxAndAWarning) {
  const Plan plan = tiny_plan("w4a4-naive");
  const Calibration calibration = derive_scales(plan, {});
  EXPECT_EQ(calibration.scales.input_amax.size(), plan.linears.size());
  for (const auto& [module, amax] : calibration.scales.input_amax) EXPECT_EQ(amax, 0.5) << module;
  EXPECT_THAT(calibration.warnings, Contains(HasSubstr("lm_head")));
}

TEST(DeriveScales, QueriesKeysAndValuesShare) {
  const Plan plan = tiny_plan("w4a4-naive");
  Observations observations;
  observations.inputs["backbone.layers.5.mixer.k_proj"] = seen(3.0F);
  observations.inputs["backbone.layers.5.mixer.q_proj"] = seen(2.0F);
  const auto amax = derive_scales(plan, observations).scales.input_amax;
  for (const char* projection : {"q_proj", "k_proj", "v_proj"}) {
    EXPECT_EQ(amax.at(std::string("backbone.layers.5.mixer.") + projection), 3.0);
  }
  EXPECT_EQ(amax.at("backbone.layers.5.mixer.o_proj"), 0.5);
}

TEST(DeriveScales, HeadroomGoesToNvfp4InputsOnly) {
  const Plan plan = tiny_plan("w4a4");
  Observations observations;
  observations.inputs[expert(0, "up_proj")] = seen(1.0F);
  observations.inputs["backbone.layers.1.mixer.shared_experts.up_proj"] = seen(1.0F);
  const auto amax = derive_scales(plan, observations).scales.input_amax;
  EXPECT_EQ(amax.at(expert(0, "up_proj")),
            observations.inputs.at(expert(0, "up_proj")).headroom().amax);
  EXPECT_GT(amax.at(expert(0, "up_proj")), 1000.0);
  EXPECT_EQ(amax.at("backbone.layers.1.mixer.shared_experts.up_proj"), 1.0);
}

TEST(DeriveScales, SurvivesTheWayThroughJson) {
  const Plan plan = tiny_plan("fp8");
  Observations observations;
  observations.inputs["lm_head"] = seen(0.1F);
  observations.keys["backbone.layers.5.mixer"] = seen(0.3F);
  observations.tokens = 17;
  const Calibration calibration = derive_scales(plan, observations);
  EXPECT_EQ(calibration.scales.value_amax.at("backbone.layers.5.mixer"), 448.0);
  const Calibration back =
      calibration_from_json(nlohmann::json::parse(to_json(calibration).dump()), "x");
  EXPECT_EQ(back.scales.input_amax, calibration.scales.input_amax);
  EXPECT_EQ(back.scales.key_amax, calibration.scales.key_amax);
  EXPECT_EQ(back.tokens, 17);
  EXPECT_EQ(back.warnings, calibration.warnings);
  EXPECT_THROW(calibration_from_json(nlohmann::json::object(), "x"), Error);
}

class Observe : public testing::Test {
 protected:
  static Observations observed(const Plan& plan, bool reference, int64_t tokens) {
    Progress::set_enabled(false);
    runtime::Options options;
    options.max_model_len = 64;
    options.max_extend_tokens = 64;
    const auto model = model::load_model(kTiny);
    const auto runtime = reference ? runtime::make_reference_runtime(model, options)
                                   : runtime::make_cpu_runtime(model, options);
    const text::Tokenizer tokenizer = text::Tokenizer::load(kTiny);
    return observe(*runtime, plan, calibration_tokens(kProse, tokenizer, tokens), 64);
  }
};

TEST_F(Observe, EveryCalibratedLinearOfTheModelIsSeen) {
  const Plan plan = tiny_plan("w4a4-naive");
  const Observations observations = observed(plan, true, 192);
  EXPECT_EQ(observations.tokens, 192);
  const Calibration calibration = derive_scales(plan, observations);
  EXPECT_EQ(calibration.scales.input_amax.size(), plan.linears.size());
  for (const LinearPlan& linear : plan.linears) {
    const model::TensorPlan& tensor = plan.tensor(linear);
    const std::string module(tensor.module());
    if (tensor.role == model::Role::kRoutedExperts) continue;
    EXPECT_GT(observations.inputs.at(module).rows(), 0) << module;
    EXPECT_NE(calibration.scales.input_amax.at(module), 0.5) << module;
  }
  EXPECT_GE(observations.inputs.at("lm_head").rows(), 192);
  // Every token is routed to two experts of each layer.
  int64_t rows = 0;
  for (int i = 0; i < 16; ++i) rows += observations.inputs.at(expert(i, "up_proj")).rows();
  EXPECT_EQ(rows, 2 * 192);
}

TEST_F(Observe, TheDraftHeadIsCalibratedOnItsOwnPasses) {
  const Plan plan = tiny_plan("w4a4-full");
  const Observations observations = observed(plan, true, 256);
  int64_t rows = 0;
  for (const auto& [module, stats] : observations.inputs) {
    if (module.starts_with("mtp.") && module.ends_with("up_proj")) rows += stats.rows();
  }
  // Three passes behind every 32 tokens but the last of a window, two experts each.
  EXPECT_EQ(rows, 4 * 1 * 3 * 2);
}

TEST_F(Observe, FastAndReferenceRuntimesSeeTheSame) {
  const Plan plan = tiny_plan("fp8");
  const Calibration reference = derive_scales(plan, observed(plan, true, 128));
  const Calibration fast = derive_scales(plan, observed(plan, false, 128));
  for (const auto& [module, amax] : reference.scales.input_amax) {
    EXPECT_NEAR(fast.scales.input_amax.at(module), amax, 0.05 * amax) << module;
  }
  ASSERT_EQ(reference.scales.key_amax.size(), 3U);
  for (const auto& [block, amax] : reference.scales.key_amax) {
    EXPECT_GT(amax, 0.1);
    EXPECT_NEAR(fast.scales.key_amax.at(block), amax, 0.05 * amax) << block;
  }
}

TEST(CalibrationText, ReadsPlainTextAndJsonLines) {
  const text::Tokenizer tokenizer = text::Tokenizer::load(kTiny);
  const TempFolder folder;
  write_file(folder / "a.txt", "One line.\nAnother.");
  write_file(folder / "a.jsonl", "{\"text\": \"One line.\\nAnother.\", \"source\": 1}\n\n");
  const auto plain = calibration_tokens(folder / "a.txt", tokenizer, 1000);
  EXPECT_EQ(plain, calibration_tokens(folder / "a.jsonl", tokenizer, 1000));
  EXPECT_EQ(plain.back(), *tokenizer.find("</s>"));
  EXPECT_EQ(calibration_tokens(folder / "a.txt", tokenizer, 3).size(), 3U);
}

TEST(CalibrationText, IsRefusedWithFileAndLineWhenMalformed) {
  const text::Tokenizer tokenizer = text::Tokenizer::load(kTiny);
  const TempFolder folder;
  const auto error = [&](const char* name, const std::string& content) -> std::string {
    write_file(folder / name, content);
    return test::error_of([&] { calibration_tokens(folder / name, tokenizer, 100); }).what();
  };
  EXPECT_THAT(error("e.txt", ""), HasSubstr("empty"));
  EXPECT_THAT(error("e.jsonl", "\n\n"), HasSubstr("empty"));
  EXPECT_THAT(error("b.jsonl", "{\"text\": \"a b c\"}\n{\"txt\": 1}\n"), HasSubstr("b.jsonl:2"));
  EXPECT_THAT(error("c.jsonl", "{\"text\": 7}\n"), HasSubstr("c.jsonl:1"));
  EXPECT_THAT(error("d.jsonl", "{\n"), HasSubstr("d.jsonl:1"));
  EXPECT_THAT(error("f.txt", "abc \xff\xfe def"), HasSubstr("UTF-8"));
  EXPECT_THROW(calibration_tokens(folder / "absent.txt", tokenizer, 100), Error);
}

TEST(CalibrationText, LongDocumentsAreCutAtLines) {
  const text::Tokenizer tokenizer = text::Tokenizer::load(kTiny);
  const TempFolder folder;
  std::string text;
  while (text.size() < (std::size_t{5} << 18))
    text += "The same line again, \xc3\xa4nd \xe2\x82\xac.\n";
  write_file(folder / "long.txt", text);
  const auto tokens = calibration_tokens(folder / "long.txt", tokenizer, 10'000'000);
  EXPECT_EQ(tokenizer.decode(tokens, true), text);
}

TEST(Calibration, WholeRunWritesScalesOfEveryCalibratedLinear) {
  Progress::set_enabled(false);
  const TempFolder folder;
  Options options = test::quantize_options(kTiny, "nvfp4-aggressive-mse", folder / "out");
  options.calibration = {.text = kProse, .max_tokens = 256, .window = 128};
  const Result result = quantize(options);
  ASSERT_TRUE(result.calibration);
  EXPECT_EQ(result.calibration->tokens, 256);
  const auto model = model::load_model(folder / "out");
  for (const model::Linear* linear : model->linears()) {
    if (linear->activation == model::ActivationFormat::kNone) continue;
    EXPECT_GT(linear->input_scale, 0.0F) << linear->name;
    EXPECT_LT(linear->input_scale, 1.0F) << linear->name;
  }
  // Unit scales are not stored for the backbone, calibrated ones are for the draft head.
  EXPECT_EQ(model->checkpoint->find("backbone.layers.5.mixer.k_proj.k_scale"), nullptr);
  EXPECT_NE(model->checkpoint->find("mtp.layers.0.mixer.k_proj.k_scale"), nullptr);
  EXPECT_EQ(model->checkpoint->quantization().kv_cache, checkpoint::KvCacheQuant::kFp8);
}

}  // namespace
}  // namespace levin::quantize
