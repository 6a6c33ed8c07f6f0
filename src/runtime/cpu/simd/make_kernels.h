// The kernel table of a vector type.
#pragma once

#include "runtime/cpu/kernels.h"
#include "runtime/cpu/simd/attention.h"
#include "runtime/cpu/simd/linear.h"
#include "runtime/cpu/simd/mamba.h"
#include "runtime/cpu/simd/rows.h"

namespace levin::runtime::cpu {

template <class V>
constexpr Kernels make_kernels(decltype(Kernels::linear) linear) {
  return {.integer_products = V::kIntegerProducts,
          .linear = linear,
          .pack = pack<V>,
          .rms_norm = rms_norm<V>,
          .gated_norm = gated_norm<V>,
          .sigmoid = sigmoid_row<V>,
          .ssm_dt = ssm_dt<V>,
          .conv = conv<V>,
          .ssm = ssm<V>,
          .scale = scale_row<V>,
          .attend = attend<V>,
          .argmax = argmax<V>};
}

}  // namespace levin::runtime::cpu
