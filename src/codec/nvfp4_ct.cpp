#include "codec/nvfp4_ct.h"

#include <algorithm>
#include <cmath>

#include "codec/e2m1.h"
#include "codec/e4m3.h"
#include "codec/matrix.h"
#include "codec/nvfp4.h"

namespace levin::codec {
namespace {

// E4M3 epsilon, 2^-3: compressed-tensors' replacement for a block scale of zero.
constexpr uint8_t kZeroBlockScale = 0x20;

uint8_t block_scale(std::span<const float> block, float global_scale) {
  const float local = round_to_bf16(absolute_max(block) / 6.0F);
  const uint8_t code = encode_e4m3(local * global_scale);
  return code == 0 ? kZeroBlockScale : code;
}

}  // namespace

float ct_nvfp4_global_scale(float amax) {
  return 6.0F * kE4M3Max / amax;
}

void encode_ct_nvfp4_row(std::span<const float> row, float global_scale, uint8_t* packed,
                         uint8_t* block_scales) {
  constexpr auto kBlock = static_cast<std::size_t>(kNvfp4Block);
  for (std::size_t b = 0; b < row.size() / kBlock; ++b) {
    const auto block = row.subspan(b * kBlock, kBlock);
    block_scales[b] = block_scale(block, global_scale);
    const float scale = kE4M3Values[block_scales[b]] / global_scale;
    for (std::size_t i = 0; i < kBlock; i += 2) {
      packed[(b * kBlock + i) / 2] = static_cast<uint8_t>(encode_e2m1(block[i] / scale) |
                                                          (encode_e2m1(block[i + 1] / scale) << 4));
    }
  }
}

void decode_ct_nvfp4_row(const uint8_t* packed, const uint8_t* block_scales, float global_scale,
                         int64_t cols, float* out) {
  for (int64_t i = 0; i < cols; ++i) {
    const float scale = kE4M3Values[block_scales[i / kNvfp4Block]] / global_scale;
    const int code = (packed[i / 2] >> (4 * (i % 2))) & 0xf;
    out[i] = kE2M1Values[code] * scale;
  }
}

}  // namespace levin::codec
