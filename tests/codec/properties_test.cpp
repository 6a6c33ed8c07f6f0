// What must hold for any input: the fast scalar forms equal the readable ones, searches equal brute
// force, distortion is that of the format, threads change nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "codec/calibration.h"
#include "codec/e2m1.h"
#include "codec/e4m3.h"
#include "codec/fp8.h"
#include "codec/int4.h"
#include "codec/matrix.h"
#include "codec/nvfp4.h"
#include "core/error.h"

namespace levin::codec {
namespace {

std::vector<float> gaussian_bf16(std::size_t count, uint32_t seed, float deviation = 0.02F) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0F, deviation);
  std::vector<float> values(count);
  for (float& value : values) value = round_to_bf16(normal(generator));
  return values;
}

double relative_rms_error(const std::vector<float>& exact, const std::vector<float>& approximate) {
  double error = 0;
  double power = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const double difference = double{exact[i]} - double{approximate[i]};
    error += difference * difference;
    power += double{exact[i]} * double{exact[i]};
  }
  return std::sqrt(error / power);
}

std::vector<float> decoded(const Nvfp4Matrix& matrix) {
  std::vector<float> values(static_cast<std::size_t>(matrix.rows * matrix.cols));
  for (int64_t row = 0; row < matrix.rows; ++row) {
    decode_nvfp4_row(matrix.packed.data() + row * matrix.cols / 2,
                     matrix.block_scales.data() + row * matrix.cols / kNvfp4Block,
                     matrix.global_scale, matrix.cols, values.data() + row * matrix.cols);
  }
  return values;
}

std::vector<float> decoded(const Int4Matrix& matrix) {
  std::vector<float> values(static_cast<std::size_t>(matrix.rows * matrix.cols));
  for (int64_t row = 0; row < matrix.rows; ++row) {
    decode_int4_row(matrix.words.data() + row * matrix.cols / 8,
                    matrix.scales.data() + row * matrix.cols / matrix.group, matrix.cols,
                    matrix.group, values.data() + row * matrix.cols);
  }
  return values;
}

TEST(ScalarForms, E4M3EncoderEqualsTheReadableOne) {
  // A stride coprime to 2 visits every exponent with many mantissas; ties are added exactly.
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 4093) {
    const auto value = std::bit_cast<float>(static_cast<uint32_t>(bits));
    ASSERT_EQ(encode_e4m3(value), float_to_e4m3(value)) << bits;
  }
  for (unsigned code = 0; code < 0x7e; ++code) {
    const float low = kE4M3Values[code];
    const float middle = (low + kE4M3Values[code + 1]) / 2;
    for (const float value :
         {low, middle, std::nextafter(middle, 0.0F), std::nextafter(middle, 1000.0F)}) {
      ASSERT_EQ(encode_e4m3(value), float_to_e4m3(value)) << value;
      ASSERT_EQ(encode_e4m3(-value), float_to_e4m3(-value)) << value;
    }
  }
}

TEST(ScalarForms, E2M1EncoderAndRoundingEqualTheReadableOne) {
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 4093) {
    const auto value = std::bit_cast<float>(static_cast<uint32_t>(bits));
    if (std::isnan(value)) continue;
    ASSERT_EQ(encode_e2m1(value), float_to_e2m1(value)) << value;
    const float magnitude = kE2M1Values[float_to_e2m1(std::fabs(value))];
    ASSERT_EQ(round_e2m1(std::fabs(value)), magnitude) << value;
  }
  for (const float middle : {0.25F, 0.75F, 1.25F, 1.75F, 2.5F, 3.5F, 5.0F, 7.0F}) {
    for (const float value :
         {middle, std::nextafter(middle, 0.0F), std::nextafter(middle, 10.0F)}) {
      ASSERT_EQ(encode_e2m1(value), float_to_e2m1(value));
      ASSERT_EQ(round_e2m1(value), kE2M1Values[float_to_e2m1(value)]);
    }
  }
}

