// The kernels of every instruction set, other than the linear ones, against plain double precision.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "codec/fp8.h"
#include "codec/nvfp4.h"
#include "core/small_floats.h"
#include "runtime/cpu/arena.h"
#include "runtime/cpu/isa.h"
#include "runtime/cpu/layout.h"
#include "runtime/cpu_random_linear.h"
#include "runtime/ssm_rounding.h"

namespace levin::runtime::cpu {
namespace {

std::string isa_name(const testing::TestParamInfo<Isa>& info) {
  std::string name(name_of(info.param));
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

class CpuKernels : public testing::TestWithParam<Isa> {
 protected:
  const Kernels& k() const { return kernels(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(EveryIsa, CpuKernels, testing::ValuesIn(supported_isas()), isa_name);

double relative(double got, double want) {
  return want == 0 ? std::fabs(got) : std::fabs(got / want - 1);
}

// A few units in the last place.
constexpr double kUlps = 8 * 0x1p-24;

TEST_P(CpuKernels, SigmoidIsAccurate) {
  std::vector<float> x = random_floats(1000, 1, 10.0F);
  for (const float edge : {0.0F, -0.0F, 88.0F, -87.0F, 1e-30F, 50.0F}) x.push_back(edge);
  std::vector<float> y(x.size());
  k().sigmoid(x.data(), static_cast<int64_t>(x.size()), y.data());
  for (std::size_t i = 0; i < x.size(); ++i) {
    EXPECT_LT(relative(y[i], 1 / (1 + std::exp(-double{x[i]}))), kUlps) << x[i];
  }
  const std::vector<float> extreme = {-200.0F, 200.0F, -std::numeric_limits<float>::infinity(),
                                      std::numeric_limits<float>::infinity()};
  k().sigmoid(extreme.data(), 4, y.data());
  EXPECT_EQ(y[0], 0.0F);
  EXPECT_EQ(y[1], 1.0F);
  EXPECT_EQ(y[2], 0.0F);
  EXPECT_EQ(y[3], 1.0F);
}

// softplus(-20) must be about 2e-9, not zero and not the least step of some clamp.
TEST_P(CpuKernels, StepSizesAreAccurateWhereTheyAreTiny) {
  std::vector<float> raw = random_floats(300, 2, 12.0F);
  for (const float edge : {-20.0F, -80.0F, 0.0F, 20.0F, 21.0F, 90.0F, 300.0F}) raw.push_back(edge);
  const std::vector<float> bias = random_floats(raw.size(), 3, 0.5F);
  std::vector<float> a = random_floats(raw.size(), 4);
  for (float& v : a) v = -std::fabs(v);
  std::vector<float> dt(raw.size());
  std::vector<float> decay(raw.size());
  const float infinity = std::numeric_limits<float>::infinity();
  k().ssm_dt(raw.data(), bias.data(), a.data(), static_cast<int64_t>(raw.size()), 0.0F, infinity,
             dt.data(), decay.data());
  for (std::size_t i = 0; i < raw.size(); ++i) {
    const double sum = raw[i] + bias[i];  // rounded to float as the kernel rounds it
    const double want = std::log1p(std::exp(-std::fabs(sum))) + std::max(sum, 0.0);
    EXPECT_LT(relative(dt[i], want), kUlps) << sum;
    // The argument of exp carries a relative error of 2^-24 and more the larger it is.
    const double exponent = want * a[i];
    if (exponent > -80) {
      EXPECT_LT(relative(decay[i], std::exp(exponent)), kUlps * (1 + std::fabs(exponent)));
    }
  }
  k().ssm_dt(raw.data(), bias.data(), a.data(), static_cast<int64_t>(raw.size()), 0.5F, 2.0F,
             dt.data(), decay.data());
  for (const float step : dt) {
    EXPECT_GE(step, 0.5F);
    EXPECT_LE(step, 2.0F);
  }
}

TEST_P(CpuKernels, NormsMatchTheirDefinition) {
  for (const int64_t count : {1, 15, 16, 40, 259}) {
    const auto n = static_cast<std::size_t>(count);
    const auto x = random_floats(n, 5, 3.0F);
    const auto weight = random_floats(n, 6);
    std::vector<float> out(n + 1, 7.0F);
    k().rms_norm(x.data(), weight.data(), count, 1e-5F, out.data());
    double squares = 0;
    for (const float v : x) squares += double{v} * v;
    const double rms = std::sqrt(squares / static_cast<double>(count) + 1e-5);
    for (std::size_t i = 0; i < n; ++i) {
      EXPECT_LT(relative(out[i], x[i] / rms * weight[i]), 4 * kUlps);
    }
    EXPECT_EQ(out[n], 7.0F) << "wrote beyond the row";
    std::vector<float> in_place = x;
    k().rms_norm(in_place.data(), weight.data(), count, 1e-5F, in_place.data());
    EXPECT_TRUE(std::equal(in_place.begin(), in_place.end(), out.begin()));
  }
}

TEST_P(CpuKernels, GatedNormGatesFirstAndNormsByGroup) {
  const int64_t group = 24;
  const int64_t count = 3 * group;
  const auto y = random_floats(72, 7, 2.0F);
  const auto z = random_floats(72, 8, 2.0F);
  const auto weight = random_floats(72, 9);
  std::vector<float> out(72);
  k().gated_norm(y.data(), z.data(), weight.data(), count, group, 1e-5F, out.data());
  for (int64_t g = 0; g < 3; ++g) {
    std::vector<double> gated;
    double squares = 0;
    for (int64_t i = g * group; i < (g + 1) * group; ++i) {
      const auto at = static_cast<std::size_t>(i);
      gated.push_back(y[at] * (z[at] / (1 + std::exp(-double{z[at]}))));
      squares += gated.back() * gated.back();
    }
    const double rms = std::sqrt(squares / static_cast<double>(group) + 1e-5);
    for (int64_t i = 0; i < group; ++i) {
      const auto at = static_cast<std::size_t>(g * group + i);
      EXPECT_LT(relative(out[at], gated[static_cast<std::size_t>(i)] / rms * weight[at]),
                4 * kUlps);
    }
  }
}

TEST_P(CpuKernels, ArgmaxIsTheFirstLargest) {
  auto x = random_floats(1001, 10);
  const auto expect_same = [&](int64_t count) {
    const auto want = std::max_element(x.begin(), x.begin() + count) - x.begin();
    EXPECT_EQ(k().argmax(x.data(), count), want) << count;
  };
  for (const int64_t count : {1, 2, 15, 16, 17, 100, 1001}) expect_same(count);
  x[900] = x[333] = x[334] = x[20] = 9.0F;  // ties
  expect_same(1001);
  std::fill(x.begin(), x.end(), -std::numeric_limits<float>::infinity());
  EXPECT_EQ(k().argmax(x.data(), 1001), 0);
}

TEST_P(CpuKernels, ConvolutionLooksBack) {
  const int64_t channels = 21;
  const int64_t taps = 4;
  std::vector<std::vector<float>> inputs;
  std::vector<const float*> rows;
  for (int64_t i = 0; i < taps; ++i) {
    inputs.push_back(random_floats(21, static_cast<uint32_t>(20 + i)));
  }
  for (const auto& input : inputs) rows.push_back(input.data());
  const auto weight = random_floats(static_cast<std::size_t>(taps * channels), 30);
  const auto bias = random_floats(21, 31);
  std::vector<float> out(22, 5.0F);
  k().conv({channels, taps, rows.data(), weight.data(), channels, bias.data(), out.data()});
  for (std::size_t c = 0; c < 21; ++c) {
    double sum = bias[c];
    for (std::size_t t = 0; t < 4; ++t) sum += double{weight[t * 21 + c]} * inputs[t][c];
    EXPECT_NEAR(out[c], sum / (1 + std::exp(-sum)), 1e-6);
  }
  EXPECT_EQ(out[21], 5.0F);
}

// --- packing ---

// Value `k` of token `t` in a tile of `tokens`.
float packed_value(const void* tile, PackAs as, int64_t tokens, int64_t t, int64_t k) {
  const int64_t at = (k / kBlock * tokens + t) * kBlock + k % kBlock;
  if (as == PackAs::kF32) return static_cast<const float*>(tile)[at];
  return bf16_to_float(static_cast<const uint16_t*>(tile)[at]);
}

TEST_P(CpuKernels, PackingQuantizesAsTheCodecsDo) {
  for (const PackAs as :
       {PackAs::kBf16, PackAs::kF32, PackAs::kFp8Static, PackAs::kFp8PerToken, PackAs::kNvfp4}) {
    for (const int64_t tokens : {1, 3, 8}) {
      for (const int64_t columns : {16, 48, 80, 256}) {
        const auto n = static_cast<std::size_t>(columns);
        auto x = random_floats(static_cast<std::size_t>(tokens) * n, 40, 4.0F);
        std::fill_n(x.begin(), 16, 0.0F);                             // a block of zeros
        for (std::size_t i = 0; i < 16; ++i) x[n - 16 + i] *= 1e-6F;  // and a tiny one
        x[n / 2] = 1e4F;                                              // and one that clips
        const float input_scale = 1.0F / 300;
        std::vector<const float*> rows;
        for (int64_t t = 0; t < tokens; ++t) rows.push_back(x.data() + t * columns);
        std::vector<float> tile(static_cast<std::size_t>(round_up(columns, kBlock) * tokens), 1.0F);
        std::vector<float> scales(static_cast<std::size_t>(tokens));
        k().pack(rows.data(), tokens, columns, as, /*digits=*/0, input_scale, tile.data(),
                 scales.data());
        for (int64_t t = 0; t < tokens; ++t) {
          const std::span<const float> row(rows[static_cast<std::size_t>(t)], n);
          std::vector<float> want(row.begin(), row.end());
          float scale = 1.0F;
          if (as == PackAs::kBf16) {
            for (float& v : want) v = round_to_bf16(v);
          } else if (as == PackAs::kFp8Static) {
            scale = input_scale;
            codec::quantize_fp8_activation(row, input_scale, want);
          } else if (as == PackAs::kFp8PerToken) {
            scale = codec::quantize_fp8_activation_per_token(row, want);
          } else if (as == PackAs::kNvfp4) {
            scale = input_scale;
            codec::quantize_nvfp4_activation(row, input_scale, want);
          }
          ASSERT_EQ(scales[static_cast<std::size_t>(t)], scale);
          for (int64_t c = 0; c < columns; ++c) {
            // The codec multiplies code, block scale and input scale in another order.
            const float got = packed_value(tile.data(), as, tokens, t, c) * scale;
            const float expected = want[static_cast<std::size_t>(c)];
            ASSERT_LE(std::fabs(got - expected), std::fabs(expected) * 0x1p-22F)
                << static_cast<int>(as) << " column " << c;
          }
          for (int64_t c = columns; c < round_up(columns, kBlock); ++c) {
            ASSERT_EQ(packed_value(tile.data(), as, tokens, t, c), 0.0F);
          }
        }
      }
    }
  }
}

// What the halves of a tile of `tokens` hold of token `t`, in the order of columns; checks offsets.
template <int digits>
std::vector<float> packed_integers(const void* tile, int64_t tokens, int64_t t, int64_t columns) {
  std::vector<float> values(static_cast<std::size_t>(round_up(columns, kBlock)));
  const auto* halves = static_cast<const IntegerHalf<digits>*>(tile);
  for (int64_t half = 0; half < round_up(columns, kBlock) / kScaleBlock; ++half) {
    const IntegerHalf<digits>& from = halves[(half / 2 * tokens + t) * 2 + half % 2];
    int32_t sum = 0;
    for (std::size_t i = 0; i < kScaleBlock; ++i) {
      int32_t q = 0;
      for (int d = 0; d < digits; ++d) q = 256 * q + from.digits[d][i];
      sum += q;
      const auto column = static_cast<std::size_t>(half * kScaleBlock) + kIntegerColumns[i];
      values[column] = static_cast<float>(q) * from.scale;
    }
    EXPECT_EQ(from.offset, -kWeightOffset * sum);
  }
  return values;
}

TEST_P(CpuKernels, PackingAsIntegersIsFinerThanBf16AndExactForE2m1) {
  if (!k().integer_products) GTEST_SKIP() << "this instruction set has no integer products";
  const float input_scale = 1.0F / 300;
  for (const int64_t tokens : {1, 3, 8}) {
    for (const int64_t columns : {16, 48, 80, 256}) {
      const auto n = static_cast<std::size_t>(columns);
      auto x = random_floats(static_cast<std::size_t>(tokens) * n, 41, 4.0F);
      std::fill_n(x.begin(), 16, 0.0F);
      for (std::size_t i = 0; i < 16; ++i) x[n - 16 + i] *= 1e-6F;
      x[n / 2] = 1e4F;
      x[n / 2 + 1] = -0x1.fffffep13F;  // as near to the end of the digits as can be
      std::vector<const float*> rows;
      for (int64_t t = 0; t < tokens; ++t) rows.push_back(x.data() + t * columns);
      std::vector<float> tile(static_cast<std::size_t>(2 * round_up(columns, kBlock) * tokens));
      std::vector<float> scales(static_cast<std::size_t>(tokens));
      k().pack(rows.data(), tokens, columns, PackAs::kBf16, 2, 1.0F, tile.data(), scales.data());
      for (int64_t t = 0; t < tokens; ++t) {
        const std::span<const float> row(rows[static_cast<std::size_t>(t)], n);
        const auto got = packed_integers<2>(tile.data(), tokens, t, columns);
        for (std::size_t c = 0; c < got.size(); ++c) {
          float largest = 0;
          for (std::size_t i = c / 16 * 16; i < std::min(c / 16 * 16 + 16, n); ++i) {
            largest = std::max(largest, std::fabs(row[i]));
          }
          ASSERT_LE(std::fabs(got[c] - (c < n ? row[c] : 0.0F)), 0x1p-15F * largest) << c;
        }
      }
      k().pack(rows.data(), tokens, columns, PackAs::kNvfp4, 1, input_scale, tile.data(),
               scales.data());
      for (int64_t t = 0; t < tokens; ++t) {
        const std::span<const float> row(rows[static_cast<std::size_t>(t)], n);
        std::vector<float> want(n);
        codec::quantize_nvfp4_activation(row, input_scale, want);
        const auto got = packed_integers<1>(tile.data(), tokens, t, columns);
        for (std::size_t c = 0; c < n; ++c) {
          ASSERT_LE(std::fabs(got[c] * input_scale - want[c]), std::fabs(want[c]) * 0x1p-22F) << c;
        }
      }
    }
  }
}

// --- the recurrence ---

struct HeadInputs {
  std::vector<float> decay;
  std::vector<std::vector<float>> dt_x, b, c, skip;
};

// Runs `steps` tokens in calls of `outputs` tokens, the first `replay` of them without output.
struct SsmResult {
  std::vector<float> y;
  std::vector<float> replayed;
  std::vector<float> state;
};

class Recurrence {
 public:
  Recurrence(int64_t head_dim, int64_t state, int64_t steps)
      : head_dim_(head_dim), state_(state), steps_(steps) {
    const auto padded = static_cast<std::size_t>(round_up(head_dim, kLanes));
    for (int64_t t = 0; t < steps; ++t) {
      const auto seed = static_cast<uint32_t>(100 + 10 * t);
      inputs_.decay.push_back(0.9F + 0.01F * static_cast<float>(t % 7));
      inputs_.dt_x.push_back(random_floats(padded, seed));
      inputs_.b.push_back(random_floats(static_cast<std::size_t>(state), seed + 1));
      inputs_.c.push_back(random_floats(static_cast<std::size_t>(state), seed + 2));
      inputs_.skip.push_back(random_floats(padded, seed + 3));
    }
  }

  SsmResult run(const Kernels& k, const Options& options, int64_t replay, int64_t per_call) const {
    const bool f32 = options.ssm_cache_dtype == SsmCacheDType::kF32;
    const auto cells = static_cast<std::size_t>(state_ * round_up(head_dim_, kLanes));
    std::vector<float> memory(cells);
    std::vector<float> kept(cells);
    SsmResult result;
    result.y.resize(static_cast<std::size_t>((steps_ - replay) * head_dim_));
    std::vector<SsmStep> steps(static_cast<std::size_t>(steps_));
    for (int64_t t = 0; t < steps_; ++t) {
      const auto i = static_cast<std::size_t>(t);
      steps[i] = {inputs_.decay[i],
                  inputs_.dt_x[i].data(),
                  inputs_.b[i].data(),
                  inputs_.c[i].data(),
                  inputs_.skip[i].data(),
                  t < replay ? nullptr : result.y.data() + (t - replay) * head_dim_,
                  uint64_t{3} << 32 | static_cast<uint32_t>(t)};
    }
    SsmCall call;
    call.head_dim = head_dim_;
    call.state = state_;
    call.rounding = f32                           ? SsmRounding::kNone
                    : options.stochastic_rounding ? SsmRounding::kStochastic
                                                  : SsmRounding::kNearest;
    call.philox_rounds = options.philox_rounds;
    call.seed = options.seed;
    call.first_element = kFirstElement;
    call.replay = replay;
    for (int64_t t = 0; t < steps_;) {
      call.in = t == 0 ? nullptr : memory.data();
      call.outputs = std::min(per_call, steps_ - t - call.replay);
      call.steps = steps.data() + t;
      call.replayed = call.replay > 0 ? kept.data() : nullptr;
      call.out = memory.data();
      k.ssm(call);
      t += call.replay + call.outputs;
      call.replay = 0;
    }
    result.state = unpack(memory, f32);
    result.replayed = unpack(kept, f32);
    return result;
  }

  // Straight from the definition, in float32 steps as the state is, sums in double.
  SsmResult expected(const Options& options, int64_t replay) const {
    SsmResult result;
    result.state.resize(static_cast<std::size_t>(head_dim_ * state_));
    for (int64_t t = 0; t < steps_; ++t) {
      const auto i = static_cast<std::size_t>(t);
      for (int64_t p = 0; p < head_dim_; ++p) {
        double sum = 0;
        for (int64_t n = 0; n < state_; ++n) {
          float& s = result.state[static_cast<std::size_t>(p * state_ + n)];
          const float input = inputs_.dt_x[i][static_cast<std::size_t>(p)] *
                              inputs_.b[i][static_cast<std::size_t>(n)];
          s = static_cast<float>(double{s} * inputs_.decay[i] + input);
          sum += double{s} * inputs_.c[i][static_cast<std::size_t>(n)];
        }
        sum += inputs_.skip[i][static_cast<std::size_t>(p)];
        if (t >= replay) result.y.push_back(static_cast<float>(sum));
      }
      round_ssm_state(result.state, options, 3, t, static_cast<int64_t>(kFirstElement));
    }
    return result;
  }

 private:
  static constexpr uint64_t kFirstElement = 4096;

  // [state][head_dim padded] to [head_dim][state].
  std::vector<float> unpack(const std::vector<float>& cells, bool f32) const {
    const int64_t stride = round_up(head_dim_, kLanes);
    std::vector<float> out;
    for (int64_t p = 0; p < head_dim_; ++p) {
      for (int64_t n = 0; n < state_; ++n) {
        const int64_t at = n * stride + p;
        out.push_back(f32 ? cells[static_cast<std::size_t>(at)]
                          : f16_to_float(reinterpret_cast<const uint16_t*>(cells.data())[at]));
      }
    }
    return out;
  }

  int64_t head_dim_, state_, steps_;
  HeadInputs inputs_;
};

std::vector<Options> ssm_options() {
  Options f32;
  Options nearest;
  nearest.ssm_cache_dtype = SsmCacheDType::kF16;
  Options stochastic = nearest;
  stochastic.stochastic_rounding = true;
  stochastic.seed = 0x123456789abcdefULL;
  Options five = stochastic;
  five.philox_rounds = 5;
  return {f32, nearest, stochastic, five};
}

TEST_P(CpuKernels, RecurrenceMatchesItsDefinition) {
  for (const Options& options : ssm_options()) {
    const bool f32 = options.ssm_cache_dtype == SsmCacheDType::kF32;
    for (const int64_t head_dim : {8, 16, 64, 80}) {
      const Recurrence recurrence(head_dim, 24, 9);
      const SsmResult want = recurrence.expected(options, 0);
      const SsmResult got = recurrence.run(k(), options, 0, 4);
      // Without fused multiply-add the state can differ by a rounding, which an F16 cache may turn
      // into one of its own: 2^-11 of values of a few units.
      const double tolerance = f32 ? 2e-5 : 2e-2;
      double worst = 0;
      std::size_t different = 0;
      for (std::size_t i = 0; i < want.state.size(); ++i) {
        worst = std::max(worst, std::fabs(double{want.state[i]} - got.state[i]));
        different += want.state[i] != got.state[i] ? 1 : 0;
      }
      EXPECT_LT(worst, tolerance);
      if (!f32) {
        // Nearly all roundings are the same: the random bits are the right ones.
        EXPECT_LT(different, want.state.size() / 50);
      }
      for (std::size_t i = 0; i < want.y.size(); ++i) {
        ASSERT_NEAR(want.y[i], got.y[i], 10 * tolerance);
      }
    }
  }
}

TEST_P(CpuKernels, RecurrenceGivesTheSameBitsHoweverItIsCut) {
  for (const Options& options : ssm_options()) {
    const Recurrence recurrence(64, 16, 9);
    const SsmResult whole = recurrence.run(k(), options, 0, 4);
    for (const int64_t per_call : {1, 2, 3}) {
      const SsmResult cut = recurrence.run(k(), options, 0, per_call);
      EXPECT_EQ(whole.y, cut.y);
      EXPECT_EQ(whole.state, cut.state);
    }
    for (const int64_t replay : {1, 4, 7}) {
      const SsmResult replayed = recurrence.run(k(), options, replay, 2);
      EXPECT_EQ(whole.state, replayed.state);
      EXPECT_TRUE(std::equal(replayed.y.begin(), replayed.y.end(), whole.y.begin() + replay * 64));
      EXPECT_EQ(Recurrence(64, 16, replay).run(k(), options, 0, 4).state, replayed.replayed);
    }
  }
}

// --- attention ---

struct Cache {
  KvFormat format;
  int64_t head_dim;
  int64_t element_bytes;
  Arena arena;
  uint8_t* data = nullptr;
  std::vector<float> keys, values;  // as the cache holds them, [positions][head_dim]

  Cache(KvFormat kv_format, int64_t dim, int64_t positions)
      : format(kv_format),
        head_dim(dim),
        element_bytes(kv_format == KvFormat::kF32    ? 4
                      : kv_format == KvFormat::kBf16 ? 2
                                                     : 1) {
    Layout layout;
    layout.add(data, (positions / kKeyBlock + 1) * kv_block_bytes(dim, element_bytes));
    arena = layout.allocate();
    const auto count = static_cast<std::size_t>(positions * dim);
    keys = random_floats(count, 60, 1.5F);
    values = random_floats(count, 61, 2.0F);
    for (int64_t p = 0; p < positions; ++p) {
      for (int64_t d = 0; d < dim; ++d) put(p, d);
    }
  }

  void put(int64_t position, int64_t d) {
    const int64_t columns = round_up(head_dim, kBlock);
    const int64_t p = position % kKeyBlock;
    uint8_t* block = data + position / kKeyBlock * kv_block_bytes(head_dim, element_bytes);
    uint8_t* key = block + p / kLanes * kLanes * columns * element_bytes;
    uint8_t* value =
        block + (kKeyBlock * columns + d / kLanes * kLanes * kKeyBlock) * element_bytes;
    write(key, p % kLanes, d, keys[static_cast<std::size_t>(position * head_dim + d)]);
    write(value, d % kLanes, p, values[static_cast<std::size_t>(position * head_dim + d)]);
  }

  // Writes an element and replaces it by what was written.
  void write(uint8_t* panel, int64_t lane, int64_t column, float& x) const {
    if (format == KvFormat::kF32) {
      reinterpret_cast<float*>(panel)[f32_element(lane, column)] = x;
    } else if (format == KvFormat::kBf16) {
      const uint16_t bits = float_to_bf16(x);
      reinterpret_cast<uint16_t*>(panel)[bf16_element(lane, column)] = bits;
      x = bf16_to_float(bits);
    } else {
      const uint8_t code = float_to_e4m3(x);
      panel[fp8_element(lane, column)] = code;
      x = e4m3_to_float(code);
    }
  }

  // softmax(scale q k) v of the first `length` positions, in double precision.
  std::vector<double> expected(std::span<const float> q, int64_t length, double scale) const {
    std::vector<double> weights;
    double peak = -1e300;
    for (int64_t p = 0; p < length; ++p) {
      double score = 0;
      for (int64_t d = 0; d < head_dim; ++d) {
        score += double{q[static_cast<std::size_t>(d)]} *
                 keys[static_cast<std::size_t>(p * head_dim + d)];
      }
      weights.push_back(score * scale);
      peak = std::max(peak, weights.back());
    }
    double sum = 0;
    for (double& w : weights) sum += w = std::exp(w - peak);
    std::vector<double> out(static_cast<std::size_t>(head_dim));
    for (int64_t p = 0; p < length; ++p) {
      for (std::size_t d = 0; d < out.size(); ++d) {
        out[d] += weights[static_cast<std::size_t>(p)] / sum *
                  values[static_cast<std::size_t>(p * head_dim) + d];
      }
    }
    return out;
  }
};

std::vector<float> attend(const Kernels& k, const Cache& cache, std::span<const float> q,
                          int64_t heads, int64_t length, float scale) {
  Layout layout;
  float* work = nullptr;
  layout.add(work, attend_work_floats(heads, cache.head_dim));
  const Arena arena = layout.allocate();
  std::vector<float> out(static_cast<std::size_t>(heads * cache.head_dim));
  AttendCall call;
  call.format = cache.format;
  call.heads = heads;
  call.head_dim = cache.head_dim;
  call.length = length;
  call.cache = cache.data;
  call.q = q.data();
  call.out = out.data();
  call.score_scale = scale;
  call.work = work;
  k.attend(call);
  return out;
}

TEST_P(CpuKernels, AttentionMatchesItsDefinition) {
  for (const KvFormat format : {KvFormat::kF32, KvFormat::kBf16, KvFormat::kFp8}) {
    for (const int64_t head_dim : {8, 40, 64, 128}) {
      for (const int64_t heads : {1, 4, 11, 16}) {
        const auto dim = static_cast<std::size_t>(head_dim);
        const Cache cache(format, head_dim, 200);
        const auto q = random_floats(static_cast<std::size_t>(heads) * dim, 70, 1.5F);
        const float scale = 1.0F / std::sqrt(static_cast<float>(head_dim));
        for (const int64_t length : {1, 2, 15, 16, 63, 64, 65, 130, 200}) {
          const auto got = attend(k(), cache, q, heads, length, scale);
          for (int64_t head = 0; head < heads; ++head) {
            const auto query = std::span(q).subspan(static_cast<std::size_t>(head) * dim, dim);
            const auto want = cache.expected(query, length, scale);
            for (std::size_t d = 0; d < dim; ++d) {
              // Queries and weights are BF16 where the cache is not float32. Rounding q moves a
              // score by at most 2^-9 sum |q k| scale, of which the terms' random signs leave about
              // 1 / sqrt(dim): 2^-9 * 1.5 * 1.5 in the mean, five times that at worst; a weight
              // moves by as much and by 2^-9 of itself; values are below 10.
              const double tolerance = format == KvFormat::kF32 ? 2e-5 : 0.08;
              ASSERT_NEAR(got[static_cast<std::size_t>(head) * dim + d], want[d], tolerance)
                  << "length " << length << ", head " << head << ", d " << d;
            }
          }
        }
      }
    }
  }
}

// What lies in the cache beyond the length must not matter, NaN in keys included.
TEST_P(CpuKernels, AttentionIgnoresWhatComesLater) {
  for (const KvFormat format : {KvFormat::kF32, KvFormat::kBf16, KvFormat::kFp8}) {
    Cache cache(format, 64, 128);
    const auto q = random_floats(4 * 64, 71);
    std::vector<std::vector<float>> before;
    for (const int64_t length : {1, 17, 64, 100}) {
      before.push_back(attend(k(), cache, q, 4, length, 0.125F));
    }
    std::size_t i = 0;
    for (const int64_t length : {1, 17, 64, 100}) {
      Cache changed(format, 64, 128);
      for (int64_t p = length; p < 128; ++p) {
        for (int64_t d = 0; d < 64; ++d) {
          const auto at = static_cast<std::size_t>(p * 64 + d);
          changed.keys[at] = std::numeric_limits<float>::quiet_NaN();
          changed.values[at] = 1e4F;
          changed.put(p, d);
        }
      }
      EXPECT_EQ(attend(k(), changed, q, 4, length, 0.125F), before[i++]) << length;
    }
  }
}

}  // namespace
}  // namespace levin::runtime::cpu
