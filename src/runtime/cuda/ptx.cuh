// The PTX instructions that CUDA C++ has no name for, one function each: asynchronous copies,
// barriers, programmatic dependent launch, matrix multiply-accumulate, conversions.
// Sources: NVIDIA, PTX ISA 9.0, sections of the same names. Needs compute capability 8.0; what
// later ones have besides is done in other ways below them, with the same results. This is the
// place that knows: others ask the constants, and what several instructions make together is one
// function here.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "runtime/cuda/e4m3_bits.h"

namespace levin::runtime::cuda::ptx {

// What this is being compiled for, 90 for compute capability 9.0. The host's compiler sees the
// latest, and must not decide anything by it: the host asks loaded_kernels() (device.h).
#ifdef __CUDA_ARCH__
inline constexpr int kCapability = __CUDA_ARCH__ / 10;
#else
inline constexpr int kCapability = 90;
#endif
inline constexpr int kOverlapFrom = 90;
inline constexpr int kClustersFrom = 90;
// Kernels may start before the one before them is over.
inline constexpr bool kOverlap = kCapability >= kOverlapFrom;
// Copies of any length by one thread; without them a warp's lanes copy 16 bytes each.
inline constexpr bool kBulkCopies = kCapability >= 90;
inline constexpr bool kE4m3 = kCapability >= 89;
// Chunks of prompts (prefill.h) wait for a way without wgmma: the larger ones of their other
// kernels are left out, too.
inline constexpr bool kChunks = kCapability >= 90;

// Address of shared memory as the instructions below take it.
__device__ inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// --- programmatic dependent launch; where there is none, a kernel starts when all is visible ---

// Lets the next kernel of the stream start its blocks as soon as there is room for them.
__device__ inline void launch_dependents() {
  if constexpr (kOverlap) asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
// A kernel that was launched ahead of its time starts when the one before it has just got its input
// and turns it into operands: let that come first.
__device__ inline void step_back() {
  if constexpr (kOverlap) __nanosleep(1000);
}
// Waits until the kernel before this one is complete and its writes are visible.
__device__ inline void wait_for_previous() {
  if constexpr (kOverlap) asm volatile("griddepcontrol.wait;" ::: "memory");
}

// --- barriers in shared memory ---

__device__ inline void barrier_init(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ inline void barrier_arrive(uint32_t barrier) {
  asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}\n" ::"r"(barrier)
               : "memory");
}
// Whether the phase of this parity is over, without waiting.
__device__ inline bool barrier_passed(uint32_t barrier, uint32_t parity) {
  uint32_t passed;
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "mbarrier.test_wait.parity.shared.b64 done, [%1], %2;\n"
      "selp.u32 %0, 1, 0, done;\n"
      "}\n"
      : "=r"(passed)
      : "r"(barrier), "r"(parity)
      : "memory");
  return passed != 0;
}
__device__ inline void barrier_wait(uint32_t barrier, uint32_t parity) {
  if constexpr (kCapability >= 90) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
        "@!done bra again;\n"
        "}\n" ::"r"(barrier),
        "r"(parity)
        : "memory");
  } else {
    while (!barrier_passed(barrier, parity)) {
    }
  }
}

// --- barriers of some of a block's warps ---

