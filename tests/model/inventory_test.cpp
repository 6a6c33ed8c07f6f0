#include "model/inventory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "core/files.h"
#include "support/tiny_checkpoint.h"

namespace levin::model {
namespace {

using checkpoint::ModuleQuant;
using checkpoint::QuantAlgo;

Config config_of(const std::string& folder) {
  const auto path = std::filesystem::path(LEVIN_SOURCE_DIR) / folder / "config.json";
  return parse_config(read_json(path), path.string());
}

std::map<std::string, TensorPlan> plan_of(const std::string& folder) {
  std::map<std::string, TensorPlan> plans;
  for (TensorPlan& plan : plan_tensors(config_of(folder))) plans.emplace(plan.name, plan);
  return plans;
}

int64_t parameters(const Config& config) {
  int64_t sum = 0;
  for (const TensorPlan& plan : plan_tensors(config)) sum += plan.elements();
  return sum;
}

TEST(Inventory, LightningHasItsPublishedTotals) {
  const Config config = config_of("configs/nemotron-3.5-lightning-30b-a3b");
  const auto plans = plan_tensors(config);
  EXPECT_EQ(plans.size(), 6513U);
  EXPECT_EQ(parameters(config), 32'913'266'240);
  const auto mtp =
      std::count_if(plans.begin(), plans.end(), [](const TensorPlan& plan) { return plan.mtp; });
  EXPECT_EQ(mtp, 270);
}

TEST(Inventory, NanoIsLightningWithoutTheHead) {
  const Config nano = config_of("configs/nemotron-3-nano-30b-a3b");
  EXPECT_EQ(plan_tensors(nano).size(), 6513U - 270);
  EXPECT_EQ(parameters(nano), 31'577'940'288);
}

// Root tensors, 13 per attention-free block and so on, with every companion of the released NVFP4
// checkpoint: 18,487 tensors.
TEST(Inventory, LightningNvfp4HasItsPublishedTensorCount) {
  const Config config = config_of("configs/nemotron-3.5-lightning-30b-a3b");
  checkpoint::QuantMetadata metadata;
  metadata.method = "modelopt";
  metadata.kv_cache = checkpoint::KvCacheQuant::kFp8;
  for (const TensorPlan& plan : plan_tensors(config)) {
    if (plan.mtp || plan.kind != TensorKind::kLinear) continue;
    ModuleQuant quant;
    if (plan.role == Role::kMamba) quant = {QuantAlgo::kFp8, 0};
    if (plan.role == Role::kRoutedExperts || plan.role == Role::kSharedExperts ||
        plan.role == Role::kLmHead) {
      quant = {QuantAlgo::kW4A16Nvfp4, 16};
    }
    if (quant.algo != QuantAlgo::kNone) metadata.modules[std::string(plan.module())] = quant;
  }
  EXPECT_EQ(metadata.modules.size(), 5981U);
  EXPECT_EQ(dummy_specs(config, metadata).size(), 18487U);
}

TEST(Inventory, ShapesOfThePublicModels) {
  const auto lightning = plan_of("configs/nemotron-3.5-lightning-30b-a3b");
  const auto expect = [](const auto& plans, const std::string& name, const Shape& shape) {
    ASSERT_TRUE(plans.contains(name)) << name;
    EXPECT_EQ(plans.at(name).shape, shape) << name;
  };
  expect(lightning, "backbone.embeddings.weight", {131072, 2688});
  expect(lightning, "backbone.layers.0.mixer.in_proj.weight", {10304, 2688});
  expect(lightning, "backbone.layers.0.mixer.conv1d.weight", {6144, 1, 4});
  expect(lightning, "backbone.layers.0.mixer.conv1d.bias", {6144});
  expect(lightning, "backbone.layers.0.mixer.A_log", {64});
  expect(lightning, "backbone.layers.0.mixer.norm.weight", {4096});
  expect(lightning, "backbone.layers.0.mixer.out_proj.weight", {2688, 4096});
  expect(lightning, "backbone.layers.5.mixer.q_proj.weight", {4096, 2688});
  expect(lightning, "backbone.layers.5.mixer.v_proj.weight", {256, 2688});
  expect(lightning, "backbone.layers.1.mixer.gate.weight", {128, 2688});
  expect(lightning, "backbone.layers.1.mixer.gate.e_score_correction_bias", {128});
  expect(lightning, "backbone.layers.1.mixer.experts.127.up_proj.weight", {1856, 2688});
  expect(lightning, "backbone.layers.1.mixer.experts.127.down_proj.weight", {2688, 1856});
  expect(lightning, "backbone.layers.1.mixer.shared_experts.up_proj.weight", {3712, 2688});
  expect(lightning, "mtp.layers.0.eh_proj.weight", {2688, 5376});
  expect(lightning, "mtp.layers.0.hnorm.weight", {2688});
  expect(lightning, "mtp.layers.1.final_layernorm.weight", {2688});
  EXPECT_FALSE(lightning.contains("mtp.layers.0.final_layernorm.weight"));
  EXPECT_FALSE(lightning.contains("mtp.layers.1.enorm.weight"));

  const auto super = plan_of("configs/nemotron-3-super-120b-a12b");
  expect(super, "backbone.layers.0.mixer.in_proj.weight", {18560, 4096});
  expect(super, "backbone.layers.1.mixer.fc1_latent_proj.weight", {1024, 4096});
  expect(super, "backbone.layers.1.mixer.experts.511.up_proj.weight", {2688, 1024});
  expect(super, "backbone.layers.1.mixer.shared_experts.down_proj.weight", {4096, 5376});
  expect(super, "mtp.layers.1.mixer.fc2_latent_proj.weight", {4096, 1024});
}

TEST(Inventory, SuperIsTheSizeOfItsName) {
  const double billions =
      static_cast<double>(parameters(config_of("configs/nemotron-3-super-120b-a12b"))) / 1e9;
  EXPECT_GT(billions, 115);
  EXPECT_LT(billions, 130);
}

TEST(Inventory, NamesAreUniqueAndRolesComplete) {
  const Config config = parse_config(test::small_config(), "config.json");
  std::set<std::string> names;
  std::set<Role> roles;
  for (const TensorPlan& plan : plan_tensors(config)) {
    EXPECT_TRUE(names.insert(plan.name).second) << plan.name;
    roles.insert(plan.role);
    EXPECT_EQ(plan.expert >= 0, plan.role == Role::kRoutedExperts);
    EXPECT_EQ(plan.mtp, plan.name.starts_with("mtp."));
    if (plan.kind != TensorKind::kVector) {
      EXPECT_EQ(plan.shape.size(), 2U);
    }
  }
  EXPECT_EQ(roles.size(), 10U);  // all but the latent projections
}

// Every format takes the bits that it promises, and its companions are counted.
TEST(Stored, BitsPerWeight) {
  TensorPlan plan;
  plan.name = "backbone.layers.1.mixer.experts.0.up_proj.weight";
  plan.kind = TensorKind::kLinear;
  plan.shape = {1856, 2688};
  const auto bits = [&](QuantAlgo algo, int group, Dialect dialect = Dialect::kModelOpt) {
    double bytes = 0;
    for (const StoredPlan& stored : stored_as(plan, {algo, group}, dialect)) {
      bytes += static_cast<double>(*element_count(stored.shape)) *
               static_cast<double>(size_of(stored.dtypes.front()));
    }
    return 8 * bytes / static_cast<double>(plan.elements());
  };
  EXPECT_NEAR(bits(QuantAlgo::kNone, 0), 16, 1e-9);
  EXPECT_NEAR(bits(QuantAlgo::kFp8, 0), 8, 1e-3);
  EXPECT_NEAR(bits(QuantAlgo::kNvfp4, 16), bits_per_weight(WeightFormat::kNvfp4, 16), 1e-3);
  EXPECT_NEAR(bits(QuantAlgo::kW4A16Nvfp4, 16, Dialect::kCompressedTensors), 4.5, 1e-3);
  EXPECT_NEAR(bits(QuantAlgo::kInt4Packed, 64), 4.25, 1e-3);
  EXPECT_EQ(stored_as(plan, {QuantAlgo::kNvfp4, 16}, Dialect::kModelOpt).size(), 4U);
  EXPECT_EQ(stored_as(plan, {QuantAlgo::kW4A16Nvfp4, 16}, Dialect::kModelOpt).size(), 3U);
  EXPECT_EQ(stored_as(plan, {QuantAlgo::kFp8, 0}, Dialect::kModelOpt).size(), 3U);
  EXPECT_EQ(stored_as(plan, {QuantAlgo::kInt4Packed, 64}, Dialect::kModelOpt).size(), 3U);
}

TEST(Stored, GroupsThatDoNotDivideAreRefused) {
  TensorPlan plan;
  plan.name = "backbone.layers.1.mixer.experts.0.down_proj.weight";
  plan.kind = TensorKind::kLinear;
  plan.shape = {2688, 1856};
  EXPECT_NO_THROW(stored_as(plan, {QuantAlgo::kInt4Packed, 64}, Dialect::kModelOpt));
  EXPECT_THROW(stored_as(plan, {QuantAlgo::kInt4Packed, 128}, Dialect::kModelOpt), Error);
  EXPECT_THROW(stored_as(plan, {QuantAlgo::kInt4Packed, 0}, Dialect::kModelOpt), Error);
}

}  // namespace
}  // namespace levin::model
