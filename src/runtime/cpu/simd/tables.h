// The kernel tables, each compiled with the flags of its instruction set (isa.cmake). Only
// scalar's may be called without asking isa.h first.
#pragma once

#include "runtime/cpu/kernels.h"

namespace levin::runtime::cpu {

extern const Kernels kScalarKernels;
#if defined(__x86_64__)
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
extern const Kernels kAvx512Bf16Kernels;
extern const Kernels kAmxKernels;
#endif

}  // namespace levin::runtime::cpu
