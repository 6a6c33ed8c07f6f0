// The linear kernels of every instruction set that this machine has, against the codecs.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "codec/fp8.h"
#include "codec/nvfp4.h"
#include "core/error.h"
#include "core/small_floats.h"
#include "runtime/cpu/arena.h"
#include "runtime/cpu/isa.h"
#include "runtime/cpu/panels.h"
#include "runtime/cpu_random_linear.h"

namespace levin::runtime::cpu {
namespace {

using model::ActivationFormat;
using model::WeightFormat;

struct Packed {
  Matrix matrix;
  Arena arena;
  uint8_t* data = nullptr;
  float* row_scale = nullptr;
  float* bias = nullptr;
};

Packed pack_matrix(const Kernels& k, const model::Linear& linear) {
  Packed packed;
  packed.matrix = plan_matrix(linear, /*exact_input=*/false, k.integer_products);
  const int64_t rows = packed.matrix.panels.panels * kLanes;
  ArenaPlan plan;
  const auto data = plan.add<uint8_t>(packed.matrix.weight_bytes());
  const auto scales = plan.add<float>(rows);
  const auto bias = plan.add<float>(rows);
  packed.arena = Arena(plan.bytes());
  packed.data = packed.arena.at(data);
  packed.row_scale = packed.arena.at(scales);
  packed.bias = linear.bias.empty() ? nullptr : packed.arena.at(bias);
  // In two parts, as two threads would.
  const int64_t half = packed.matrix.panels.panels / 2;
  pack_panels(packed.matrix, half, packed.matrix.panels.panels, packed.data, packed.row_scale,
              packed.bias);
  pack_panels(packed.matrix, 0, half, packed.data, packed.row_scale, packed.bias);
  packed.matrix.panels.data = packed.data;
  packed.matrix.panels.row_scale = packed.row_scale;
  packed.matrix.panels.bias = packed.bias;
  return packed;
}

// y [tokens][out] for the rows of x, all in one call.
std::vector<float> run(const Kernels& k, const Packed& packed, std::span<const float> x,
                       int64_t tokens, Epilogue epilogue = Epilogue::kStore, float initial = 0.0F) {
  const Matrix& m = packed.matrix;
  const int64_t stride = m.panels.panels * kLanes;
  ArenaPlan plan;
  const auto tile = plan.add<uint8_t>(m.input_bytes(tokens));
  const auto scratch = plan.add<uint8_t>(linear_scratch_bytes(m.panels.blocks));
  const Arena arena(plan.bytes());
  std::vector<float> scales(static_cast<std::size_t>(tokens));
  for (int64_t first = 0; first < tokens; first += kTile) {
    const int64_t count = std::min(kTile, tokens - first);
    std::vector<const float*> rows;
    for (int64_t t = 0; t < count; ++t) rows.push_back(x.data() + (first + t) * m.in);
    k.pack(rows.data(), count, m.in, m.input, m.panels.digits, m.input_scale,
           arena.at(tile) + m.input_bytes(first), scales.data() + first);
  }
  std::vector<float> y(static_cast<std::size_t>(tokens * stride), initial);
  const PackedInput input{arena.at(tile), scales.data(), tokens};
  LinearOutput output;
  output.base = y.data();
  output.stride = stride;
  output.epilogue = epilogue;
  const int64_t cut = m.panels.panels / 3;
  k.linear(m.panels, input, output, cut, m.panels.panels, arena.at(scratch));
  k.linear(m.panels, input, output, 0, cut, arena.at(scratch));
  std::vector<float> result;
  for (int64_t t = 0; t < tokens; ++t) {
    result.insert(result.end(), y.begin() + t * stride, y.begin() + t * stride + m.out);
  }
  return result;
}

// Rounded to integers of two signed digits, 16 numbers under a power of two (kernels.h).
void round_to_integers(std::span<float> x, float unit) {
  for (std::size_t begin = 0; begin < x.size(); begin += kScaleBlock) {
    const auto part = x.subspan(begin, std::min<std::size_t>(kScaleBlock, x.size() - begin));
    float largest = 0;
    for (const float v : part) largest = std::max(largest, std::fabs(v / unit));
    if (largest == 0) continue;
    float scale = std::ldexp(1.0F, std::ilogb(largest) - 14);
    if (largest / scale >= 32768 - 136) scale *= 2;  // would not fit two signed digits
    for (float& v : part) v = std::nearbyint(v / unit / scale) * scale * unit;
  }
}

// What the products see of one row of activations.
std::vector<float> seen(const Matrix& m, std::span<const float> x) {
  std::vector<float> out(x.begin(), x.end());
  float unit = 1.0F;  // of the numbers that are rounded to integers
  switch (m.input) {
    case PackAs::kF32:
      break;
    case PackAs::kBf16:
      if (m.panels.digits > 0) break;
      for (float& v : out) v = round_to_bf16(v);
      break;
    case PackAs::kFp8Static:
      unit = m.input_scale;
      codec::quantize_fp8_activation(x, m.input_scale, out);
      break;
    case PackAs::kFp8PerToken:
      codec::quantize_fp8_activation_per_token(x, out);
      break;
    case PackAs::kNvfp4:
      codec::quantize_nvfp4_activation(x, m.input_scale, out);
      break;
  }
  if (m.panels.digits == 2) round_to_integers(out, unit);
  return out;
}

// y = W x in double precision, and the sum of the magnitudes of its terms.
struct Expected {
  double y = 0;
  double magnitude = 0;
};
Expected expected(std::span<const float> weights, std::span<const float> x) {
  Expected e;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double product = static_cast<double>(weights[i]) * x[i];
    e.y += product;
    e.magnitude += std::fabs(product);
  }
  return e;
}

// A float32 sum of n products in any order is within n 2^-24 of the sum of magnitudes (Higham,
// Accuracy and Stability of Numerical Algorithms, 3.1); scales and bias add a few roundings.
double bound(int64_t in, double magnitude) {
  return static_cast<double>(in + 8) * 0x1p-24 * magnitude + 1e-30;
}

struct Case {
  WeightFormat weights;
  ActivationFormat activations;
  int group;
};

const Case kCases[] = {
    {WeightFormat::kBf16, ActivationFormat::kNone, 0},
    {WeightFormat::kF16, ActivationFormat::kNone, 0},
    {WeightFormat::kF32, ActivationFormat::kNone, 0},
    {WeightFormat::kFp8, ActivationFormat::kNone, 0},
    {WeightFormat::kFp8, ActivationFormat::kFp8Static, 0},
    {WeightFormat::kFp8Channel, ActivationFormat::kFp8PerToken, 0},
    {WeightFormat::kNvfp4, ActivationFormat::kNone, 16},
    {WeightFormat::kNvfp4, ActivationFormat::kNvfp4, 16},
    {WeightFormat::kNvfp4, ActivationFormat::kFp8Static, 16},
    {WeightFormat::kInt4, ActivationFormat::kNone, 16},
    {WeightFormat::kInt4, ActivationFormat::kNone, 48},
    {WeightFormat::kInt4, ActivationFormat::kNone, 64},
    {WeightFormat::kInt4, ActivationFormat::kNvfp4, 64},
};

class LinearKernels : public testing::TestWithParam<std::tuple<Isa, Case>> {
 protected:
  const Kernels& k() const { return kernels(std::get<0>(GetParam())); }
  const Case& format() const { return std::get<1>(GetParam()); }
  OwnedLinear make(int64_t out, int64_t in, uint32_t seed) const {
    OwnedLinear owned = random_linear(format().weights, out, in, seed, format().group);
    owned.linear.activation = format().activations;
    if (format().activations != ActivationFormat::kNone) owned.linear.input_scale = 1.0F / 700;
    return owned;
  }
  // Widths that the format allows, not all multiples of a block of activations.
  std::vector<int64_t> widths() const {
    const int64_t unit = format().group > 0 ? format().group : 1;
    if (unit == 1) return {1, 31, 72, 288, 333};
    return {unit, 3 * unit, 6 * unit};
  }
};

TEST_P(LinearKernels, MatchTheCodecsForAnyShapeAndNumberOfTokens) {
  uint32_t seed = 1;
  for (const int64_t out : {1, 16, 37, 130}) {
    for (const int64_t in : widths()) {
      OwnedLinear owned = make(out, in, seed);
      if (seed % 2 == 0) owned.linear.bias = random_floats(static_cast<std::size_t>(out), seed);
      const auto weights = model::dequantize(owned.linear);
      const Packed packed = pack_matrix(k(), owned.linear);
      for (const int64_t tokens : {1, 2, 3, 4, 5, 6, 7, 8, 9, 21}) {
        const auto x = random_floats(static_cast<std::size_t>(tokens * in), ++seed);
        const auto y = run(k(), packed, x, tokens);
        for (int64_t t = 0; t < tokens; ++t) {
          const auto row = seen(
              packed.matrix,
              std::span(x).subspan(static_cast<std::size_t>(t * in), static_cast<std::size_t>(in)));
          for (int64_t o = 0; o < out; ++o) {
            auto want = expected(std::span(weights).subspan(static_cast<std::size_t>(o * in),
                                                            static_cast<std::size_t>(in)),
                                 row);
            if (packed.bias != nullptr) {
              want.y += owned.linear.bias[static_cast<std::size_t>(o)];
              want.magnitude += std::fabs(want.y);
            }
            ASSERT_NEAR(y[static_cast<std::size_t>(t * out + o)], want.y, bound(in, want.magnitude))
                << out << " x " << in << ", token " << t << " of " << tokens << ", row " << o;
          }
        }
      }
    }
  }
}

TEST_P(LinearKernels, GiveTheSameBitsWhateverATokenIsBatchedWith) {
  const int64_t in = widths().back();
  const int64_t out = 70;
  const OwnedLinear owned = make(out, in, 7);
  const Packed packed = pack_matrix(k(), owned.linear);
  const int64_t most = 27;
  const auto x = random_floats(static_cast<std::size_t>(most * in), 8);
  std::vector<float> alone;
  for (int64_t t = 0; t < most; ++t) {
    const auto y = run(k(), packed, std::span(x).subspan(static_cast<std::size_t>(t * in)), 1);
    alone.insert(alone.end(), y.begin(), y.end());
  }
  for (int64_t tokens = 2; tokens <= most; ++tokens) {
    const auto y = run(k(), packed, x, tokens);
    ASSERT_TRUE(std::equal(y.begin(), y.end(), alone.begin())) << tokens << " tokens";
  }
}

// Formats that activations are quantized to clip; what is not quantized must stay visible.
TEST_P(LinearKernels, DoNotHideWhatIsNotFinite) {
  const OwnedLinear owned = make(20, widths().back(), 5);
  const auto in = static_cast<std::size_t>(owned.linear.in);
  const Packed packed = pack_matrix(k(), owned.linear);
  if (format().activations != ActivationFormat::kNone && packed.matrix.panels.digits == 0) return;
  const auto weights = model::dequantize(owned.linear);
  for (const float bad : {std::nanf(""), HUGE_VALF}) {
    auto x = random_floats(in, 6);
    x.back() = bad;
    const auto y = run(k(), packed, x, 1);
    for (std::size_t row = 0; row < y.size(); ++row) {
      if (weights[row * in + in - 1] == 0.0F) continue;
      EXPECT_FALSE(std::isfinite(y[row])) << row;
    }
  }
}

TEST_P(LinearKernels, ApplyTheEpilogue) {
  const OwnedLinear owned = make(20, widths().back(), 3);
  const Packed packed = pack_matrix(k(), owned.linear);
  const auto x = random_floats(static_cast<std::size_t>(3 * owned.linear.in), 4);
  const auto y = run(k(), packed, x, 3);
  const auto added = run(k(), packed, x, 3, Epilogue::kAdd, 2.0F);
  const auto squared = run(k(), packed, x, 3, Epilogue::kRelu2);
  for (std::size_t i = 0; i < y.size(); ++i) {
    EXPECT_EQ(added[i], y[i] + 2.0F);
    EXPECT_EQ(squared[i], y[i] > 0.0F ? y[i] * y[i] : 0.0F);
  }
}

std::string case_name(const testing::TestParamInfo<std::tuple<Isa, Case>>& info) {
  const auto& [isa, c] = info.param;
  std::string name = std::string(name_of(isa)) + "_" + std::string(model::name_of(c.weights)) +
                     "_" + std::string(model::name_of(c.activations)) + "_" +
                     std::to_string(c.group);
  for (char& ch : name) {
    if (std::isalnum(static_cast<unsigned char>(ch)) == 0) ch = '_';
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(EveryIsaAndFormat, LinearKernels,
                         testing::Combine(testing::ValuesIn(supported_isas()),
                                          testing::ValuesIn(kCases)),
                         case_name);

}  // namespace
}  // namespace levin::runtime::cpu
