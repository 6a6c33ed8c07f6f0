#include "core/small_floats.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace levin {
namespace {

const float kInfinity = std::numeric_limits<float>::infinity();
const float kNan = std::numeric_limits<float>::quiet_NaN();

float random_float(std::mt19937& random, int low_exponent, int high_exponent) {
  const auto exponent = static_cast<uint32_t>(
      std::uniform_int_distribution<int>(low_exponent + 127, high_exponent + 127)(random));
  return std::bit_cast<float>((static_cast<uint32_t>(random()) & 0x807fffffu) | (exponent << 23));
}

// Checks that encode() gives the nearest of `codes` values, ties to the even code, by looking at
// all of them.
template <typename Decode, typename Encode>
void expect_nearest(uint32_t codes, Decode decode, Encode encode, int low, int high) {
  std::mt19937 random(1);
  for (int i = 0; i < 3000; ++i) {
    const float value = random_float(random, low, high);
    const auto code = encode(value);
    const double error = std::fabs(double{decode(code)} - value);
    for (uint32_t other = 0; other < codes; ++other) {
      const float candidate = decode(static_cast<decltype(code)>(other));
      if (!std::isfinite(candidate) || std::signbit(candidate) != std::signbit(value)) continue;
      const double other_error = std::fabs(double{candidate} - value);
      ASSERT_LE(error, other_error) << value << " " << candidate;
      if (other_error == error && other != code) {
        ASSERT_EQ(code % 2, 0) << value;
      }
    }
  }
}

TEST(Bf16, EveryCodeRoundTrips) {
  for (uint32_t code = 0; code < 0x10000; ++code) {
    const float value = bf16_to_float(static_cast<uint16_t>(code));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(value))));
    } else {
      EXPECT_EQ(float_to_bf16(value), code);
    }
  }
}

TEST(Bf16, RoundsToNearestEven) {
  EXPECT_EQ(float_to_bf16(std::bit_cast<float>(0x3f808000u)), 0x3f80);  // tie, even below
  EXPECT_EQ(float_to_bf16(std::bit_cast<float>(0x3f818000u)), 0x3f82);  // tie, even above
  EXPECT_EQ(float_to_bf16(std::bit_cast<float>(0x3f808001u)), 0x3f81);
  EXPECT_EQ(float_to_bf16(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(float_to_bf16(-kInfinity), 0xff80);
  // A NaN whose payload sits in the lower half only must not become infinity.
  EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(std::bit_cast<float>(0x7f800001u)))));
  EXPECT_EQ(round_to_bf16(1.00390625F), 1.0F);
}

TEST(F16, EveryCodeRoundTrips) {
  for (uint32_t code = 0; code < 0x10000; ++code) {
    const float value = f16_to_float(static_cast<uint16_t>(code));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(f16_to_float(float_to_f16(value))));
    } else {
      EXPECT_EQ(float_to_f16(value), code);
    }
  }
}

TEST(F16, KnownValues) {
  EXPECT_EQ(f16_to_float(0x3c00), 1.0F);
  EXPECT_EQ(f16_to_float(0x0001), 0x1p-24F);
  EXPECT_EQ(f16_to_float(0x7bff), 65504.0F);
  EXPECT_EQ(float_to_f16(65519.0F), 0x7bff);
  EXPECT_EQ(float_to_f16(65520.0F), 0x7c00);
  EXPECT_EQ(float_to_f16(-1e30F), 0xfc00);
  EXPECT_EQ(float_to_f16(0x1p-25F), 0x0000);  // tie to even zero
  EXPECT_EQ(float_to_f16(0x1.8p-24F), 0x0002);
  EXPECT_TRUE(std::isnan(f16_to_float(float_to_f16(kNan))));
}

TEST(F16, IsNearest) {
  expect_nearest(0x10000, f16_to_float, float_to_f16, -26, 15);
}

TEST(E4M3, EveryCodeRoundTrips) {
  for (uint32_t code = 0; code < 256; ++code) {
    const float value = e4m3_to_float(static_cast<uint8_t>(code));
    if ((code & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(value));
    } else {
      EXPECT_EQ(float_to_e4m3(value), code);
    }
  }
}

TEST(E4M3, KnownValues) {
  EXPECT_EQ(e4m3_to_float(0x7e), kE4M3Max);
  EXPECT_EQ(e4m3_to_float(0x01), kE4M3Tiny);
  EXPECT_EQ(e4m3_to_float(0x38), 1.0F);
  EXPECT_EQ(e4m3_to_float(0x08), 0x1p-6F);
  EXPECT_EQ(float_to_e4m3(1e9F), 0x7e);
  EXPECT_EQ(float_to_e4m3(-kInfinity), 0xfe);
  EXPECT_EQ(float_to_e4m3(kNan), 0x7f);
  EXPECT_EQ(float_to_e4m3(0x1p-10F), 0x00);   // tie to even zero
  EXPECT_EQ(float_to_e4m3(0x1.8p-9F), 0x02);  // tie to even
  EXPECT_EQ(float_to_e4m3(0x1.fp-7F), 0x08);  // subnormal rolls over into the first normal
  EXPECT_EQ(float_to_e4m3(-0.0F), 0x80);
}

TEST(E4M3, IsNearest) {
  expect_nearest(256, e4m3_to_float, float_to_e4m3, -11, 8);
}

TEST(E2M1, RoundsToNearestEvenAndSaturates) {
  const std::vector<std::pair<float, uint8_t>> cases = {
      {0.0F, 0},   {-0.0F, 0}, {0.25F, 0},   {0.26F, 1},  {0.5F, 1},   {0.75F, 2}, {1.25F, 2},
      {1.26F, 3},  {1.75F, 4}, {2.5F, 4},    {2.51F, 5},  {3.5F, 6},   {5.0F, 6},  {5.01F, 7},
      {100.0F, 7}, {-0.1F, 8}, {-0.75F, 10}, {-6.0F, 15}, {-1e30F, 15}};
  for (const auto& [value, code] : cases) EXPECT_EQ(float_to_e2m1(value), code) << value;
  for (uint8_t code = 0; code < 16; ++code) {
    if (code == 8) continue;  // -0 encodes as 0
    EXPECT_EQ(float_to_e2m1(kE2M1Values[code]), code);
  }
}

}  // namespace
}  // namespace levin
