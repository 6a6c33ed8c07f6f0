// Which instruction set the kernels use: decided once at start-up from what the CPU and the
// operating system support.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "runtime/cpu/kernels.h"

namespace levin::runtime::cpu {

enum class Isa : uint8_t {
  kScalar,      // what the compiler makes of plain C++ for the baseline CPU; every architecture
  kAvx2,        // AVX2, FMA, F16C
  kAvx512,      // AVX-512 F, BW, DQ, VL
  kAvx512Bf16,  // and BF16, VNNI, VBMI: Zen 4, Sapphire Rapids and later
  kAmx,         // and AMX with BF16: Sapphire Rapids and later
};

// "avx512-bf16", ...
std::string_view name_of(Isa isa);
// All that run on this machine, slowest first.
std::vector<Isa> supported_isas();
Isa best_isa();
// The table of `isa`, which this machine must support.
const Kernels& kernels(Isa isa);

}  // namespace levin::runtime::cpu