// Relative RMS error on a Gaussian 24 x 256 matrix, simulated independently: NVFP4 max 9.5 %, four
// over six 8.7 %, MSE sweep 8.2 %, FP8 per tensor 2.6 %, INT4 with groups of 64 10.0 %.
TEST(Distortion, OnGaussianWeightsIsThatOfTheFormat) {
  constexpr int64_t kRows = 24;
  constexpr int64_t kCols = 256;
  const std::vector<float> weights = gaussian_bf16(kRows * kCols, 7);
  const auto error = [&](Nvfp4Policy policy) {
    return relative_rms_error(weights, decoded(encode_nvfp4(weights, kRows, kCols, policy)));
  };
  EXPECT_NEAR(error(Nvfp4Policy::kMaxDynamic), 0.095, 0.004);
  EXPECT_NEAR(error(Nvfp4Policy::kMaxStatic), 0.095, 0.004);
  EXPECT_NEAR(error(Nvfp4Policy::kFourOverSix), 0.087, 0.004);
  EXPECT_NEAR(error(Nvfp4Policy::kMse), 0.082, 0.004);

  const Fp8Matrix fp8 = encode_fp8(weights, kRows, kCols, Fp8Granularity::kTensor);
  std::vector<float> values(weights.size());
  decode_fp8_row(fp8.codes.data(), fp8.scales[0], kRows * kCols, values.data());
  EXPECT_NEAR(relative_rms_error(weights, values), 0.026, 0.002);

  EXPECT_NEAR(relative_rms_error(weights, decoded(encode_int4(weights, kRows, kCols, 64))), 0.100,
              0.005);
}

// ModelOpt's sweep as written: all 126 candidates ascending, strict improvement only.
uint8_t brute_force_sweep(std::span<const float> block, float amax) {
  float best_error = std::numeric_limits<float>::infinity();
  uint8_t best = 0;
  for (uint8_t code = 1; code <= 126; ++code) {
    float scale = e4m3_to_float(code) / 448.0F * amax / 6.0F;
    if (scale == 0.0F) scale = 1.0F;
    std::vector<float> squares;
    for (const float x : block) {
      const float a = std::fabs(x);
      const float difference = a - kE2M1Values[float_to_e2m1(a / scale)] * scale;
      squares.push_back(difference * difference);
    }
    for (std::size_t half = squares.size() / 2; half > 0; half /= 2) {
      for (std::size_t i = 0; i < half; ++i) squares[i] += squares[i + half];
    }
    const float error = squares[0];
    if (error < best_error) {
      best_error = error;
      best = code;
    }
  }
  return best;
}

TEST(MseSweep, PrunedSearchEqualsBruteForce) {
  std::mt19937 generator(11);
  std::uniform_int_distribution<int> kind(0, 4);
  for (int trial = 0; trial < 3000; ++trial) {
    std::vector<float> block = gaussian_bf16(16, static_cast<uint32_t>(trial));
    // Outliers, near-empty blocks, repeated magnitudes (exact ties), tiny and large blocks.
    switch (kind(generator)) {
      case 0:
        block[3] *= 40.0F;
        break;
      case 1:
        std::fill(block.begin() + 2, block.end(), 0.0F);
        break;
      case 2:
        for (float& x : block) x = x < 0 ? -0.0625F : 0.0625F;
        break;
      case 3:
        for (float& x : block) x *= 0x1p-18F;
        break;
      default:
        break;
    }
    std::vector<float> row(32, 0.0F);
    std::copy(block.begin(), block.end(), row.begin());
    row[20] = 1.0F;  // sets the tensor's amax
    const float amax = absolute_max(row);
    std::vector<uint8_t> packed(16);
    std::vector<uint8_t> scales(2);
    encode_nvfp4_row(row, Nvfp4Policy::kMse, amax, packed.data(), scales.data());
    ASSERT_EQ(scales[0], brute_force_sweep(block, amax)) << "trial " << trial;
  }
}

