#include "codec/gguf.h"

#include <algorithm>
#include <cmath>

#include "codec/matrix.h"
#include "core/small_floats.h"

namespace levin::codec {
namespace {

void write_f16(float value, uint8_t* out) {
  const uint16_t bits = float_to_f16(value);
  out[0] = static_cast<uint8_t>(bits & 0xff);
  out[1] = static_cast<uint8_t>(bits >> 8);
}

float reciprocal_or_zero(float value) {
  return value == 0.0F ? 0.0F : 1.0F / value;
}

}  // namespace

void encode_gguf_q8_0(std::span<const float> block, uint8_t* out) {
  const float scale = absolute_max(block) / 127.0F;
  const float inverse = reciprocal_or_zero(scale);
  write_f16(scale, out);
  for (std::size_t i = 0; i < block.size(); ++i) {
    // std::round takes halves away from zero, as C's roundf in ggml.
    out[2 + i] = static_cast<uint8_t>(static_cast<int>(std::round(block[i] * inverse)));
  }
}

void encode_gguf_q4_0(std::span<const float> block, uint8_t* out) {
  float extreme = 0.0F;  // of largest magnitude, with its sign
  for (const float x : block) {
    if (std::fabs(x) > std::fabs(extreme)) extreme = x;
  }
  const float scale = extreme / -8.0F;
  const float inverse = reciprocal_or_zero(scale);
  write_f16(scale, out);
  const auto code = [&](float x) { return std::min(15, static_cast<int>(x * inverse + 8.5F)); };
  const std::size_t half = block.size() / 2;
  for (std::size_t j = 0; j < half; ++j) {
    out[2 + j] = static_cast<uint8_t>(code(block[j]) | (code(block[j + half]) << 4));
  }
}

void reorder_nvfp4_to_gguf(const uint8_t* packed, const uint8_t* block_scales, uint8_t* out) {
  constexpr int kSubBlocks = 4;
  for (int k = 0; k < kSubBlocks; ++k) out[k] = block_scales[k] & 0x7f;
  const auto code = [&](int i) { return (packed[i / 2] >> (4 * (i % 2))) & 0xf; };
  for (int k = 0; k < kSubBlocks; ++k) {
    for (int j = 0; j < 8; ++j) {
      out[kSubBlocks + 8 * k + j] =
          static_cast<uint8_t>(code(16 * k + j) | (code(16 * k + j + 8) << 4));
    }
  }
}

}  // namespace levin::codec
