#include "runtime/cpu/simd/make_kernels.h"
#include "runtime/cpu/simd/tables.h"
#include "runtime/cpu/simd/vec_scalar.h"

namespace levin::runtime::cpu {

constexpr Kernels kScalarKernels = make_kernels<Scalar>(linear<Scalar>);

}  // namespace levin::runtime::cpu