TEST(FourOverSix, IsNeverWorseThanEitherChoice) {
  const std::vector<float> weights = gaussian_bf16(64 * 256, 3);
  const auto error = [&](Nvfp4Policy policy) {
    return relative_rms_error(weights, decoded(encode_nvfp4(weights, 64, 256, policy)));
  };
  EXPECT_LT(error(Nvfp4Policy::kFourOverSix), error(Nvfp4Policy::kMaxStatic));
  EXPECT_LT(error(Nvfp4Policy::kMse), error(Nvfp4Policy::kFourOverSix));
}

TEST(Nvfp4, ScalesAreAlwaysPositiveAndFinite) {
  const float largest = std::numeric_limits<float>::max() / 16384;
  for (const float magnitude : {0.0F, 1e-44F, 1e-38F, 1e-30F, 1.0F, 1e30F, largest}) {
    std::vector<float> weights(64, 0.0F);
    weights[5] = magnitude;
    weights[40] = -magnitude / 3;
    for (const auto policy : {Nvfp4Policy::kMaxDynamic, Nvfp4Policy::kMaxStatic, Nvfp4Policy::kMse,
                              Nvfp4Policy::kFourOverSix}) {
      const Nvfp4Matrix matrix = encode_nvfp4(weights, 2, 32, policy);
      EXPECT_TRUE(std::isnormal(matrix.global_scale)) << magnitude;
      for (const uint8_t scale : matrix.block_scales) {
        EXPECT_GE(scale, 0x01) << magnitude;
        EXPECT_LE(scale, 0x7e) << magnitude;
      }
      for (const float value : decoded(matrix)) EXPECT_TRUE(std::isfinite(value)) << magnitude;
    }
  }
}

TEST(Nvfp4, ZeroMatrixHasUnitScalesAndZeroCodes) {
  const std::vector<float> zeros(4 * 32, 0.0F);
  const Nvfp4Matrix matrix = encode_nvfp4(zeros, 4, 32, Nvfp4Policy::kFourOverSix);
  EXPECT_EQ(matrix.global_scale, 1.0F);
  EXPECT_THAT(matrix.block_scales, testing::Each(0x38));
  EXPECT_THAT(matrix.packed, testing::Each(0));
}

TEST(Nvfp4, SharedAmaxSetsTheGlobalScale) {
  const std::vector<float> weights = gaussian_bf16(2 * 32, 9);
  const Nvfp4Matrix matrix =
      encode_nvfp4(weights, 2, 32, Nvfp4Policy::kMaxDynamic, nullptr, 2688.0F);
  EXPECT_EQ(matrix.global_scale, 1.0F);
}

TEST(Nvfp4, EncodingItsOwnOutputIsLossless) {
  const std::vector<float> weights = gaussian_bf16(16 * 64, 21);
  const Nvfp4Matrix once = encode_nvfp4(weights, 16, 64, Nvfp4Policy::kMse);
  const std::vector<float> values = decoded(once);
  const Nvfp4Matrix twice =
      encode_nvfp4(values, 16, 64, Nvfp4Policy::kMse, nullptr, once.global_scale * 2688.0F);
  EXPECT_LT(relative_rms_error(values, decoded(twice)), 1e-6);
}

