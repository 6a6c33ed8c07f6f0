#if defined(__x86_64__)

#include "runtime/cpu/simd/make_kernels.h"
#include "runtime/cpu/simd/tables.h"
#include "runtime/cpu/simd/vec_avx512_bf16.h"

namespace levin::runtime::cpu {

constexpr Kernels kAvx512Bf16Kernels = make_kernels<Avx512Bf16>(linear<Avx512Bf16>);

}  // namespace levin::runtime::cpu

#endif
