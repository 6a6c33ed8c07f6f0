#include "codec/int4.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "codec/matrix.h"
#include "core/small_floats.h"

namespace levin::codec {
namespace {

constexpr int64_t kPerWord = 8;
// BF16 epsilon: the scale of a group of zeros.
constexpr float kZeroGroupScale = 0x1p-7F;

float group_scale(std::span<const float> group) {
  const float scale = round_to_bf16(round_to_bf16(absolute_max(group)) / 7.5F);
  return scale == 0.0F ? kZeroGroupScale : scale;
}

// The code plus 8, in 0..15.
uint32_t encode_nibble(float value, float scale) {
  const float quotient = round_to_bf16(round_to_bf16(value) / scale);
  const float clamped = std::min(std::max(quotient, -8.0F), 7.0F);
  // nearbyint rounds ties to even in the default mode.
  return static_cast<uint32_t>(static_cast<int>(std::nearbyint(clamped)) + 8);
}

}  // namespace

void encode_int4_row(std::span<const float> row, int64_t group, int32_t* words, uint16_t* scales) {
  const auto cols = static_cast<int64_t>(row.size());
  std::fill_n(words, cols / kPerWord, 0);
  for (int64_t g = 0; g < cols / group; ++g) {
    const float scale = group_scale(
        row.subspan(static_cast<std::size_t>(g * group), static_cast<std::size_t>(group)));
    scales[g] = float_to_bf16(scale);
    for (int64_t i = g * group; i < (g + 1) * group; ++i) {
      const uint32_t nibble = encode_nibble(row[static_cast<std::size_t>(i)], scale);
      const auto word = static_cast<uint32_t>(words[i / kPerWord]);
      words[i / kPerWord] = static_cast<int32_t>(word | (nibble << (4 * (i % kPerWord))));
    }
  }
}

void decode_int4_row(const int32_t* words, const uint16_t* scales, int64_t cols, int64_t group,
                     float* out) {
  for (int64_t i = 0; i < cols; ++i) {
    const auto word = static_cast<uint32_t>(words[i / kPerWord]);
    const int code = static_cast<int>((word >> (4 * (i % kPerWord))) & 0xfu) - 8;
    out[i] = static_cast<float>(code) * bf16_to_float(scales[i / group]);
  }
}

Int4Matrix encode_int4(std::span<const float> weights, int64_t rows, int64_t cols, int64_t group,
                       ThreadTeam* team) {
  check_matrix(weights.size(), rows, cols, std::lcm(group, kPerWord), "INT4");
  Int4Matrix matrix{.rows = rows, .cols = cols, .group = group, .words = {}, .scales = {}};
  matrix.words.resize(static_cast<std::size_t>(rows * cols / kPerWord));
  matrix.scales.resize(static_cast<std::size_t>(rows * cols / group));
  for_each_row(rows, team, [&](int64_t row) {
    encode_int4_row(
        weights.subspan(static_cast<std::size_t>(row * cols), static_cast<std::size_t>(cols)),
        group, matrix.words.data() + row * cols / kPerWord,
        matrix.scales.data() + row * cols / group);
  });
  return matrix;
}

}  // namespace levin::codec
