#include "core/tensor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "core/error.h"
#include "support/tiny_checkpoint.h"

namespace levin {
namespace {

TEST(DTypeTest, NamesRoundTrip) {
  for (int i = 0; i < 12; ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(dtype_from_name(name_of(dtype)), dtype);
    EXPECT_GE(size_of(dtype), 1U);
    EXPECT_LE(size_of(dtype), 8U);
  }
  EXPECT_FALSE(dtype_from_name("F4").has_value());
  EXPECT_FALSE(dtype_from_name("").has_value());
  EXPECT_EQ(size_of(DType::kBF16), 2U);
  EXPECT_EQ(size_of(DType::kF8E4M3), 1U);
}

TEST(ShapeTest, ElementCount) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(element_count({}), 1);
  EXPECT_EQ(element_count({3, 4}), 12);
  EXPECT_EQ(element_count({0, 4}), 0);
  EXPECT_EQ(element_count({kMax}), kMax);
  EXPECT_FALSE(element_count({-1}).has_value());
  EXPECT_FALSE(element_count({kMax, 2}).has_value());
  EXPECT_FALSE(element_count({int64_t{1} << 32, int64_t{1} << 31}).has_value());
  EXPECT_EQ(to_string({4096, 2688}), "[4096, 2688]");
  EXPECT_EQ(to_string(Shape{}), "[]");
}

TEST(ToFloat, ReadsFloatTypesAtAnyAddress) {
  std::vector<std::byte> storage(32);
  for (std::size_t offset = 0; offset < 8; ++offset) {
    const float values[2] = {1.5F, -2.0F};
    std::memcpy(storage.data() + offset, values, sizeof(values));
    const TensorView view = {DType::kF32, {2}, std::span(storage).subspan(offset, 8)};
    EXPECT_THAT(to_float(view, "x"), ::testing::ElementsAre(1.5F, -2.0F));
  }
  const uint16_t bf16[1] = {0x4049};
  std::memcpy(storage.data(), bf16, 2);
  EXPECT_EQ(to_float({DType::kBF16, {1}, std::span(storage).first(2)}, "x")[0], 3.140625F);
  const uint16_t f16[1] = {0x3c00};
  std::memcpy(storage.data(), f16, 2);
  EXPECT_EQ(to_float({DType::kF16, {}, std::span(storage).first(2)}, "x")[0], 1.0F);
  storage[0] = std::byte{0x38};
  EXPECT_EQ(to_float({DType::kF8E4M3, {1}, std::span(storage).first(1)}, "x")[0], 1.0F);
}

TEST(ToFloat, RefusesOtherTypesByName) {
  const std::vector<std::byte> storage(8);
  const Error error = test::error_of([&] { to_float({DType::kI64, {1}, storage}, "the tensor"); });
  EXPECT_EQ(error.parts().where, "the tensor");
  EXPECT_EQ(error.parts().found, "I64");
}

}  // namespace
}  // namespace levin
