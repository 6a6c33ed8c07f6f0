#if defined(__x86_64__)

#include "runtime/cpu/simd/linear_amx.h"
#include "runtime/cpu/simd/make_kernels.h"
#include "runtime/cpu/simd/tables.h"
#include "runtime/cpu/simd/vec_avx512_bf16.h"

namespace levin::runtime::cpu {

constexpr Kernels kAmxKernels = make_kernels<Avx512Bf16>(linear_amx<Avx512Bf16>);

}  // namespace levin::runtime::cpu

#endif
