// Byte equality with every published vector. A key of the file that no check knows is a failure, so
// that new vectors cannot be overlooked.
#include "vectors.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <map>
#include <set>

#include "codec/calibration.h"
#include "codec/e2m1.h"
#include "codec/e4m3.h"
#include "codec/fp8.h"
#include "codec/gguf.h"
#include "codec/int4.h"
#include "codec/matrix.h"
#include "codec/modelopt_int4.h"
#include "codec/mx.h"
#include "codec/nvfp4.h"
#include "codec/nvfp4_ct.h"

namespace levin::codec {
namespace {

using nlohmann::json;
using namespace test;

// The case's keys must be exactly these.
void expect_keys(const json& entry, const std::set<std::string>& known) {
  for (const auto& [key, value] : entry.items())
    EXPECT_TRUE(known.count(key)) << "unknown: " << key;
  for (const std::string& key : known) EXPECT_TRUE(entry.contains(key)) << "missing: " << key;
}

uint32_t bits_of(float value) {
  return std::bit_cast<uint32_t>(value);
}

void check_e2m1_decode(const json& entry) {
  ASSERT_EQ(entry.size(), 16U);
  for (std::size_t code = 0; code < 16; ++code) {
    EXPECT_EQ(bits_of(kE2M1Values[code]), bits_of(entry[code].get<float>())) << code;
  }
}

void check_e2m1_encode(const json& entry) {
  for (const auto& pair : entry) {
    const float value = float_of(pair[0]);
    EXPECT_EQ(float_to_e2m1(value), pair[1].get<int>()) << value;
    EXPECT_EQ(encode_e2m1(value), pair[1].get<int>()) << value;
  }
}

void check_e4m3_decode(const json& entry) {
  ASSERT_EQ(entry.size(), 256U);
  for (std::size_t code = 0; code < 256; ++code) {
    const float value = kE4M3Values[code];
    const float readable = e4m3_to_float(static_cast<uint8_t>(code));
    if (entry[code].is_null()) {
      EXPECT_TRUE(std::isnan(value)) << code;
      EXPECT_TRUE(std::isnan(readable)) << code;
    } else {
      EXPECT_EQ(bits_of(value), bits_of(entry[code].get<float>())) << code;
      EXPECT_EQ(bits_of(readable), bits_of(value)) << code;
    }
  }
}

// The third column is PyTorch's cast, which makes NaN above 464; levin always saturates.
void check_e4m3_encode(const json& entry) {
  for (const auto& triple : entry) {
    const float value = float_of(triple[0]);
    EXPECT_EQ(encode_e4m3(value), triple[1].get<int>()) << value;
    EXPECT_EQ(float_to_e4m3(value), triple[1].get<int>()) << value;
    const bool overflows = std::fabs(value) > 464.0F;
    EXPECT_EQ(triple[2].get<int>(), overflows ? (triple[1].get<int>() | 1) : triple[1].get<int>());
  }
}

void check_bf16_encode(const json& entry) {
  for (const auto& pair : entry) {
    EXPECT_EQ(float_to_bf16(float_of(pair[0])),
              std::stoul(pair[1].get<std::string>(), nullptr, 16));
  }
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

void check_nvfp4(const json& entry, Nvfp4Policy policy) {
  const Matrix input = matrix_of(entry["input_bf16"]);
  const Nvfp4Matrix matrix = encode_nvfp4(input.values, input.rows, input.cols, policy);
  EXPECT_EQ(bits_of(matrix.global_scale), bits_of(float_of(entry["weight_scale_2"])));
  EXPECT_EQ(matrix.block_scales, bytes_of_rows(entry["weight_scale"]));
  EXPECT_EQ(matrix.packed, bytes_of_rows(entry["weight"]));
  EXPECT_EQ(bf16_hex(decoded(matrix)), concatenated(entry["dequant_bf16"]));
}

const std::set<std::string> kNvfp4Keys = {"input_bf16", "weight_scale_2", "weight_scale", "weight",
                                          "dequant_bf16"};

void check_max_dynamic(const json& entry) {
  expect_keys(entry, kNvfp4Keys);
  check_nvfp4(entry, Nvfp4Policy::kMaxDynamic);
}

void check_max_static(const json& entry) {
  expect_keys(entry, kNvfp4Keys);
  check_nvfp4(entry, Nvfp4Policy::kMaxStatic);
}

void check_mse_sweep(const json& entry) {
  expect_keys(entry, kNvfp4Keys);
  check_nvfp4(entry, Nvfp4Policy::kMse);
}

// The choice of 6 or 4 shows in the file only as a larger scale; it is recomputed here from the
// bytes: a block whose scale byte times the E2M1 maximum reaches 1.5 times its own maximum chose 4.
void check_four_over_six(const json& entry) {
  auto keys = kNvfp4Keys;
  keys.insert({"max_maps_to", "sse_m6_m4"});
  expect_keys(entry, keys);
  check_nvfp4(entry, Nvfp4Policy::kFourOverSix);
  const Matrix input = matrix_of(entry["input_bf16"]);
  const Nvfp4Matrix matrix =
      encode_nvfp4(input.values, input.rows, input.cols, Nvfp4Policy::kFourOverSix);
  const std::vector<float> values = decoded(matrix);
  for (int64_t row = 0; row < input.rows; ++row) {
    for (int64_t b = 0; b < input.cols / kNvfp4Block; ++b) {
      const auto begin = static_cast<std::size_t>(row * input.cols + b * kNvfp4Block);
      const auto at = begin / kNvfp4Block;
      const float top =
          absolute_max(std::span(input.values).subspan(begin, std::size_t{kNvfp4Block}));
      if (top == 0.0F) continue;
      const float reach = 6.0F * kE4M3Values[matrix.block_scales[at]] * matrix.global_scale;
      const int maps_to = reach > 1.25F * top ? 4 : 6;
      const auto r = static_cast<std::size_t>(row);
      const auto c = static_cast<std::size_t>(b);
      EXPECT_EQ(maps_to, entry["max_maps_to"][r][c].get<int>()) << row << ' ' << b;
      // The error of what was stored is that of the choice, up to the order of float32 operations.
      double error = 0;
      for (std::size_t i = begin; i < begin + kNvfp4Block; ++i) {
        const double difference = double{input.values[i]} - double{values[i]};
        error += difference * difference;
      }
      const double expected = double{float_of(entry["sse_m6_m4"][r][c][maps_to == 4 ? 1 : 0])};
      EXPECT_NEAR(error, expected, 1e-5 * expected + 1e-12) << row << ' ' << b;
    }
  }
}

void check_ct_nvfp4(const json& entry) {
  expect_keys(entry, {"input_bf16", "weight_global_scale", "weight_scale", "weight_packed",
                      "dequant_bf16"});
  const Matrix input = matrix_of(entry["input_bf16"]);
  const float global = ct_nvfp4_global_scale(absolute_max(input.values));
  EXPECT_EQ(bits_of(global), bits_of(float_of(entry["weight_global_scale"])));
  std::vector<uint8_t> packed(input.values.size() / 2);
  std::vector<uint8_t> scales(input.values.size() / kNvfp4Block);
  std::vector<float> values(input.values.size());
  for (int64_t row = 0; row < input.rows; ++row) {
    const auto cols = static_cast<std::size_t>(input.cols);
    uint8_t* codes = packed.data() + row * input.cols / 2;
    uint8_t* row_scales = scales.data() + row * input.cols / kNvfp4Block;
    encode_ct_nvfp4_row(std::span(input.values).subspan(static_cast<std::size_t>(row) * cols, cols),
                        global, codes, row_scales);
    decode_ct_nvfp4_row(codes, row_scales, global, input.cols, values.data() + row * input.cols);
  }
  EXPECT_EQ(scales, bytes_of_rows(entry["weight_scale"]));
  EXPECT_EQ(packed, bytes_of_rows(entry["weight_packed"]));
  EXPECT_EQ(bf16_hex(values), concatenated(entry["dequant_bf16"]));
}

void check_activation(const json& entry) {
  expect_keys(entry, {"input_bf16", "input_scale", "block_scale", "packed"});
  const std::vector<float> x = bf16_row_of(entry["input_bf16"]);
  const float input_scale = float_of(entry["input_scale"]);
  std::vector<uint8_t> packed(x.size() / 2);
  std::vector<uint8_t> scales(x.size() / kNvfp4Block);
  encode_nvfp4_activation(x, input_scale, packed.data(), scales.data());
  EXPECT_EQ(scales, bytes_of(entry["block_scale"]));
  EXPECT_EQ(packed, bytes_of(entry["packed"]));

  // The form that yields values stands for the same codes.
  std::vector<float> from_codes(x.size());
  decode_nvfp4_row(packed.data(), scales.data(), input_scale, static_cast<int64_t>(x.size()),
                   from_codes.data());
  std::vector<float> values(x.size());
  quantize_nvfp4_activation(x, input_scale, values);
  EXPECT_EQ(values, from_codes);
}

void check_fp8_per_tensor(const json& entry) {
  expect_keys(entry, {"input_bf16", "weight_scale", "weight", "weight_fp32_scale_bf16_quotient",
                      "weight_bf16_scale_bf16_quotient", "dequant_bf16"});
  const Matrix input = matrix_of(entry["input_bf16"]);
  const std::map<std::string, Fp8Quotient> variants = {
      {"weight", Fp8Quotient::kExact},
      {"weight_fp32_scale_bf16_quotient", Fp8Quotient::kBf16},
      {"weight_bf16_scale_bf16_quotient", Fp8Quotient::kBf16AndScale}};
  for (const auto& [key, quotient] : variants) {
    const Fp8Matrix matrix =
        encode_fp8(input.values, input.rows, input.cols, Fp8Granularity::kTensor, quotient);
    ASSERT_EQ(matrix.scales.size(), 1U);
    EXPECT_EQ(bits_of(matrix.scales[0]), bits_of(float_of(entry["weight_scale"])));
    EXPECT_EQ(matrix.codes, bytes_of_rows(entry[key])) << key;
    if (quotient != Fp8Quotient::kExact) continue;
    std::vector<float> values(input.values.size());
    decode_fp8_row(matrix.codes.data(), matrix.scales[0], static_cast<int64_t>(values.size()),
                   values.data());
    EXPECT_EQ(bf16_hex(values), concatenated(entry["dequant_bf16"]));
  }
}

void check_fp8_per_channel(const json& entry) {
  expect_keys(entry, {"input_bf16", "weight_scale", "weight"});
  const Matrix input = matrix_of(entry["input_bf16"]);
  const Fp8Matrix matrix =
      encode_fp8(input.values, input.rows, input.cols, Fp8Granularity::kChannel);
  ASSERT_EQ(matrix.scales.size(), entry["weight_scale"].size());
  for (std::size_t row = 0; row < matrix.scales.size(); ++row) {
    EXPECT_EQ(bits_of(matrix.scales[row]), bits_of(float_of(entry["weight_scale"][row])));
  }
  EXPECT_EQ(matrix.codes, bytes_of_rows(entry["weight"]));
}

void check_ct_int4(const json& entry) {
  expect_keys(entry, {"input_bf16", "weight_scale_bf16", "weight_packed_int32", "weight_shape", "q",
                      "dequant_bf16"});
  const Matrix input = matrix_of(entry["input_bf16"]);
  EXPECT_EQ(entry["weight_shape"], json({input.rows, input.cols}));
  const Int4Matrix matrix = encode_int4(input.values, input.rows, input.cols, 64);
  std::vector<int32_t> words;
  for (const auto& row : entry["weight_packed_int32"]) {
    for (const auto& word : row) words.push_back(word.get<int32_t>());
  }
  EXPECT_EQ(matrix.words, words);
  std::vector<float> scales;
  for (const uint16_t scale : matrix.scales) scales.push_back(bf16_to_float(scale));
  EXPECT_EQ(bf16_hex(scales), concatenated(entry["weight_scale_bf16"]));

  std::vector<float> values(input.values.size());
  for (int64_t row = 0; row < input.rows; ++row) {
    decode_int4_row(matrix.words.data() + row * input.cols / 8,
                    matrix.scales.data() + row * input.cols / 64, input.cols, 64,
                    values.data() + row * input.cols);
  }
  EXPECT_EQ(bf16_hex(values), concatenated(entry["dequant_bf16"]));
  for (int64_t i = 0; i < input.rows * input.cols; ++i) {
    const auto word = static_cast<uint32_t>(matrix.words[static_cast<std::size_t>(i / 8)]);
    const int code = static_cast<int>((word >> (4 * (i % 8))) & 0xf) - 8;
    EXPECT_EQ(code, entry["q"][static_cast<std::size_t>(i / input.cols)]
                         [static_cast<std::size_t>(i % input.cols)]
                             .get<int>())
        << i;
  }
}

void check_modelopt_int4(const json& entry) {
  expect_keys(entry, {"input_bf16", "scale", "q", "weight_uint8", "shape"});
  constexpr int64_t kGroup = 4;
  const Matrix input = matrix_of(entry["input_bf16"]);
  EXPECT_EQ(entry["shape"], json({input.rows / 2, input.cols}));
  std::vector<std::vector<int8_t>> codes;
  for (int64_t row = 0; row < input.rows; ++row) {
    const auto cols = static_cast<std::size_t>(input.cols);
    codes.emplace_back(cols);
    std::vector<float> scales(cols / kGroup);
    encode_modelopt_int4_row(
        std::span(input.values).subspan(static_cast<std::size_t>(row) * cols, cols), kGroup,
        codes.back().data(), scales.data());
    const auto r = static_cast<std::size_t>(row);
    const auto expected = entry["scale"][r].get<std::string>();
    for (std::size_t g = 0; g < scales.size(); ++g) {
      EXPECT_EQ(bits_of(scales[g]), bits_of(float_of(expected.substr(8 * g, 8))));
    }
    EXPECT_EQ(json(codes.back()), entry["q"][r]);
  }
  for (std::size_t row = 0; row < codes.size(); row += 2) {
    std::vector<uint8_t> packed(codes[row].size());
    pack_modelopt_int4_rows(codes[row], codes[row + 1], packed.data());
    EXPECT_EQ(packed, bytes_of(entry["weight_uint8"][row / 2]));
  }
}

void check_mxfp4_block(const json& entry) {
  expect_keys(entry, {"input_bf16", "e8m0", "packed_modelopt"});
  const std::vector<float> block = bf16_row_of(entry["input_bf16"]);
  std::vector<uint8_t> packed(block.size() / 2);
  EXPECT_EQ(encode_mxfp4_block(block, packed.data()), entry["e8m0"].get<int>());
  EXPECT_EQ(packed, bytes_of(entry["packed_modelopt"]));
}

void check_mx_exponents(const json& entry) {
  for (const auto& triple : entry) {
    const auto amax = triple[0].get<float>();
    EXPECT_EQ(mx_exponent(amax, kE2M1Max), triple[1].get<int>()) << amax;
    EXPECT_EQ(mx_exponent(amax, kE4M3Max), triple[2].get<int>()) << amax;
  }
}

// The generator of the vectors' random inputs: a linear congruential generator, 12 uniforms summed.
class VectorRandom {
 public:
  explicit VectorRandom(uint64_t seed) : state_(seed) {}
  double normal() {
    double sum = 0;
    for (int i = 0; i < 12; ++i) {
      state_ = state_ * 6364136223846793005ULL + 1442695040888963407ULL;
      sum += static_cast<double>(state_ >> 40) / static_cast<double>(1 << 24);
    }
    return sum - 6.0;
  }

 private:
  uint64_t state_;
};

void expect_headroom(const ActivationStats& stats, const HeadroomOptions& options,
                     const json& expected) {
  expect_keys(expected, {"upper", "anchor", "amax", "input_scale"});
  const Headroom headroom = stats.headroom(options);
  EXPECT_EQ(headroom.upper, expected["upper"].get<double>());
  EXPECT_EQ(headroom.anchor, expected["anchor"].get<double>());
  EXPECT_EQ(headroom.amax, expected["amax"].get<double>());
  EXPECT_FLOAT_EQ(nvfp4_input_scale(headroom.amax), expected["input_scale"].get<float>());
}

void check_act_headroom(const json& entry) {
  expect_keys(entry, {"wide", "narrow_with_outlier", "note"});
  ActivationStats wide;
  VectorRandom random(5);
  for (int i = 0; i < 4000; ++i) wide.add_block(std::pow(2.0, random.normal()));
  expect_headroom(wide, {}, entry["wide"]);

  ActivationStats narrow;
  for (int i = 0; i < 999; ++i) narrow.add_block(1.0);
  narrow.add_block(60000.0);
  HeadroomOptions literal_maximum;
  literal_maximum.upper_percentile = 100;
  expect_headroom(narrow, literal_maximum, entry["narrow_with_outlier"]);
}

void check_gguf(const json& entry) {
  expect_keys(entry, {"nvfp4_from_rows_0_and_2", "input32_bf16", "q8_0", "q4_0"});
  const json& source = quant_vectors()["nvfp4_max_dynamic"];
  const auto both = [&](const char* key) {
    return bytes_of(source[key][0].get<std::string>() + source[key][2].get<std::string>());
  };
  std::vector<uint8_t> nvfp4(kGgufNvfp4Bytes);
  reorder_nvfp4_to_gguf(both("weight").data(), both("weight_scale").data(), nvfp4.data());
  EXPECT_EQ(nvfp4, bytes_of(entry["nvfp4_from_rows_0_and_2"]));

  const std::vector<float> block = bf16_row_of(entry["input32_bf16"]);
  std::vector<uint8_t> q8(kGgufQ8Bytes);
  encode_gguf_q8_0(block, q8.data());
  EXPECT_EQ(q8, bytes_of(entry["q8_0"]));
  std::vector<uint8_t> q4(kGgufQ4Bytes);
  encode_gguf_q4_0(block, q4.data());
  EXPECT_EQ(q4, bytes_of(entry["q4_0"]));
}

const std::map<std::string, std::function<void(const json&)>> kChecks = {
    {"about", [](const json& entry) { EXPECT_TRUE(entry.is_string()); }},
    {"e2m1_decode", check_e2m1_decode},
    {"e2m1_encode", check_e2m1_encode},
    {"e4m3_decode", check_e4m3_decode},
    {"e4m3_encode", check_e4m3_encode},
    {"bf16_encode", check_bf16_encode},
    {"nvfp4_max_dynamic", check_max_dynamic},
    {"nvfp4_max_static", check_max_static},
    {"nvfp4_four_over_six", check_four_over_six},
    {"nvfp4_mse_sweep", check_mse_sweep},
    {"ct_nvfp4", check_ct_nvfp4},
    {"nvfp4_activation", check_activation},
    {"fp8_per_tensor", check_fp8_per_tensor},
    {"fp8_per_channel", check_fp8_per_channel},
    {"ct_int4_g64", check_ct_int4},
    {"modelopt_int4_g4", check_modelopt_int4},
    {"mxfp4_block", check_mxfp4_block},
    {"mx_exponents", check_mx_exponents},
    {"act_headroom", check_act_headroom},
    {"gguf", check_gguf}};

TEST(QuantVectors, EveryEntryOfTheFileIsReproduced) {
  for (const auto& [key, entry] : quant_vectors().items()) {
    SCOPED_TRACE(key);
    const auto check = kChecks.find(key);
    ASSERT_NE(check, kChecks.end()) << "no check for this key";
    check->second(entry);
  }
  for (const auto& [key, check] : kChecks) EXPECT_TRUE(quant_vectors().contains(key)) << key;
}

}  // namespace
}  // namespace levin::codec
