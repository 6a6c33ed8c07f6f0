#if defined(__x86_64__)

#include "runtime/cpu/simd/linear_amx.h"
#include "runtime/cpu/simd/make_kernels.h"
#include "runtime/cpu/simd/tables.h"
#include "runtime/cpu/simd/vec_amx.h"

namespace levin::runtime::cpu {

constexpr Kernels kAmxKernels = make_kernels<Amx>(linear_amx<Amx>);

}  // namespace levin::runtime::cpu

#endif
