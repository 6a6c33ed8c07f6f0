// Random matrices in every stored format, made with the codecs, for the tests of the CPU kernels.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "codec/fp8.h"
#include "codec/int4.h"
#include "codec/nvfp4.h"
#include "core/small_floats.h"
#include "model/linear.h"

namespace levin::runtime::cpu {

inline std::vector<float> random_floats(std::size_t count, uint32_t seed, float scale = 1.0F) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(0.0F, scale);
  std::vector<float> values(count);
  for (float& v : values) v = normal(engine);
  return values;
}

// A Linear and the bytes it views.
struct OwnedLinear {
  model::Linear linear;
  std::vector<std::byte> weight;
  std::vector<std::byte> scales;

  OwnedLinear() = default;
  OwnedLinear(const OwnedLinear&) = delete;
  OwnedLinear& operator=(const OwnedLinear&) = delete;
  OwnedLinear(OwnedLinear&&) = default;
  OwnedLinear& operator=(OwnedLinear&&) = default;
};

template <typename T>
std::vector<std::byte> bytes_of(const std::vector<T>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

inline OwnedLinear encode_linear(model::WeightFormat format, int64_t out, int64_t in,
                                 const std::vector<float>& weights, int group) {
  using model::WeightFormat;
  OwnedLinear owned;
  model::Linear& linear = owned.linear;
  linear.name = "test";
  linear.format = format;
  linear.out = out;
  linear.in = in;
  const auto convert = [&](auto to) {
    std::vector<uint16_t> bits(weights.size());
    std::transform(weights.begin(), weights.end(), bits.begin(), to);
    owned.weight = bytes_of(bits);
  };
  switch (format) {
    case WeightFormat::kF32:
      owned.weight = bytes_of(weights);
      linear.weight.dtype = DType::kF32;
      break;
    case WeightFormat::kF16:
      convert(float_to_f16);
      linear.weight.dtype = DType::kF16;
      break;
    case WeightFormat::kBf16:
      convert(float_to_bf16);
      linear.weight.dtype = DType::kBF16;
      break;
    case WeightFormat::kFp8: {
      const auto m = codec::encode_fp8(weights, out, in, codec::Fp8Granularity::kTensor);
      owned.weight = bytes_of(m.codes);
      linear.weight.dtype = DType::kF8E4M3;
      linear.global_scale = m.scales[0];
      break;
    }
    case WeightFormat::kFp8Channel: {
      const auto m = codec::encode_fp8(weights, out, in, codec::Fp8Granularity::kChannel);
      owned.weight = bytes_of(m.codes);
      owned.scales = bytes_of(m.scales);
      linear.weight.dtype = DType::kF8E4M3;
      break;
    }
    case WeightFormat::kNvfp4: {
      const auto m = codec::encode_nvfp4(weights, out, in, codec::Nvfp4Policy::kMaxStatic);
      owned.weight = bytes_of(m.packed);
      owned.scales = bytes_of(m.block_scales);
      linear.global_scale = m.global_scale;
      linear.weight.dtype = DType::kU8;
      linear.group_size = 16;
      break;
    }
    case WeightFormat::kInt4: {
      const auto m = codec::encode_int4(weights, out, in, group);
      owned.weight = bytes_of(m.words);
      owned.scales = bytes_of(m.scales);
      linear.weight.dtype = DType::kI32;
      linear.group_size = group;
      break;
    }
  }
  linear.weight.bytes = owned.weight;
  linear.scales.bytes = owned.scales;
  return owned;
}

inline OwnedLinear random_linear(model::WeightFormat format, int64_t out, int64_t in, uint32_t seed,
                                 int group = 32) {
  const auto weights = random_floats(static_cast<std::size_t>(out * in), seed,
                                     1.0F / std::sqrt(static_cast<float>(in)));
  return encode_linear(format, out, in, weights, group);
}

}  // namespace levin::runtime::cpu
