// One matrix in one format, row by row: what the converter runs on every thread.
#pragma once

#include <cstdint>
#include <span>

#include "core/tensor.h"
#include "quantize/plan.h"

namespace levin::quantize {

// Row `row` of a F32, F16 or BF16 matrix as float32; `out` has its width.
void widen_row(const TensorView& matrix, int64_t row, std::span<float> out);

class MatrixEncoder {
 public:
  // `width`: columns. `amax`: the magnitude that per-tensor scales come from; unused by formats
  // without one.
  MatrixEncoder(const LinearPlan& linear, int64_t width, float amax);

  // Bytes of a row of codes and of its scales (0: the format has no scales per row).
  int64_t code_bytes() const { return code_bytes_; }
  int64_t scale_bytes() const { return scale_bytes_; }
  // weight_scale_2 of NVFP4, weight_scale of FP8 per tensor; 1 otherwise.
  float global_scale() const { return global_scale_; }

  // Destinations have code_bytes() and scale_bytes() and the alignment of their elements. No
  // allocation, any thread.
  void encode(std::span<const float> row, std::byte* codes, std::byte* scales) const;
  void decode(const std::byte* codes, const std::byte* scales, std::span<float> row) const;

 private:
  checkpoint::ModuleQuant quant_;
  codec::Nvfp4Policy policy_;
  float amax_;
  float global_scale_ = 1.0F;
  int64_t code_bytes_ = 0;
  int64_t scale_bytes_ = 0;
};

}  // namespace levin::quantize
