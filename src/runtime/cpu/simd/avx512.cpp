#if defined(__x86_64__)

#include "runtime/cpu/simd/make_kernels.h"
#include "runtime/cpu/simd/tables.h"
#include "runtime/cpu/simd/vec_avx512.h"

namespace levin::runtime::cpu {

constexpr Kernels kAvx512Kernels = make_kernels<Avx512>(linear<Avx512>);

}  // namespace levin::runtime::cpu

#endif
