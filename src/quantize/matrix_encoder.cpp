#include "quantize/matrix_encoder.h"

#include "codec/fp8.h"
#include "codec/int4.h"
#include "codec/matrix.h"
#include "core/small_floats.h"

namespace levin::quantize {
namespace {

using checkpoint::QuantAlgo;

uint8_t* u8(std::byte* bytes) {
  return reinterpret_cast<uint8_t*>(bytes);
}
const uint8_t* u8(const std::byte* bytes) {
  return reinterpret_cast<const uint8_t*>(bytes);
}

}  // namespace

void widen_row(const TensorView& matrix, int64_t row, std::span<float> out) {
  const auto width = out.size();
  const std::size_t begin = static_cast<std::size_t>(row) * width;
  if (matrix.dtype == DType::kF32) {
    const auto values = matrix.as<float>().subspan(begin, width);
    std::copy(values.begin(), values.end(), out.begin());
    return;
  }
  const auto values = matrix.as<uint16_t>().subspan(begin, width);
  if (matrix.dtype == DType::kF16) {
    for (std::size_t i = 0; i < width; ++i) out[i] = f16_to_float(values[i]);
  } else {
    for (std::size_t i = 0; i < width; ++i) out[i] = bf16_to_float(values[i]);
  }
}

MatrixEncoder::MatrixEncoder(const LinearPlan& linear, int64_t width, float amax)
    : quant_(linear.quant), policy_(linear.policy), amax_(amax) {
  switch (quant_.algo) {
    case QuantAlgo::kNvfp4:
    case QuantAlgo::kW4A16Nvfp4:
      global_scale_ = codec::nvfp4_global_scale(policy_, amax);
      code_bytes_ = width / 2;
      scale_bytes_ = width / codec::kNvfp4Block;
      break;
    case QuantAlgo::kFp8:
      global_scale_ = codec::fp8_scale(amax);
      code_bytes_ = width;
      break;
    case QuantAlgo::kFp8PerChannelPerToken:
      code_bytes_ = width;
      scale_bytes_ = sizeof(float);
      break;
    case QuantAlgo::kInt4Packed:
      code_bytes_ = width / 2;
      scale_bytes_ = width / quant_.group_size * static_cast<int64_t>(sizeof(uint16_t));
      break;
    case QuantAlgo::kNone:
      break;
  }
}

void MatrixEncoder::encode(std::span<const float> row, std::byte* codes, std::byte* scales) const {
  switch (quant_.algo) {
    case QuantAlgo::kNvfp4:
    case QuantAlgo::kW4A16Nvfp4:
      return codec::encode_nvfp4_row(row, policy_, amax_, u8(codes), u8(scales));
    case QuantAlgo::kFp8:
      return codec::encode_fp8_row(row, global_scale_, codec::Fp8Quotient::kExact, u8(codes));
    case QuantAlgo::kFp8PerChannelPerToken: {
      float& scale = *reinterpret_cast<float*>(scales);
      scale = codec::fp8_scale(codec::absolute_max(row));
      return codec::encode_fp8_row(row, scale, codec::Fp8Quotient::kExact, u8(codes));
    }
    case QuantAlgo::kInt4Packed:
      return codec::encode_int4_row(row, quant_.group_size, reinterpret_cast<int32_t*>(codes),
                                    reinterpret_cast<uint16_t*>(scales));
    case QuantAlgo::kNone:
      return;
  }
}

void MatrixEncoder::decode(const std::byte* codes, const std::byte* scales,
                           std::span<float> row) const {
  const auto width = static_cast<int64_t>(row.size());
  switch (quant_.algo) {
    case QuantAlgo::kNvfp4:
    case QuantAlgo::kW4A16Nvfp4:
      return codec::decode_nvfp4_row(u8(codes), u8(scales), global_scale_, width, row.data());
    case QuantAlgo::kFp8:
      return codec::decode_fp8_row(u8(codes), global_scale_, width, row.data());
    case QuantAlgo::kFp8PerChannelPerToken:
      return codec::decode_fp8_row(u8(codes), *reinterpret_cast<const float*>(scales), width,
                                   row.data());
    case QuantAlgo::kInt4Packed:
      return codec::decode_int4_row(reinterpret_cast<const int32_t*>(codes),
                                    reinterpret_cast<const uint16_t*>(scales), width,
                                    quant_.group_size, row.data());
    case QuantAlgo::kNone:
      return;
  }
}

}  // namespace levin::quantize
