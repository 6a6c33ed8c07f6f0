#include "runtime/cpu/isa.h"

#include "runtime/cpu/simd/tables.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace levin::runtime::cpu {
namespace {

#if defined(__x86_64__)
// __builtin_cpu_supports has no name for F16C in every compiler.
bool has_f16c() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}
#endif

bool supported(Isa isa) {
#if defined(__x86_64__)
  // These look at the operating system's support of the registers too.
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  switch (isa) {
    case Isa::kScalar:
      return true;
    case Isa::kAvx2:
      return avx2;
    case Isa::kAvx512:
      return avx512;
    case Isa::kAvx512Bf16:
      return avx512 && __builtin_cpu_supports("avx512bf16") &&
             __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vbmi");
  }
#endif
  return isa == Isa::kScalar;
}

}  // namespace

std::string_view name_of(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return "scalar";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx512Bf16:
      break;
  }
  return "avx512-bf16";
}

std::vector<Isa> supported_isas() {
  std::vector<Isa> isas;
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16}) {
    if (supported(isa)) isas.push_back(isa);
  }
  return isas;
}

Isa best_isa() {
  return supported_isas().back();
}

const Kernels& kernels(Isa isa) {
  switch (isa) {
#if defined(__x86_64__)
    case Isa::kAvx2:
      return kAvx2Kernels;
    case Isa::kAvx512:
      return kAvx512Kernels;
    case Isa::kAvx512Bf16:
      return kAvx512Bf16Kernels;
#endif
    default:
      return kScalarKernels;
  }
}

}  // namespace levin::runtime::cpu
