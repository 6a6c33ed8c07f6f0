// The parts of the reference runtime one by one: reductions, router, quantized inputs, rounding of
// the SSM state.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

#include "codec/fp8.h"
#include "codec/nvfp4.h"
#include "runtime/reference/linear.h"
#include "runtime/reference/math.h"
#include "runtime/reference/moe.h"
#include "runtime/reference/norm.h"
#include "runtime/ssm_rounding.h"

namespace levin::runtime::reference {
namespace {

std::vector<float> random_floats(std::size_t count, uint32_t seed, float spread = 1.0F) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0F, spread);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

TEST(ReferenceMath, DotOfEveryLength) {
  for (int64_t n = 0; n < 100; ++n) {
    const auto a = random_floats(static_cast<std::size_t>(n), 1);
    const auto b = random_floats(static_cast<std::size_t>(n), 2);
    double sum = 0;
    for (std::size_t i = 0; i < a.size(); ++i) sum += double{a[i]} * double{b[i]};
    EXPECT_NEAR(dot(a.data(), b.data(), n), sum, 1e-5) << n;
  }
}

TEST(ReferenceMath, SoftplusIsNotClampedBelow) {
  EXPECT_NEAR(softplus(-20.0F), 2.0611536e-9F, 1e-15F);
  EXPECT_NEAR(softplus(0.0F), std::log(2.0F), 1e-7F);
  EXPECT_EQ(softplus(30.0F), 30.0F);
  EXPECT_EQ(softplus(-200.0F), 0.0F);
}

TEST(ReferenceMath, ReluSquared) {
  EXPECT_EQ(relu_squared(-3.0F), 0.0F);
  EXPECT_EQ(relu_squared(3.0F), 9.0F);
}

TEST(ReferenceNorm, GateComesFirstAndGroupsAreApart) {
  // Two groups of two channels; z gates the first channel of each group off.
  std::vector<float> y = {100.0F, 2.0F, 100.0F, 30.0F};
  const std::vector<float> z = {-200.0F, 5.0F, -200.0F, 5.0F};
  const std::vector<float> weight = {1.0F, 1.0F, 1.0F, 2.0F};
  gated_group_norm(y, z, weight, 2, 1e-5);
  // What is left of each group has a root mean square of 1: one channel of sqrt(2).
  EXPECT_NEAR(y[0], 0.0F, 1e-6F);
  EXPECT_NEAR(y[1], std::sqrt(2.0F), 1e-4F);
  EXPECT_NEAR(y[3], 2 * std::sqrt(2.0F), 1e-4F);
}

// --- router ---

model::Config router_config(int64_t experts, int64_t per_token) {
  model::Config config;
  config.n_routed_experts = experts;
  config.num_experts_per_tok = per_token;
  config.routed_scaling_factor = 2.5;
  return config;
}

std::vector<RoutedExpert> routed(const model::Config& config, const std::vector<float>& logits,
                                 std::vector<float> bias = {}) {
  bias.resize(logits.size());
  std::vector<float> scratch(2 * logits.size());
  std::vector<RoutedExpert> chosen(static_cast<std::size_t>(config.num_experts_per_tok));
  route(config, logits, bias, scratch, chosen);
  return chosen;
}

TEST(ReferenceRouter, WeightsAreScaledSigmoids) {
  const auto chosen = routed(router_config(4, 2), {1.0F, -1.0F, 3.0F, 0.0F});
  EXPECT_EQ(chosen[0].expert, 2);
  EXPECT_EQ(chosen[1].expert, 0);
  EXPECT_NEAR(chosen[0].weight + chosen[1].weight, 2.5F, 1e-6F);
  EXPECT_NEAR(chosen[0].weight / chosen[1].weight, sigmoid(3.0F) / sigmoid(1.0F), 1e-6F);
  model::Config plain = router_config(4, 2);
  plain.norm_topk_prob = false;
  EXPECT_NEAR(routed(plain, {1.0F, -1.0F, 3.0F, 0.0F})[0].weight, 2.5F * sigmoid(3.0F), 1e-6F);
}

TEST(ReferenceRouter, BiasChoosesButDoesNotWeigh) {
  const std::vector<float> logits = {1.0F, -1.0F, 3.0F, 0.0F};
  const auto chosen = routed(router_config(4, 2), logits, {0.0F, 5.0F, 0.0F, 0.0F});
  EXPECT_EQ(chosen[0].expert, 1);
  EXPECT_EQ(chosen[1].expert, 2);
  EXPECT_NEAR(chosen[0].weight / chosen[1].weight, sigmoid(-1.0F) / sigmoid(3.0F), 1e-6F);
}

TEST(ReferenceRouter, TiesGoToTheLowerIndex) {
  const auto chosen = routed(router_config(6, 3), std::vector<float>(6, 0.5F));
  EXPECT_EQ(chosen[0].expert, 0);
  EXPECT_EQ(chosen[1].expert, 1);
  EXPECT_EQ(chosen[2].expert, 2);
}

TEST(ReferenceRouter, OnlyTheBestGroupsTakePart) {
  model::Config config = router_config(8, 2);
  config.n_group = 4;
  config.topk_group = 1;
  // Expert 0 is the best one, but the group of 4 and 5 is the best pair.
  const auto chosen = routed(config, {4.0F, -9.0F, 0.0F, 0.0F, 2.0F, 2.1F, 1.0F, 1.0F});
  EXPECT_EQ(chosen[0].expert, 5);
  EXPECT_EQ(chosen[1].expert, 4);
  config.topk_group = 2;
  // Groups {4, 5} and {6, 7} beat {0, 1}: sigmoid(4) + sigmoid(-9) < 2 sigmoid(1).
  EXPECT_EQ(routed(config, {4.0F, -9.0F, 0.0F, 0.0F, 2.0F, 2.1F, 1.0F, 1.0F})[0].expert, 5);
  // Equal groups: the lower ones win.
  const auto equal = routed(config, std::vector<float>(8, 0.0F));
  EXPECT_EQ(equal[0].expert, 0);
  EXPECT_EQ(equal[1].expert, 1);
}

// --- linears ---

class ReferenceLinears : public ::testing::Test {
 protected:
  static constexpr int64_t kOut = 24;
  static constexpr int64_t kIn = 64;
  static constexpr int kRows = 5;

