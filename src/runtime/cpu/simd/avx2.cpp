#if defined(__x86_64__)

#include "runtime/cpu/simd/make_kernels.h"
#include "runtime/cpu/simd/tables.h"
#include "runtime/cpu/simd/vec_avx2.h"

namespace levin::runtime::cpu {

constexpr Kernels kAvx2Kernels = make_kernels<Avx2>(linear<Avx2>);

}  // namespace levin::runtime::cpu

#endif
