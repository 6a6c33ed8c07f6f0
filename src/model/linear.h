// One struct for every matrix of the model: how it is stored, how its input is to be quantized, and
// where its bytes are. Data, not behaviour: runtimes repack it into their own layouts at load.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/tensor.h"

namespace levin::model {

enum class WeightFormat : uint8_t {
  kF32,
  kF16,
  kBf16,
  kFp8,         // e4m3 codes [out, in]; weight = code * global_scale
  kFp8Channel,  // e4m3 codes [out, in]; weight = code * scales[out] (F32)
  kNvfp4,       // U8 [out, in/2], low nibble first; scales e4m3 [out, in/16]; times global_scale
  kInt4  // I32 [out, in/8], low nibble first, value = nibble - 8; scales BF16 [out, in/group]
};
std::string_view name_of(WeightFormat format);
// Bits a weight takes, scales included.
double bits_per_weight(WeightFormat format, int group_size);

enum class ActivationFormat : uint8_t {
  kNone,         // the runtime's own activation precision
  kFp8Static,    // e4m3(x / input_scale), per tensor
  kFp8PerToken,  // e4m3 with a scale per row, amax / 448
  kNvfp4         // e2m1 with e4m3 block scales computed at run time under the static input_scale
};
std::string_view name_of(ActivationFormat format);

struct Linear {
  std::string name;  // canonical module name, without ".weight"
  WeightFormat format = WeightFormat::kBf16;
  ActivationFormat activation = ActivationFormat::kNone;
  int64_t out = 0;
  int64_t in = 0;
  int group_size = 0;         // 16 for NVFP4, the group for int4, else 0
  TensorView weight;          // as stored; see WeightFormat
  TensorView scales;          // block, group or channel scales
  float global_scale = 1.0F;  // weight_scale_2 (NVFP4) or weight_scale (FP8): a multiplier
  float input_scale = 1.0F;   // static activation scale: a multiplier
  std::vector<float> bias;    // [out], empty when there is none

  bool exists() const { return out > 0; }
  // Bytes of weights and scales that one pass over the matrix reads.
  int64_t bytes() const { return static_cast<int64_t>(weight.bytes.size() + scales.bytes.size()); }
};

// Row `row` dequantized to float32: exactly the value that the format's definition gives
// (docs/formats.md), without rounding to BF16 in between. `out` has linear.in elements.
void dequantize_row(const Linear& linear, int64_t row, std::span<float> out);

// The whole matrix, row-major [out, in].
std::vector<float> dequantize(const Linear& linear);

}  // namespace levin::model