  ReferenceLinears() {
    model::Linear& linear = model_.lm_head;
    linear.name = "lm_head";
    linear.format = model::WeightFormat::kF32;
    linear.out = kOut;
    linear.in = kIn;
    linear.weight = {DType::kF32, {kOut, kIn}, std::as_bytes(std::span(weights_))};
    linear.bias = random_floats(kOut, 5);
    linear.input_scale = 0.02F;
  }

  std::vector<float> apply(model::ActivationFormat activation, int threads,
                           int64_t cache_limit = kFloatCacheLimit) {
    model_.lm_head.activation = activation;
    ThreadTeam team(threads);
    Linears linears(model_, team, kRows, cache_limit);
    std::vector<float> output(kRows * kOut);
    linears.apply(model_.lm_head, inputs_, kRows, output);
    return output;
  }

  // The same from inputs that were quantized beforehand.
  std::vector<float> expected(const std::vector<float>& inputs) {
    std::vector<float> output;
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t o = 0; o < kOut; ++o) {
        double sum = double{model_.lm_head.bias[static_cast<std::size_t>(o)]};
        for (int64_t i = 0; i < kIn; ++i) {
          sum += double{inputs[static_cast<std::size_t>(r * kIn + i)]} *
                 double{weights_[static_cast<std::size_t>(o * kIn + i)]};
        }
        output.push_back(static_cast<float>(sum));
      }
    }
    return output;
  }

  void expect_near(const std::vector<float>& a, const std::vector<float>& b) {
    ASSERT_EQ(a.size(), b.size());
    for (std::size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 1e-4F) << i;
  }

  std::vector<float> weights_ = random_floats(kOut * kIn, 3);
  std::vector<float> inputs_ = random_floats(kRows * kIn, 4, 3.0F);
  model::Model model_;
};

TEST_F(ReferenceLinears, PlainInput) {
  expect_near(apply(model::ActivationFormat::kNone, 1), expected(inputs_));
}

TEST_F(ReferenceLinears, Fp8InputUnderAStaticScale) {
  std::vector<float> quantized = inputs_;
  for (float& x : quantized) x = e4m3_to_float(float_to_e4m3(x / 0.02F)) * 0.02F;
  EXPECT_NE(quantized, inputs_);
  expect_near(apply(model::ActivationFormat::kFp8Static, 1), expected(quantized));
}

TEST_F(ReferenceLinears, Fp8InputWithAScalePerToken) {
  std::vector<float> quantized = inputs_;
  for (std::size_t row = 0; row < kRows; ++row) {
    const auto begin = quantized.begin() + static_cast<std::ptrdiff_t>(row * kIn);
    float amax = 0.0F;
    for (auto it = begin; it != begin + kIn; ++it) amax = std::max(amax, std::abs(*it));
    for (auto it = begin; it != begin + kIn; ++it) {
      *it = e4m3_to_float(float_to_e4m3(*it / (amax / 448.0F))) * (amax / 448.0F);
    }
  }
  expect_near(apply(model::ActivationFormat::kFp8PerToken, 1), expected(quantized));
}

