// The bundled trained model, bound as users bind it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "model/inventory.h"
#include "model/model.h"

namespace levin::model {
namespace {

const std::filesystem::path kTiny = std::filesystem::path(LEVIN_SOURCE_DIR) / "models/tiny";

TEST(TinyModel, Binds) {
  const auto model = load_model(kTiny);
  EXPECT_EQ(pattern_of(model->config.layers), "MEMEM*EMEMEM*E");
  EXPECT_EQ(pattern_of(model->config.mtp_layers), "*E");
  ASSERT_EQ(model->layers.size(), 14U);
  ASSERT_TRUE(model->mtp.has_value());
  EXPECT_EQ(model->checkpoint->tensors().size(), 335U);
  EXPECT_EQ(model->checkpoint->total_bytes(), 36902912U);
  EXPECT_EQ(plan_tensors(model->config).size(), 335U);

  const auto& mamba = std::get<MambaBlock>(model->layers[0].mixer);
  EXPECT_EQ(mamba.in_proj.name, "backbone.layers.0.mixer.in_proj");
  EXPECT_EQ(mamba.in_proj.out, 512 + 512 + 2 * 2 * 64 + 8);
  EXPECT_EQ(mamba.in_proj.in, 256);
  EXPECT_EQ(mamba.conv_weight.size(), 768U * 4);
  EXPECT_EQ(mamba.a.size(), 8U);
  for (const float a : mamba.a) EXPECT_LT(a, 0.0F);

  const auto& moe = std::get<MoeBlock>(model->layers[1].mixer);
  EXPECT_EQ(moe.experts.size(), 16U);
  EXPECT_EQ(moe.gate.format, WeightFormat::kF32);
  ASSERT_TRUE(moe.shared.has_value());
  EXPECT_EQ(moe.shared->up_proj.out, 384);
  EXPECT_FALSE(moe.fc1_latent.exists());
  EXPECT_EQ(model->lm_head.out, 4096);
  EXPECT_EQ(model->config.eos_token_ids, std::vector<int32_t>{2});
  EXPECT_TRUE(std::isinf(model->config.time_step_limit_max));
}

TEST(TinyModel, LinearsAreNamedOnceInCheckpointOrder) {
  const auto model = load_model(kTiny);
  std::vector<std::string> planned;
  for (const TensorPlan& tensor : plan_tensors(model->config)) {
    if (tensor.kind != TensorKind::kVector) planned.emplace_back(tensor.module());
  }
  std::vector<std::string> bound;
  for (const Linear* linear : model->linears()) bound.push_back(linear->name);
  EXPECT_EQ(bound, planned);
}

TEST(TinyModel, DequantizesBf16Exactly) {
  const auto model = load_model(kTiny);
  const Linear& head = model->lm_head;
  const std::vector<float> all = dequantize(head);
  std::vector<float> row(static_cast<std::size_t>(head.in));
  dequantize_row(head, 17, row);
  const auto bits = head.weight.as<uint16_t>();
  for (std::size_t i = 0; i < row.size(); ++i) {
    EXPECT_EQ(row[i], all[17 * row.size() + i]);
    EXPECT_EQ(row[i], std::bit_cast<float>(static_cast<uint32_t>(bits[17 * row.size() + i]) << 16));
  }
}

TEST(TinyModel, WithoutMtp) {
  const auto model = load_model(kTiny, LoadFormat::kAuto, {.mtp = false});
  EXPECT_FALSE(model->mtp.has_value());
  EXPECT_TRUE(model->config.mtp_layers.empty());
}

TEST(TinyModel, DummyHasTheSameShapes) {
  const auto real = load_model(kTiny);
  const auto dummy = load_model(kTiny, LoadFormat::kDummy);
  ASSERT_EQ(real->checkpoint->tensors().size(), dummy->checkpoint->tensors().size());
  for (const auto& tensor : real->checkpoint->tensors()) {
    const auto* other = dummy->checkpoint->find(tensor.name);
    ASSERT_NE(other, nullptr) << tensor.name;
    EXPECT_EQ(other->shape, tensor.shape) << tensor.name;
  }
}

}  // namespace
}  // namespace levin::model
