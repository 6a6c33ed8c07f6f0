#include "codec/nvfp4.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "codec/e2m1.h"
#include "codec/e4m3.h"
#include "codec/matrix.h"

namespace levin::codec {
namespace {

using Block = std::span<const float, kNvfp4Block>;

// Largest block scale that the normalization aims at. Four over six leaves room for the 1.5 times
// larger scale of a block whose maximum goes to 4.
float scale_limit(Nvfp4Policy policy) {
  return policy == Nvfp4Policy::kFourOverSix ? 256.0F : kE4M3Max;
}

float block_amax(Block block) {
  float amax = 0.0F;
  for (const float x : block) amax = std::max(amax, std::fabs(x));
  return amax;
}

uint8_t encode_scale(float scale) {
  return encode_e4m3(std::min(std::max(scale, kE4M3Tiny), kE4M3Max));
}

// Squared error of rounding the block's magnitudes to E2M1 multiples of `scale`, in float32. The
// order of the sum (halves onto halves) is fixed and suits vector units.
float squared_error(Block block, float scale) {
  std::array<float, kNvfp4Block> squares;
  for (std::size_t i = 0; i < 16; ++i) {
    const float a = std::fabs(block[i]);
    const float difference = a - round_e2m1(a / scale) * scale;
    squares[i] = difference * difference;
  }
  for (std::size_t i = 0; i < 8; ++i) squares[i] += squares[i + 8];
  for (std::size_t i = 0; i < 4; ++i) squares[i] += squares[i + 4];
  return (squares[0] + squares[2]) + (squares[1] + squares[3]);
}

// The candidates of ModelOpt's FP8 scale sweep: candidate i is f32(E4M3 value of code i / 448).
constexpr int kCandidates = 126;

float sweep_scale(int code, float amax) {
  return (kE4M3Values[static_cast<std::size_t>(code)] / kE4M3Max) * amax / 6.0F;
}

// Code 1..126 of the scale with the least squared error, the smallest of several equal ones. The
// same answer as trying all candidates: those left out are provably no better.
uint8_t best_sweep_code(Block block, float amax) {
  const float top = block_amax(block);
  if (top == 0.0F) return 1;
  // Start at the scale that maps the block maximum to about 6, where the error is already small.
  const float ideal = top / amax * kE4M3Max;
  const int start = std::clamp<int>(encode_e4m3(ideal), 1, kCandidates);
  int best = start;
  float best_error = squared_error(block, sweep_scale(start, amax));
  for (int code = start - 1; code >= 1; --code) {
    const float scale = sweep_scale(code, amax);
    // The clipped maximum alone costs this much, and more at every smaller scale.
    const float clipped = top - 6.0F * scale;
    if (clipped > 0.0F && clipped * clipped > best_error) break;
    const float error = squared_error(block, scale);
    if (error <= best_error) {  // of equal errors the smaller scale wins
      best_error = error;
      best = code;
    }
  }
  for (int code = start + 1; code <= kCandidates; ++code) {
    const float scale = sweep_scale(code, amax);
    const float error = squared_error(block, scale);
    if (error < best_error) {
      best_error = error;
      best = code;
    }
    if (top / scale <= 0.25F) break;  // everything rounds to zero from here on
  }
  return static_cast<uint8_t>(best);
}

// The calibrated amax of a block under the search of four over six: its maximum times 1 or 1.5.
float four_over_six_amax(Block block, float amax) {
  // ModelOpt's calibration-time fake quantization with the scale normalization of 256.
  const float normalizer = amax * (kE4M3Max / 256.0F) / 6.0F;
  const float multiplier = kE4M3Max / normalizer;
  const float inverse = 1.0F / multiplier;
  const auto error_of = [&](float candidate) {
    const float scaled = std::min(candidate / 6.0F * multiplier, kE4M3Max);
    // A scale that rounds to zero stands for a block of zeros: every quotient is infinite or NaN,
    // rounds to 6, and 6 * 0 is the zero wanted.
    return squared_error(block, kE4M3Values[encode_e4m3(scaled)] * inverse);
  };
  const float to_six = block_amax(block);
  const float to_four = to_six * 1.5F;
  return error_of(to_four) < error_of(to_six) ? to_four : to_six;
}

// Scale byte of ModelOpt's static export path for a calibrated block amax.
uint8_t static_scale(float calibrated, float limit, float amax) {
  float scale = calibrated / 6.0F;
  if (scale == 0.0F) scale = 1.0F;
  return encode_scale(scale * limit / (amax / 6.0F));
}

uint8_t choose_scale(Block block, Nvfp4Policy policy, float amax) {
  switch (policy) {
    case Nvfp4Policy::kMaxDynamic: {
      const float scale = block_amax(block) / (6.0F * nvfp4_global_scale(policy, amax));
      return encode_scale(scale == 0.0F ? 1.0F : scale);
    }
    case Nvfp4Policy::kMaxStatic:
      return static_scale(block_amax(block), scale_limit(policy), amax);
    case Nvfp4Policy::kMse:
      return best_sweep_code(block, amax);
    case Nvfp4Policy::kFourOverSix:
      break;
  }
  return static_scale(four_over_six_amax(block, amax), scale_limit(policy), amax);
}

// Codes of a block divided by the scale as stored, never by the unrounded one.
void encode_block(Block block, float scale, uint8_t* packed) {
  std::array<uint8_t, kNvfp4Block> codes;
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = encode_e2m1(block[i] / scale);
  for (std::size_t i = 0; i < codes.size() / 2; ++i) {
    packed[i] = static_cast<uint8_t>(codes[2 * i] | (codes[2 * i + 1] << 4));
  }
}

Block block_at(std::span<const float> row, int64_t block) {
  return Block(row.data() + block * kNvfp4Block, kNvfp4Block);
}

// E4M3 scale of an activation block; zero is possible and makes the block zero.
uint8_t activation_scale(Block block, float input_scale) {
  return encode_e4m3(std::min(block_amax(block) / 6.0F / input_scale, kE4M3Max));
}

}  // namespace

std::string_view name_of(Nvfp4Policy policy) {
  switch (policy) {
    case Nvfp4Policy::kMaxDynamic:
      return "max";
    case Nvfp4Policy::kMaxStatic:
      return "max (static)";
    case Nvfp4Policy::kMse:
      return "mse";
    case Nvfp4Policy::kFourOverSix:
      break;
  }
  return "four-over-six";
}

float nvfp4_global_scale(Nvfp4Policy policy, float amax) {
  if (amax == 0.0F) return 1.0F;
  return std::max(amax, kNvfp4AmaxFloor) / (6.0F * scale_limit(policy));
}

void encode_nvfp4_row(std::span<const float> row, Nvfp4Policy policy, float amax, uint8_t* packed,
                      uint8_t* block_scales) {
  const auto blocks = static_cast<int64_t>(row.size()) / kNvfp4Block;
  if (amax == 0.0F) {
    std::fill_n(packed, row.size() / 2, uint8_t{0});
    std::fill_n(block_scales, blocks, uint8_t{0x38});
    return;
  }
  const float global_scale = nvfp4_global_scale(policy, amax);
  const float normalizer = std::max(amax, kNvfp4AmaxFloor);
  for (int64_t b = 0; b < blocks; ++b) {
    const Block block = block_at(row, b);
    block_scales[b] = choose_scale(block, policy, normalizer);
    encode_block(block, kE4M3Values[block_scales[b]] * global_scale, packed + b * kNvfp4Block / 2);
  }
}

void decode_nvfp4_row(const uint8_t* packed, const uint8_t* block_scales, float global_scale,
                      int64_t cols, float* out) {
  for (int64_t b = 0; b < cols / kNvfp4Block; ++b) {
    const float scale = kE4M3Values[block_scales[b]] * global_scale;
    const uint8_t* codes = packed + b * kNvfp4Block / 2;
    float* values = out + b * kNvfp4Block;
    for (int i = 0; i < kNvfp4Block / 2; ++i) {
      values[2 * i] = kE2M1Values[codes[i] & 0xf] * scale;
      values[2 * i + 1] = kE2M1Values[codes[i] >> 4] * scale;
    }
  }
}

Nvfp4Matrix encode_nvfp4(std::span<const float> weights, int64_t rows, int64_t cols,
                         Nvfp4Policy policy, ThreadTeam* team, float amax) {
  check_matrix(weights.size(), rows, cols, kNvfp4Block, "NVFP4");
  Nvfp4Matrix matrix{.rows = rows, .cols = cols, .packed = {}, .block_scales = {}};
  matrix.packed.resize(static_cast<std::size_t>(rows * cols / 2));
  matrix.block_scales.resize(static_cast<std::size_t>(rows * cols / kNvfp4Block));
  if (amax == 0.0F) amax = absolute_max(weights);
  matrix.global_scale = nvfp4_global_scale(policy, amax);
  for_each_row(rows, team, [&](int64_t row) {
    encode_nvfp4_row(
        weights.subspan(static_cast<std::size_t>(row * cols), static_cast<std::size_t>(cols)),
        policy, amax, matrix.packed.data() + row * cols / 2,
        matrix.block_scales.data() + row * cols / kNvfp4Block);
  });
  return matrix;
}

void quantize_nvfp4_activation(std::span<const float> x, float input_scale, std::span<float> out) {
  for (int64_t b = 0; b < static_cast<int64_t>(x.size()) / kNvfp4Block; ++b) {
    const Block block = block_at(x, b);
    const float scale = kE4M3Values[activation_scale(block, input_scale)] * input_scale;
    float* values = out.data() + b * kNvfp4Block;
    if (scale == 0.0F) {
      std::fill_n(values, kNvfp4Block, 0.0F);
      continue;
    }
    for (int i = 0; i < kNvfp4Block; ++i) {
      values[i] = kE2M1Values[encode_e2m1(block[static_cast<std::size_t>(i)] / scale)] * scale;
    }
  }
}

void encode_nvfp4_activation(std::span<const float> x, float input_scale, uint8_t* packed,
                             uint8_t* block_scales) {
  for (int64_t b = 0; b < static_cast<int64_t>(x.size()) / kNvfp4Block; ++b) {
    const Block block = block_at(x, b);
    block_scales[b] = activation_scale(block, input_scale);
    const float scale = kE4M3Values[block_scales[b]] * input_scale;
    uint8_t* codes = packed + b * kNvfp4Block / 2;
    if (scale == 0.0F) {
      std::fill_n(codes, kNvfp4Block / 2, uint8_t{0});
    } else {
      encode_block(block, scale, codes);
    }
  }
}

}  // namespace levin::codec
