#include "model/cost.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/files.h"
#include "model/summary.h"
#include "support/dummy_tensors.h"

namespace levin::model {
namespace {

using checkpoint::ModuleQuant;
using checkpoint::QuantAlgo;

Config lightning() {
  const auto path = std::filesystem::path(LEVIN_SOURCE_DIR) /
                    "configs/nemotron-3.5-lightning-30b-a3b/config.json";
  return parse_config(read_json(path), path.string());
}

Config super() {
  const auto path =
      std::filesystem::path(LEVIN_SOURCE_DIR) / "configs/nemotron-3-super-120b-a12b/config.json";
  return parse_config(read_json(path), path.string());
}

std::vector<SizedTensor> sized(const Config& config,
                               const std::function<ModuleQuant(const TensorPlan&)>& quant) {
  std::vector<SizedTensor> tensors;
  for (const TensorPlan& plan : plan_tensors(config)) {
    tensors.push_back(
        sized_tensor(plan, plan.kind == TensorKind::kLinear ? quant(plan) : ModuleQuant{}));
  }
  return tensors;
}

ModuleQuant bf16(const TensorPlan& /*plan*/) {
  return {};
}

// Routed experts and lm_head NVFP4, shared experts and Mamba FP8, attention BF16.
ModuleQuant coverage(const TensorPlan& plan) {
  switch (plan.role) {
    case Role::kRoutedExperts:
      return {QuantAlgo::kNvfp4, 16};
    case Role::kLmHead:
      return {QuantAlgo::kW4A16Nvfp4, 16};
    case Role::kSharedExperts:
    case Role::kMamba:
      return {QuantAlgo::kFp8, 0};
    default:
      return {};
  }
}

// Experts, shared experts and lm_head NVFP4, Mamba FP8.
ModuleQuant released(const TensorPlan& plan) {
  return plan.role == Role::kSharedExperts ? ModuleQuant{QuantAlgo::kW4A16Nvfp4, 16}
                                           : coverage(plan);
}

TEST(Cost, ActiveParameters) {
  EXPECT_NEAR(active_parameters(lightning()) / 1e9, 3.227, 0.001);
  EXPECT_NEAR(active_parameters(super()) / 1e9, 12, 0.8);
}

TEST(Cost, ActiveParametersByClass) {
  const Config config = lightning();
  const auto classes = by_class(step_operations(config, sized(config, bf16), {}));
  std::map<std::string, double> millions;
  for (const ClassCost& cost : classes) millions[cost.name] = cost.sum.weight_bytes / 2e6;
  EXPECT_NEAR(millions.at("mamba"), 890, 2);
  EXPECT_NEAR(millions.at("routed experts"), 1377, 1);
  EXPECT_NEAR(millions.at("shared experts"), 459, 1);
  EXPECT_NEAR(millions.at("router"), 8, 0.1);
  EXPECT_NEAR(millions.at("attention"), 140, 1);
  EXPECT_NEAR(millions.at("lm_head"), 352, 1);
}

TEST(Cost, BytesPerTokenOfPublicRecipes) {
  const Config config = lightning();
  const auto gigabytes = [&](const auto& recipe) {
    return total(step_operations(config, sized(config, recipe), {})).weight_bytes / 1e9;
  };
  EXPECT_NEAR(gigabytes(bf16), 6.45, 0.01);
  EXPECT_NEAR(gigabytes(coverage), 2.62, 0.01);
  EXPECT_NEAR(gigabytes(released), 2.42, 0.01);
}

// Published ceilings at 4.3 TB/s count the float32 SSM state read and written, without KV cache.
TEST(Cost, CeilingsOfPublicRecipes) {
  const Config config = lightning();
  const auto tokens_per_second = [&](const auto& recipe) {
    const Operation sum = total(step_operations(config, sized(config, recipe), {}));
    return 4.3e12 / (sum.weight_bytes + sum.state_bytes);
  };
  EXPECT_NEAR(tokens_per_second(bf16), 656, 2);
  EXPECT_NEAR(tokens_per_second(coverage), 1583, 5);
  EXPECT_NEAR(tokens_per_second(released), 1710, 6);
}

TEST(Cost, StateOfThePublicModels) {
  const StateSize state = state_size(lightning(), {});
  EXPECT_EQ(state.kv_bytes_per_token, 6144);
  EXPECT_EQ(state.mtp_kv_bytes_per_token, 1024);
  EXPECT_EQ(state.recurrent_bytes(), 49'082'368);
  EXPECT_EQ(state.ssm_bytes / 23, 2'097'152);
  EXPECT_EQ(state.conv_bytes / 23, 36'864);
  StateTypes fp8;
  fp8.kv = 1;
  EXPECT_EQ(state_size(lightning(), fp8).kv_bytes_per_token, 3072);
  EXPECT_EQ(state_size(super(), {}).recurrent_bytes(), 170'229'760);
  EXPECT_EQ(state_size(super(), {}).kv_bytes_per_token, 8192);
  EXPECT_EQ(state_bytes(state, 2, 10), 2 * (49'082'368.0 + 10 * 7168));
}

TEST(Cost, StateTypesFollowConfigurationAndMetadata) {
  Config config = lightning();
  checkpoint::QuantMetadata metadata;
  EXPECT_EQ(state_types(config, metadata).kv, 2);
  EXPECT_EQ(state_types(config, metadata).ssm, 4);
  metadata.kv_cache = checkpoint::KvCacheQuant::kFp8;
  config.mamba_ssm_cache_dtype = "float16";
  EXPECT_EQ(state_types(config, metadata).kv, 1);
  EXPECT_EQ(state_types(config, metadata).ssm, 2);
}

TEST(Cost, DistinctExperts) {
  EXPECT_NEAR(distinct_experts(128, 6, 1), 6, 1e-9);
  EXPECT_NEAR(distinct_experts(128, 6, 4), 22.4, 0.05);
  EXPECT_NEAR(distinct_experts(128, 6, 1e6), 128, 1e-6);
  EXPECT_EQ(distinct_experts(128, 128, 1), 128);
  EXPECT_EQ(distinct_experts(0, 0, 1), 0);
}

TEST(Cost, OneTokenReadsExactlyTheActiveParameters) {
  for (const Config& config : {lightning(), super()}) {
    const Operation sum = total(step_operations(config, sized(config, bf16), {}));
    // Router biases are F32, one row of the embeddings is read besides.
    const double router_biases = static_cast<double>(config.n_routed_experts) *
                                 static_cast<double>(std::count(
                                     config.layers.begin(), config.layers.end(), BlockKind::kMoe));
    EXPECT_NEAR(sum.weight_bytes,
                2 * active_parameters(config) + 2 * router_biases +
                    2 * static_cast<double>(config.hidden_size),
                16);
  }
}

TEST(Cost, FlopsAreTwicePerActiveMatrixParameter) {
  const Config config = lightning();
  StepOptions options;
  options.context = 0;
  const Operation one = total(step_operations(config, sized(config, bf16), options));
  EXPECT_NEAR(one.flops / (2 * active_parameters(config)), 1, 0.03);
  options.tokens_per_sequence = 8;
  const Operation eight = total(step_operations(config, sized(config, bf16), options));
  EXPECT_NEAR(eight.flops / one.flops, 8, 0.01);
}

TEST(Cost, MoreTokensReadDenseWeightsOnceAndStateOncePerSequence) {
  const Config config = lightning();
  const auto tensors = sized(config, bf16);
  StepOptions one = {.sequences = 1, .tokens_per_sequence = 1, .context = 100, .types = {}};
  StepOptions four = one;
  four.tokens_per_sequence = 4;
  StepOptions batch = one;
  batch.sequences = 4;
  std::map<std::string, Operation> costs[3];
  int at = 0;
  for (const StepOptions& options : {one, four, batch}) {
    for (const ClassCost& cost : by_class(step_operations(config, tensors, options))) {
      costs[at][cost.name] = cost.sum;
    }
    ++at;
  }
  for (const char* dense : {"mamba", "shared experts", "attention", "lm_head", "router", "norms"}) {
    EXPECT_DOUBLE_EQ(costs[0][dense].weight_bytes, costs[1][dense].weight_bytes) << dense;
    EXPECT_DOUBLE_EQ(costs[0][dense].weight_bytes, costs[2][dense].weight_bytes) << dense;
  }
  EXPECT_NEAR(costs[1]["routed experts"].weight_bytes / costs[0]["routed experts"].weight_bytes,
              22.4 / 6, 0.01);
  EXPECT_DOUBLE_EQ(costs[1]["mamba"].state_bytes, costs[0]["mamba"].state_bytes);
  EXPECT_DOUBLE_EQ(costs[2]["mamba"].state_bytes, 4 * costs[0]["mamba"].state_bytes);
  // K and V of 100 tokens read, of the new ones written.
  EXPECT_DOUBLE_EQ(costs[0]["attention"].kv_bytes, 101 * 6144);
  EXPECT_DOUBLE_EQ(costs[1]["attention"].kv_bytes, 104 * 6144);
  EXPECT_DOUBLE_EQ(costs[2]["attention"].kv_bytes, 4 * 101 * 6144);
}

TEST(Cost, DraftPasses) {
  const Config config = lightning();
  const auto nvfp4_drafter = [](const TensorPlan& plan) {
    return plan.role == Role::kLmHead || plan.role == Role::kRoutedExperts ? coverage(plan)
                                                                           : ModuleQuant{};
  };
  const auto tensors = sized(config, nvfp4_drafter);
  EXPECT_TRUE(draft_operations(config, tensors, {}, 0).empty());
  // Second pass, one token: 198 MB of NVFP4 lm_head; a block with NVFP4 experts, BF16 attention,
  // BF16 eh_proj and a BF16 shared expert.
  const auto operations = draft_operations(config, tensors, {}, 2);
  double head = 0;
  double block = 0;
  for (const Operation& op : operations) {
    EXPECT_TRUE(op.mtp);
    if (!op.name.starts_with("draft 2")) continue;
    (op.role == Role::kLmHead ? head : block) += op.weight_bytes;
  }
  EXPECT_NEAR(head / 1e6, 198, 0.5);
  EXPECT_NEAR(block / 1e6, 28.9 + 46.8 + 39.9 + 0.7 + 6 * 2 * 1856 * 2688 * 4.5 / 8 / 1e6, 0.5);
}

TEST(Cost, TiedHeadReadsTheWholeTable) {
  Config config = lightning();
  config.tie_word_embeddings = true;
  const Operation untied = total(step_operations(lightning(), sized(lightning(), bf16), {}));
  const Operation tied = total(step_operations(config, sized(config, bf16), {}));
  EXPECT_NEAR(tied.weight_bytes, untied.weight_bytes, 1);
  EXPECT_NEAR(tied.flops, untied.flops, 1);
  EXPECT_NEAR(active_parameters(config), active_parameters(lightning()), 1);
}

TEST(Summary, CountsEveryTensorOfTheCheckpoint) {
  nlohmann::json config = test::small_config();
  config["quantization_config"] = {{"quant_method", "modelopt"},
                                   {"quant_algo", "NVFP4"},
                                   {"ignore", {"lm_head", "mtp*"}},
                                   {"kv_cache_scheme", "FP8"}};
  const test::TempFolder folder;
  test::write_checkpoint(folder.path(), config, test::dummy_tensors(config));
  const auto checkpoint = open_checkpoint(folder.path(), LoadFormat::kAuto);
  const Config parsed = parse_config(config, "config.json");
  const Summary summary = summarize(parsed, *checkpoint, {});
  EXPECT_EQ(summary.total.tensors, static_cast<int64_t>(checkpoint->tensors().size()));
  EXPECT_EQ(summary.total.bytes, static_cast<double>(checkpoint->total_bytes()));
  ASSERT_EQ(summary.rounds.size(), 4U);
  EXPECT_EQ(summary.rounds[0].draft.memory_bytes(), 0);
  EXPECT_GT(summary.rounds[3].bytes(), summary.rounds[1].bytes());
  EXPECT_DOUBLE_EQ(summary.rounds[0].bytes(), summary.step_total.memory_bytes());
}

}  // namespace
}  // namespace levin::model
