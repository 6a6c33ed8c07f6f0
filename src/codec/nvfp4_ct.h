// NVFP4 as compressed-tensors stores it ("nvfp4-pack-quantized"). The bytes are packed as in
// codec/nvfp4.h; the scales differ in kind: `weight_global_scale` is 2688 / amax, a divisor, and
// block scales that round to zero become 2^-3. Sources: compressed_tensors/compressors/nvfp4,
// quantization/utils/helpers.py.
#pragma once

#include <cstdint>
#include <span>

namespace levin::codec {

// weight_global_scale, a divisor: 2688 / amax.
float ct_nvfp4_global_scale(float amax);

// Encodes one row of BF16 values; sizes as in encode_nvfp4_row.
void encode_ct_nvfp4_row(std::span<const float> row, float global_scale, uint8_t* packed,
                         uint8_t* block_scales);

// f32(code * f32(scale / global_scale)).
void decode_ct_nvfp4_row(const uint8_t* packed, const uint8_t* block_scales, float global_scale,
                         int64_t cols, float* out);

}  // namespace levin::codec
