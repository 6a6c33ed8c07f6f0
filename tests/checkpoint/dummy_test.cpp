#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <set>

#include "checkpoint/checkpoint.h"
#include "core/small_floats.h"
#include "support/tiny_checkpoint.h"

namespace levin::checkpoint {
namespace {

using Fill = TensorSpec::Fill;
using test::TempFolder;

TensorSpec spec(std::string name, DType dtype, Shape shape, Fill fill, int64_t fan_in = 1) {
  TensorSpec result;
  result.name = std::move(name);
  result.dtype = dtype;
  result.shape = std::move(shape);
  result.fill = fill;
  result.fan_in = fan_in;
  return result;
}

class Dummy : public ::testing::Test {
 protected:
  Dummy() { test::write_file(folder_ / "config.json", "{}"); }
  std::vector<float> values(const TensorSpec& one, uint64_t seed = 0) const {
    return to_float(Checkpoint::dummy(folder_.path(), {one}, seed)->view(one.name), one.name);
  }
  TempFolder folder_;
};

TEST_F(Dummy, SameNameAndSeedSameBytes) {
  const auto weight = spec("a.weight", DType::kBF16, {64, 64}, Fill::kWeight, 64);
  EXPECT_EQ(values(weight), values(weight));
  EXPECT_NE(values(weight), values(weight, 1));
  auto other = weight;
  other.name = "b.weight";
  EXPECT_NE(values(weight), values(other));
}

TEST_F(Dummy, WeightsAreNormalWithTheRightDeviation) {
  const auto all = values(spec("a.weight", DType::kF32, {512, 256}, Fill::kWeight, 256));
  const auto count = static_cast<double>(all.size());
  const double mean = std::accumulate(all.begin(), all.end(), 0.0) / count;
  double square = 0;
  double fourth = 0;
  for (const float value : all) {
    square += (value - mean) * (value - mean);
    fourth += std::pow(value - mean, 4);
  }
  const double variance = square / count;
  EXPECT_NEAR(mean, 0, 1e-3);
  EXPECT_NEAR(std::sqrt(variance) * 16, 1, 0.01);
  EXPECT_NEAR(fourth / count / (variance * variance), 3, 0.1);  // kurtosis of a normal
}

TEST_F(Dummy, MambaParametersAreInTheRangesOfRealModels) {
  for (const float value : values(spec("A_log", DType::kF32, {1000}, Fill::kALog))) {
    EXPECT_GE(value, 0.0F);
    EXPECT_LE(value, std::log(16.0F));
  }
  for (const float value : values(spec("dt_bias", DType::kF32, {1000}, Fill::kDtBias))) {
    const float dt = std::log1p(std::exp(value));
    EXPECT_GE(dt, 0.00099F);
    EXPECT_LE(dt, 0.1F);
  }
  for (const float value : values(spec("norm", DType::kBF16, {1000}, Fill::kNorm))) {
    EXPECT_NEAR(value, 1, 0.3);
  }
}

TEST_F(Dummy, QuantizedTensorsAreLegal) {
  auto scale = spec("scale", DType::kF32, {}, Fill::kScale);
  scale.value = 0.25F;
  EXPECT_EQ(values(scale), std::vector<float>{0.25F});
  for (const float value : values(spec("block", DType::kF8E4M3, {4096}, Fill::kBlockScale))) {
    EXPECT_GE(value, 128.0F);
    EXPECT_LE(value, 448.0F);
  }
  for (const float value : values(spec("fp8", DType::kF8E4M3, {4096}, Fill::kCodes))) {
    EXPECT_TRUE(std::isfinite(value));
  }
  const auto codes =
      Checkpoint::dummy(folder_.path(), {spec("codes", DType::kU8, {65536}, Fill::kCodes)}, 0);
  std::vector<int> histogram(256);
  for (const uint8_t code : codes->view("codes").as<uint8_t>()) ++histogram[code];
  EXPECT_GT(*std::min_element(histogram.begin(), histogram.end()), 150);
  auto shape = spec("shape", DType::kI64, {2}, Fill::kIntegers);
  shape.integers = {3, 4};
  const auto integers = Checkpoint::dummy(folder_.path(), {shape}, 0);
  EXPECT_THAT(integers->view("shape").as<int64_t>(), ::testing::ElementsAre(3, 4));
}

TEST_F(Dummy, LargeTensorsShareMemoryAtPlacesOfTheirOwn) {
  const Shape shape = {1024, 3072};
  const auto checkpoint =
      Checkpoint::dummy(folder_.path(),
                        {spec("a.weight", DType::kBF16, shape, Fill::kWeight, 3072),
                         spec("b.weight", DType::kBF16, shape, Fill::kWeight, 3072),
                         spec("c.weight", DType::kBF16, {16384, 3072}, Fill::kWeight, 3072)},
                        0);
  const auto a = checkpoint->view("a.weight").as<uint16_t>();
  const auto b = checkpoint->view("b.weight").as<uint16_t>();
  const auto c = checkpoint->view("c.weight").as<uint16_t>();
  EXPECT_LT(std::abs(a.data() - b.data()), 64 << 20);
  EXPECT_FALSE(std::equal(a.begin(), a.end(), b.begin()));
  EXPECT_TRUE(std::equal(a.begin(), a.end(), checkpoint->view("a.weight").as<uint16_t>().begin()));
  // No two rows are alike.
  std::set<std::vector<uint16_t>> rows;
  for (std::size_t i = 0; i < c.size(); i += 3072) rows.emplace(&c[i], &c[i] + 8);
  EXPECT_EQ(rows.size(), 16384u);
  double square = 0;
  for (const uint16_t value : b) square += std::pow(bf16_to_float(value), 2);
  EXPECT_NEAR(square / static_cast<double>(b.size()) * 3072, 1, 0.01);
}

TEST_F(Dummy, CatalogueCostsNothingBeforeTheFirstView) {
  // A petabyte that nobody looks at.
  const auto checkpoint = Checkpoint::dummy(
      folder_.path(), {spec("huge", DType::kBF16, {int64_t{1} << 30, 1 << 19}, Fill::kWeight)}, 0);
  EXPECT_EQ(checkpoint->total_bytes(), uint64_t{1} << 50);
}

TEST_F(Dummy, ImpossibleShapesAndDoubleNamesAreErrors) {
  EXPECT_THROW(Checkpoint::dummy(folder_.path(), {spec("a", DType::kU8, {-1}, Fill::kZero)}, 0),
               Error);
  EXPECT_THROW(
      Checkpoint::dummy(
          folder_.path(),
          {spec("a", DType::kU8, {1}, Fill::kZero), spec("a", DType::kU8, {1}, Fill::kZero)}, 0),
      Error);
}

}  // namespace
}  // namespace levin::checkpoint
