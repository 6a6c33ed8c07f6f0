#include "codec/fp8.h"

#include <algorithm>
#include <limits>

#include "codec/e4m3.h"
#include "codec/matrix.h"

namespace levin::codec {

float fp8_scale(float amax) {
  if (amax == 0.0F) return 1.0F;
  return std::max(amax / kE4M3Max, std::numeric_limits<float>::min());
}

void encode_fp8_row(std::span<const float> row, float scale, Fp8Quotient quotient, uint8_t* codes) {
  if (quotient == Fp8Quotient::kExact) {
    for (std::size_t i = 0; i < row.size(); ++i) codes[i] = encode_e4m3(row[i] / scale);
    return;
  }
  const float divisor = quotient == Fp8Quotient::kBf16AndScale ? round_to_bf16(scale) : scale;
  for (std::size_t i = 0; i < row.size(); ++i) {
    codes[i] = encode_e4m3(round_to_bf16(row[i] / divisor));
  }
}

void decode_fp8_row(const uint8_t* codes, float scale, int64_t cols, float* out) {
  for (int64_t i = 0; i < cols; ++i) out[i] = kE4M3Values[codes[i]] * scale;
}

Fp8Matrix encode_fp8(std::span<const float> weights, int64_t rows, int64_t cols,
                     Fp8Granularity granularity, Fp8Quotient quotient, ThreadTeam* team) {
  check_matrix(weights.size(), rows, cols, 1, "FP8");
  const bool per_channel = granularity == Fp8Granularity::kChannel;
  Fp8Matrix matrix{.rows = rows, .cols = cols, .codes = {}, .scales = {}};
  matrix.codes.resize(weights.size());
  matrix.scales.resize(per_channel ? static_cast<std::size_t>(rows) : 1);
  if (!per_channel) matrix.scales[0] = fp8_scale(absolute_max(weights));
  for_each_row(rows, team, [&](int64_t row) {
    const auto values =
        weights.subspan(static_cast<std::size_t>(row * cols), static_cast<std::size_t>(cols));
    float& scale = matrix.scales[per_channel ? static_cast<std::size_t>(row) : 0];
    if (per_channel) scale = fp8_scale(absolute_max(values));
    encode_fp8_row(values, scale, quotient, matrix.codes.data() + row * cols);
  });
  return matrix;
}

void quantize_fp8_activation(std::span<const float> x, float input_scale, std::span<float> out) {
  for (std::size_t i = 0; i < x.size(); ++i) {
    out[i] = kE4M3Values[encode_e4m3(x[i] / input_scale)] * input_scale;
  }
}

float quantize_fp8_activation_per_token(std::span<const float> x, std::span<float> out) {
  const float scale = fp8_scale(absolute_max(x));
  quantize_fp8_activation(x, scale, out);
  return scale;
}

}  // namespace levin::codec