TEST_F(ReferenceLinears, Nvfp4Input) {
  std::vector<float> quantized = inputs_;
  for (std::size_t block = 0; block < quantized.size(); block += 16) {
    float amax = 0.0F;
    for (std::size_t i = block; i < block + 16; ++i) amax = std::max(amax, std::abs(quantized[i]));
    const float scale = e4m3_to_float(float_to_e4m3(amax / 6.0F / 0.02F)) * 0.02F;
    for (std::size_t i = block; i < block + 16; ++i) {
      quantized[i] = kE2M1Values[float_to_e2m1(quantized[i] / scale)] * scale;
    }
  }
  EXPECT_NE(quantized, inputs_);
  expect_near(apply(model::ActivationFormat::kNvfp4, 1), expected(quantized));
}

TEST_F(ReferenceLinears, SameBitsCachedOrNotAndOnAnyNumberOfThreads) {
  for (const auto activation : {model::ActivationFormat::kNone, model::ActivationFormat::kNvfp4}) {
    const auto cached = apply(activation, 1);
    EXPECT_EQ(cached, apply(activation, 1, 0));
    EXPECT_EQ(cached, apply(activation, 3, 0));
  }
}

// --- F16 state ---

TEST(SsmRounding, StochasticConversionOfSpecialValues) {
  EXPECT_EQ(stochastic_float_to_f16(0.0F, 0x1fff), 0x0000);
  EXPECT_EQ(stochastic_float_to_f16(-0.0F, 0x1fff), 0x8000);
  EXPECT_EQ(stochastic_float_to_f16(1.0F, 0x1fff), float_to_f16(1.0F));
  EXPECT_EQ(stochastic_float_to_f16(-2.5F, 0), float_to_f16(-2.5F));
  EXPECT_EQ(stochastic_float_to_f16(1e9F, 0), 0x7c00);
  EXPECT_EQ(stochastic_float_to_f16(-std::numeric_limits<float>::infinity(), 5), 0xfc00);
  EXPECT_EQ(stochastic_float_to_f16(std::numeric_limits<float>::quiet_NaN(), 5), 0x7e00);
  // The largest F16 number is 65504; the bits above it decide.
  EXPECT_EQ(stochastic_float_to_f16(65519.0F, 0), 0x7bff);
  EXPECT_EQ(stochastic_float_to_f16(65519.0F, 0x1fff), 0x7c00);
  // Below the smallest normal number there is only zero.
  EXPECT_EQ(stochastic_float_to_f16(0x1p-15F, 0), 0x0000);
  EXPECT_EQ(stochastic_float_to_f16(0x1p-14F, 0), 0x0400);
  // Only 13 bits count.
  EXPECT_EQ(stochastic_float_to_f16(1.0001F, 0x2001), stochastic_float_to_f16(1.0001F, 1));
}

TEST(SsmRounding, StochasticMeansTheValueOnAverage) {
  Options options;
  options.ssm_cache_dtype = SsmCacheDType::kF16;
  options.stochastic_rounding = true;
  const float value = 1.0F + 0.3F * 0x1p-10F;  // three tenths of the way to the next F16 number
  for (const int rounds : {5, 10}) {
    options.philox_rounds = rounds;
    std::vector<float> state(40000, value);
    round_ssm_state(state, options, 3, 17, 0);
    const auto up = static_cast<double>(std::count(state.begin(), state.end(), 1.0F + 0x1p-10F));
    const auto down = static_cast<double>(std::count(state.begin(), state.end(), 1.0F));
    EXPECT_EQ(up + down, 40000);
    EXPECT_NEAR(up / 40000, 0.3, 0.012);  // 5 standard deviations
  }
}

TEST(SsmRounding, DependsOnElementLayerAndPosition) {
  Options options;
  options.ssm_cache_dtype = SsmCacheDType::kF16;
  options.stochastic_rounding = true;
  options.seed = 1234;
  const auto values = random_floats(64, 8);
  const auto rounded = [&](int layer, int64_t position) {
    std::vector<float> state = values;
    round_ssm_state(state, options, layer, position, 0);
    return state;
  };
  const auto whole = rounded(2, 9);
  EXPECT_EQ(whole, rounded(2, 9));
  EXPECT_NE(whole, rounded(3, 9));
  EXPECT_NE(whole, rounded(2, 10));
  // In pieces, at any boundary.
  for (std::size_t cut = 1; cut < values.size(); ++cut) {
    std::vector<float> state = values;
    round_ssm_state(std::span(state).first(cut), options, 2, 9, 0);
    round_ssm_state(std::span(state).subspan(cut), options, 2, 9, static_cast<int64_t>(cut));
    ASSERT_EQ(state, whole) << cut;
  }
  // The definition, written out for one element.
  const auto words = philox(1234, 37 / 8, 10, uint64_t{2} << 32 | 9);
  EXPECT_EQ(whole[37], f16_to_float(stochastic_float_to_f16(values[37], words[37 % 8 / 2] >> 16)));
  options.seed = 1235;
  EXPECT_NE(whole, rounded(2, 9));
}

}  // namespace
}  // namespace levin::runtime::reference
