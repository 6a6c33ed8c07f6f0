// What GPUs without e4m3 instructions compute instead, against the scalar conversions.
#include "runtime/cuda/e4m3_bits.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/small_floats.h"

namespace levin::runtime::cuda {
namespace {

TEST(E4M3Bits, AllPairsOfCodes) {
  for (uint32_t codes = 0; codes < 0x10000u; ++codes) {
    const uint32_t pair = e4m3x2_as_small_f16x2(codes);
    for (const uint32_t shift : {0u, 8u}) {
      const float expected = e4m3_to_float(static_cast<uint8_t>(codes >> shift));
      const float found = f16_to_float(static_cast<uint16_t>(pair >> (2 * shift))) * 256.0F;
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(found)) << codes;
      } else {
        ASSERT_EQ(std::bit_cast<uint32_t>(found), std::bit_cast<uint32_t>(expected)) << codes;
      }
    }
  }
}

// What rounding looks at is in the upper half of a float, and whether the lower one is zero, or on
// which side of its middle.
TEST(E4M3Bits, FloatsOfEveryUpperHalf) {
  for (uint32_t upper = 0; upper < 0x10000u; ++upper) {
    for (const uint32_t lower : {0u, 1u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) {
      const auto value = std::bit_cast<float>(upper << 16 | lower);
      ASSERT_EQ(float_to_e4m3_bits(value), float_to_e4m3(value)) << value;
    }
  }
}

}  // namespace
}  // namespace levin::runtime::cuda
