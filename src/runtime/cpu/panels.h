// Repacking of a Linear into panels (layouts: kernels.h). Done once at load; no weight is rounded
// on the way, and a repacked matrix takes the bytes that it takes in the checkpoint, but for
// padding rows to 16 and columns to 32.
#pragma once

#include <cstdint>

#include "model/linear.h"
#include "runtime/cpu/kernels.h"

namespace levin::runtime::cpu {

// A repacked matrix, and how its input is to be packed.
struct Matrix {
  PanelMatrix panels;
  PackAs input = PackAs::kBf16;
  float input_scale = 1.0F;
  int64_t out = 0;
  int64_t in = 0;
  const model::Linear* source = nullptr;

  // Bytes of `count` packed tokens.
  int64_t input_bytes(int64_t count) const {
    return count * panels.blocks * packed_block_bytes(input, panels.digits);
  }
  int64_t weight_bytes() const { return panels.panels * panels.panel_bytes; }
};

// How `linear` is executed, without memory yet. `exact_input`: activations stay float32 (routers,
// whose decisions hang on small differences). `integer_products`: of the Kernels that will
// multiply. Throws Error when there is no kernel.
Matrix plan_matrix(const model::Linear& linear, bool exact_input, bool integer_products);

// Fills panels [begin, end) of the weights (`data`, matrix.weight_bytes() in all, aligned to 64)
// and their row scales and biases ([panels * 16] each).
void pack_panels(const Matrix& matrix, int64_t begin, int64_t end, uint8_t* data, float* row_scale,
                 float* bias);

}  // namespace levin::runtime::cpu
