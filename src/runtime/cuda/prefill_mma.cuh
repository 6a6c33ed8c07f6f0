// Fragments of 16-bit matrices in shared memory for mma.m16n8k16.
#pragma once

#include "runtime/cuda/ptx.cuh"

namespace levin::runtime::cuda::ptx {

// Four 8x8 matrices; lane l gives the address of row l % 8 of matrix l / 8. Lane (g, t) gets
// elements 2t, 2t + 1 of row g of each, or with kTransposed of column g.
template <bool kTransposed>
__device__ inline void load_matrices(uint32_t address, uint32_t (&m)[4]) {
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(address)
                 : "memory");
  }
}

// 16 bytes to shared memory; zeros when not `exists`.
__device__ inline void copy_16_or_zero(uint32_t to, const void* from, bool exists) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(exists ? 16 : 0)
               : "memory");
}

}  // namespace levin::runtime::cuda::ptx