TEST(Threads, DoNotChangeTheBytes) {
  ThreadTeam team(3);
  const std::vector<float> weights = gaussian_bf16(37 * 128, 5);
  const Nvfp4Matrix nvfp4 = encode_nvfp4(weights, 37, 128, Nvfp4Policy::kFourOverSix);
  const Nvfp4Matrix nvfp4_team = encode_nvfp4(weights, 37, 128, Nvfp4Policy::kFourOverSix, &team);
  EXPECT_EQ(nvfp4.packed, nvfp4_team.packed);
  EXPECT_EQ(nvfp4.block_scales, nvfp4_team.block_scales);
  const Int4Matrix int4 = encode_int4(weights, 37, 128, 64);
  EXPECT_EQ(int4.words, encode_int4(weights, 37, 128, 64, &team).words);
  const Fp8Matrix fp8 = encode_fp8(weights, 37, 128, Fp8Granularity::kChannel);
  const Fp8Matrix fp8_team =
      encode_fp8(weights, 37, 128, Fp8Granularity::kChannel, Fp8Quotient::kExact, &team);
  EXPECT_EQ(fp8.codes, fp8_team.codes);
  EXPECT_EQ(fp8.scales, fp8_team.scales);
}

TEST(Fp8, ZeroRowsHaveUnitScale) {
  std::vector<float> weights(2 * 16, 0.0F);
  weights[20] = 3.5F;
  const Fp8Matrix matrix = encode_fp8(weights, 2, 16, Fp8Granularity::kChannel);
  EXPECT_EQ(matrix.scales[0], 1.0F);
  EXPECT_EQ(matrix.scales[1], 3.5F / 448.0F);
}

TEST(Fp8, ActivationsSaturateAtTheCalibratedMaximum) {
  const std::vector<float> x = {0.5F, -100.0F, 1.0F, 0.0F};
  std::vector<float> out(x.size());
  quantize_fp8_activation(x, 1.0F / 448.0F, out);
  EXPECT_FLOAT_EQ(out[1], -1.0F);
  EXPECT_FLOAT_EQ(out[2], 1.0F);
  EXPECT_EQ(out[3], 0.0F);
  EXPECT_FLOAT_EQ(quantize_fp8_activation_per_token(x, out), 100.0F / 448.0F);
  EXPECT_FLOAT_EQ(out[1], -100.0F);
}

TEST(Nvfp4Activation, MayQuantizeInPlace) {
  std::vector<float> x = gaussian_bf16(48, 13, 1.0F);
  std::vector<float> out(x.size());
  quantize_nvfp4_activation(x, 0x1p-8F, out);
  quantize_nvfp4_activation(x, 0x1p-8F, x);
  EXPECT_EQ(x, out);
}

TEST(Sizes, ThatCannotBeBlockedAreErrors) {
  const std::vector<float> weights(40, 1.0F);
  EXPECT_THROW(encode_nvfp4(weights, 1, 40, Nvfp4Policy::kMaxDynamic), Error);
  EXPECT_THROW(encode_nvfp4(weights, 2, 16, Nvfp4Policy::kMaxDynamic), Error);
  EXPECT_THROW(encode_int4(weights, 1, 40, 64), Error);
  EXPECT_THROW(encode_fp8(weights, 1, 16, Fp8Granularity::kTensor), Error);
}

TEST(Calibration, MergedStatsEqualThoseOfOneRun) {
  const std::vector<float> x = gaussian_bf16(10 * 32, 17, 2.0F);
  ActivationStats all;
  ActivationStats first;
  ActivationStats second;
  for (std::size_t row = 0; row < 10; ++row) {
    const auto values = std::span(x).subspan(row * 32, 32);
    all.add(values);
    (row < 4 ? first : second).add(values);
  }
  first.merge(second);
  EXPECT_EQ(first.rows(), 10);
  EXPECT_EQ(first.amax(), all.amax());
  EXPECT_EQ(first.headroom().amax, all.headroom().amax);
  EXPECT_EQ(all.amax(), double{absolute_max(x)});
}

TEST(Calibration, NothingSeenGivesZero) {
  ActivationStats stats;
  stats.add(std::vector<float>(32, 0.0F));
  EXPECT_EQ(stats.rows(), 1);
  EXPECT_EQ(stats.amax(), 0.0);
  EXPECT_EQ(stats.headroom().amax, 0.0);
}

}  // namespace
}  // namespace levin::codec
