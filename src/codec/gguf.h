// Blocks of llama.cpp's GGUF files (ggml/src/ggml-common.h, ggml-quants.c).
#pragma once

#include <cstdint>
#include <span>

namespace levin::codec {

inline constexpr int64_t kGgufQ8Bytes = 34;     // f16 scale, 32 int8
inline constexpr int64_t kGgufQ4Bytes = 18;     // f16 scale, 16 bytes; element j low, j + 16 high
inline constexpr int64_t kGgufNvfp4Bytes = 36;  // 4 scale bytes, 32 bytes of codes

// 32 values each.
void encode_gguf_q8_0(std::span<const float> block, uint8_t* out);
void encode_gguf_q4_0(std::span<const float> block, uint8_t* out);

// Reorders 64 NVFP4 codes (32 bytes in the order of codec/nvfp4.h) and their 4 block scales: in
// each sub-block of 16, element j is in the low and j + 8 in the high nibble of byte j. The
// tensor's global scale does not fit in the block; a GGUF file keeps it in the tensor
// `<name>.scale`.
void reorder_nvfp4_to_gguf(const uint8_t* packed, const uint8_t* block_scales, uint8_t* out);

}  // namespace levin::codec
