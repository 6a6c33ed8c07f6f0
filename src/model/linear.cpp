#include "model/linear.h"

#include <cstring>

#include "codec/fp8.h"
#include "codec/int4.h"
#include "codec/nvfp4.h"
#include "core/error.h"
#include "core/small_floats.h"

namespace levin::model {
namespace {

template <typename T>
const T* row_of(const TensorView& tensor, int64_t row, int64_t columns) {
  return tensor.as<T>().data() + row * columns;
}

}  // namespace

std::string_view name_of(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32:
      return "F32";
    case WeightFormat::kF16:
      return "F16";
    case WeightFormat::kBf16:
      return "BF16";
    case WeightFormat::kFp8:
      return "FP8";
    case WeightFormat::kFp8Channel:
      return "FP8 per channel";
    case WeightFormat::kNvfp4:
      return "NVFP4";
    case WeightFormat::kInt4:
      return "INT4";
  }
  return "?";
}

std::string_view name_of(ActivationFormat format) {
  switch (format) {
    case ActivationFormat::kNone:
      return "none";
    case ActivationFormat::kFp8Static:
      return "FP8 static";
    case ActivationFormat::kFp8PerToken:
      return "FP8 per token";
    case ActivationFormat::kNvfp4:
      return "NVFP4";
  }
  return "?";
}

double bits_per_weight(WeightFormat format, int group_size) {
  const auto per_group = [&](double bits) { return group_size > 0 ? bits / group_size : 0.0; };
  switch (format) {
    case WeightFormat::kF32:
      return 32;
    case WeightFormat::kF16:
    case WeightFormat::kBf16:
      return 16;
    case WeightFormat::kFp8:
    case WeightFormat::kFp8Channel:
      return 8;
    case WeightFormat::kNvfp4:
      return 4 + per_group(8);
    case WeightFormat::kInt4:
      return 4 + per_group(16);
  }
  return 0;
}

void dequantize_row(const Linear& linear, int64_t row, std::span<float> out) {
  const int64_t in = linear.in;
  const auto widen = [&]<typename T>(const T* values, auto&& to_float) {
    for (int64_t i = 0; i < in; ++i) out[static_cast<std::size_t>(i)] = to_float(values[i]);
  };
  switch (linear.format) {
    case WeightFormat::kF32:
      return widen(row_of<float>(linear.weight, row, in), [](float v) { return v; });
    case WeightFormat::kF16:
      return widen(row_of<uint16_t>(linear.weight, row, in), f16_to_float);
    case WeightFormat::kBf16:
      return widen(row_of<uint16_t>(linear.weight, row, in), bf16_to_float);
    case WeightFormat::kFp8:
      return codec::decode_fp8_row(row_of<uint8_t>(linear.weight, row, in), linear.global_scale, in,
                                   out.data());
    case WeightFormat::kFp8Channel:
      return codec::decode_fp8_row(row_of<uint8_t>(linear.weight, row, in),
                                   linear.scales.as<float>()[static_cast<std::size_t>(row)], in,
                                   out.data());
    case WeightFormat::kNvfp4:
      return codec::decode_nvfp4_row(row_of<uint8_t>(linear.weight, row, in / 2),
                                     row_of<uint8_t>(linear.scales, row, in / linear.group_size),
                                     linear.global_scale, in, out.data());
    case WeightFormat::kInt4:
      return codec::decode_int4_row(row_of<int32_t>(linear.weight, row, in / 8),
                                    row_of<uint16_t>(linear.scales, row, in / linear.group_size),
                                    in, linear.group_size, out.data());
  }
}

std::vector<float> dequantize(const Linear& linear) {
  std::vector<float> weights(static_cast<std::size_t>(linear.out * linear.in));
  for (int64_t row = 0; row < linear.out; ++row) {
    dequantize_row(linear, row,
                   std::span(weights).subspan(static_cast<std::size_t>(row * linear.in),
                                              static_cast<std::size_t>(linear.in)));
  }
  return weights;
}

}  // namespace levin::model