__device__ inline void sync_threads(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// --- asynchronous copies that an mbarrier counts ---

// Weights are read once a step: they should not push anything else out of the L2 cache.
__device__ inline uint64_t evict_first_policy() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// What a barrier of a warp's copies is initialized with, and how many of the warp's lanes have to
// call what copies: the first ones.
inline constexpr int kCopyingLanes = kBulkCopies ? 1 : 32;

// How much the copies until the barrier's next phase bring; without bulk copies it counts lanes.
__device__ inline void expect_bytes(uint32_t barrier, uint32_t bytes) {
  if constexpr (kBulkCopies) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
  }
}
// Addresses and size are multiples of 16.
__device__ inline void bulk_copy(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}
// Without bulk copies: this lane's pieces of what its warp copies.
__device__ inline void copy_pieces(uint32_t to, const void* from, uint32_t bytes) {
  const auto* pieces = static_cast<const uint8_t*>(from);
#pragma unroll 4
  for (uint32_t at = threadIdx.x % 32 * 16; at < bytes; at += 32 * 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + at), "l"(pieces + at)
                 : "memory");
  }
}
// One of the barrier's arrivals, when all that this lane has begun to copy is there.
__device__ inline void arrive_when_copied(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}
// All that the barrier's phase is about: what expect_bytes() has named. By kCopyingLanes lanes.
__device__ inline void warp_copy(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  if constexpr (kBulkCopies) {
    bulk_copy(to, from, bytes, barrier);
  } else {
    copy_pieces(to, from, bytes);
    arrive_when_copied(barrier);
  }
}
// One lane of the warp has the barrier expect `bytes` and copies them. All lanes call, with the
// same arguments. In one piece, since the compiler makes a loop over the lanes of a bulk copy
// behind a condition that it does not know to hold for one. Without bulk copies by all lanes.
__device__ inline void elected_bulk_copy(uint32_t to, const void* from, uint32_t bytes,
                                         uint32_t barrier, uint64_t policy) {
  if constexpr (kBulkCopies) {
    asm volatile(
        "{\n"
        ".reg .pred one;\n"
        "elect.sync _|one, 0xffffffff;\n"
        "@one mbarrier.arrive.expect_tx.shared.b64 _, [%3], %2;\n"
        "@one cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1], %2, [%3], %4;\n"
        "}\n" ::"r"(to),
        "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
        : "memory");
  } else {
    const auto* pieces = static_cast<const uint8_t*>(from);
#pragma unroll 5
    for (uint32_t at = threadIdx.x % 32 * 16; at < bytes; at += 32 * 16) {
      asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(to + at),
                   "l"(pieces + at), "l"(policy)
                   : "memory");
    }
    arrive_when_copied(barrier);
  }
}
// Makes barriers that were just initialized known to bulk copies.
__device__ inline void fence_barriers() {
  if constexpr (kBulkCopies) asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// What others have stored is visible to this thread's bulk copies from now on.
__device__ inline void fence_stores_before_bulk_copies() {
  if constexpr (kBulkCopies) asm volatile("fence.proxy.async;" ::: "memory");
}

// --- asynchronous copies from global to shared memory, 16 bytes a thread ---

// Past the L1 cache, which does not see what other blocks write.
__device__ inline void copy_16(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ inline void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until at most kPending of this thread's groups of copies are unfinished.
template <int kPending>
__device__ inline void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

__device__ inline void prefetch_l2(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

// --- words that blocks of one grid hand to each other: a value and a tag in one piece ---

__device__ inline void store_tagged(uint64_t* to, uint32_t value, uint32_t tag) {
  asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(to),
               "l"(static_cast<uint64_t>(tag) << 32 | value)
               : "memory");
}
__device__ inline uint64_t load_tagged(const uint64_t* from) {
  uint64_t v;
  asm volatile("ld.relaxed.gpu.global.b64 %0, [%1];" : "=l"(v) : "l"(from) : "memory");
  return v;
}

// For the host: what was written before is visible when this is.
__device__ inline void store_release_system(uint64_t* to, uint64_t value) {
  asm volatile("st.release.sys.global.b64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}

// --- shared memory loads by address ---

__device__ inline uint4 load_shared_16(uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address));
  return v;
}
__device__ inline uint2 load_shared_8(uint32_t address) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(address));
  return v;
}
__device__ inline void store_shared_8(uint32_t address, uint2 v) {
  asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(address), "r"(v.x), "r"(v.y) : "memory");
}
__device__ inline uint32_t load_shared_4(uint32_t address) {
  uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(address));
  return v;
}
__device__ inline uint32_t load_shared_2(uint32_t address) {
  uint16_t v;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(address));
  return v;
}
__device__ inline uint32_t load_shared_1(uint32_t address) {
  uint32_t v;
  asm volatile("ld.shared.u8 %0, [%1];" : "=r"(v) : "r"(address));
  return v;
}

// --- matrix multiply-accumulate, 16x16 times 16x8 plus 16x8 ---

// Lane (g, t) = (lane / 4, lane % 4). a[0], a[2] are row g of A, columns 2t, 2t + 1 and 2t + 8,
// 2t + 9; a[1], a[3] are row g + 8. b0, b1 are column g of B, rows 2t, 2t + 1 and 2t + 8, 2t + 9.
// c[0], c[1] are row g, columns 2t and 2t + 1; c[2], c[3] are row g + 8.
__device__ inline void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ inline void mma_f16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// --- conversions ---

// Two e4m3 codes (low byte first) to two float16.
__device__ inline uint32_t e4m3x2_to_f16x2(uint32_t codes) {
  uint32_t v;
  if constexpr (kE4m3) {
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(v) : "h"(static_cast<uint16_t>(codes)));
  } else {
    constexpr uint32_t k256 = 0x5C005C00u;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(v) : "r"(e4m3x2_as_small_f16x2(codes)), "r"(k256));
  }
  return v;
}
// Four of them, to the lower and the upper two.
__device__ inline void e4m3x4_to_f16x2(uint32_t codes, uint32_t& low, uint32_t& high) {
  if constexpr (kE4m3) {
    asm("{\n"
        ".reg .b16 first, second;\n"
        "mov.b32 {first, second}, %2;\n"
        "cvt.rn.f16x2.e4m3x2 %0, first;\n"
        "cvt.rn.f16x2.e4m3x2 %1, second;\n"
        "}\n"
        : "=r"(low), "=r"(high)
        : "r"(codes));
  } else {
    low = e4m3x2_to_f16x2(codes);
    high = e4m3x2_to_f16x2(codes >> 16);
  }
}
// Two floats to e4m3 codes, saturating; `low` ends up in the low byte.
__device__ inline uint32_t floats_to_e4m3x2(float low, float high) {
  if constexpr (kE4m3) {
    uint16_t v;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(v) : "f"(high), "f"(low));
    return v;
  } else {
    return float_to_e4m3_bits(high) << 8 | float_to_e4m3_bits(low);
  }
}
__device__ inline uint32_t floats_to_f16x2(float low, float high) {
  uint32_t v;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
  return v;
}
__device__ inline uint32_t floats_to_f16x2_saturating(float low, float high) {
  uint32_t v;
  asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
  return v;
}
__device__ inline uint32_t floats_to_bf16x2(float low, float high) {
  uint32_t v;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
  return v;
}

// 2^x with a relative error of about 2^-22; 0 for very negative x.
__device__ inline float exp2_approx(float x) {
  float v;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(v) : "f"(x));
  return v;
}

// Nanoseconds, the same clock on every multiprocessor.
__device__ inline uint64_t global_timer() {
  uint64_t t;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
  return t;
}

}  // namespace levin::runtime::cuda::ptx
