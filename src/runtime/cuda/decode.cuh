// Weights of a unit (packed.cuh) from shared memory to A fragments of mma.m16n8k16, in registers.
//
// Every quantized format decodes to float16 without rounding:
//   FP8    e4m3 has 4 significant bits and exponents -9 .. 8.
//   NVFP4  e2m1 times an e4m3 scale has at most 6 significant bits; it is made 2^-7 times too small
//          (kNvfp4Factor puts it right), so that 6 * 448 stays in range and 0.5 * 2^-9 does too.
//   INT4   (nibble - 8) times an 8-bit scale: at most 11 significant bits; scales are stored
//          normalized by a power of two of the row.
#pragma once

#include "runtime/cuda/packed.cuh"
#include "runtime/cuda/ptx.cuh"

namespace levin::runtime::cuda {

inline constexpr float kNvfp4Factor = 128.0F;

// A word of NVFP4 codes holds 8 weights as four pairs; the first of a pair is in the low half. Bits
// of each half, S sign and M magnitude (two exponent bits and one mantissa bit) of pair 0 .. 3:
//   15  14  13  12   11..9  8..6  5..3  2..0
//   S0  S2  S3  S1    M0     M1    M2    M3
// A float16 with S at bit 15 and M at bits 11..9 is the e2m1 value times 2^-14.
__host__ __device__ inline uint32_t nvfp4_word(const uint8_t (&codes)[8]) {
  constexpr int kSign[4] = {15, 12, 14, 13};
  constexpr int kMagnitude[4] = {9, 6, 3, 0};
  uint32_t word = 0;
  for (int i = 0; i < 8; ++i) {
    const uint32_t sign = codes[i] >> 3;
    const uint32_t magnitude = codes[i] & 7u;
    const int pair = i / 2;
    const int half = 16 * (i % 2);
    word |= sign << (kSign[pair] + half) | magnitude << (kMagnitude[pair] + half);
  }
  return word;
}

// A block's e4m3 scale (128 codes, none negative) as it is stored: the upper bits of the float16 of
// 128 times its value, bits 14 to 7. There every scale is a normal number.
__host__ __device__ constexpr uint8_t nvfp4_scale(uint8_t e4m3) {
  int exponent = e4m3 >> 3 & 15;
  int mantissa = e4m3 & 7;
  if (exponent == 0) {
    if (mantissa == 0) return 0;
    for (exponent = 1; mantissa < 8; --exponent) mantissa *= 2;
    mantissa -= 8;
  }
  return static_cast<uint8_t>((exponent + 15) << 3 | mantissa);
}

// A word of INT4 codes: nibble p of the low half is the first of pair p, of the high half the
// second.
__host__ __device__ inline uint32_t int4_word(const uint8_t (&codes)[8]) {
  uint32_t word = 0;
  for (int i = 0; i < 8; ++i)
    word |= static_cast<uint32_t>(codes[i]) << (4 * (i / 2) + 16 * (i % 2));
  return word;
}

// The four pairs of a word as float16 pairs, values times 2^-14.
__device__ inline void expand_nvfp4(uint32_t word, uint32_t (&pairs)[4]) {
  constexpr uint32_t kMask = 0x8E008E00u;
  pairs[0] = word & kMask;
  pairs[1] = (word << 3) & kMask;
  // One product moves sign and magnitude to their places; what else it makes is masked away.
  pairs[2] = ((word & 0x40384038u) * 66u) & kMask;   // sign << 1, magnitude << 6
  pairs[3] = ((word & 0x20072007u) * 516u) & kMask;  // sign << 2, magnitude << 9
}

__device__ inline uint32_t multiply_f16x2(uint32_t a, uint32_t b) {
  uint32_t v;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(v) : "r"(a), "r"(b));
  return v;
}
__device__ inline uint32_t add_f16x2(uint32_t a, uint32_t b) {
  uint32_t v;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(v) : "r"(a), "r"(b));
  return v;
}
__device__ inline uint32_t fma_f16x2(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t v;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(v) : "r"(a), "r"(b), "r"(c));
  return v;
}

// The four pairs of a word as float16 pairs nibble - 8. 0x6400 | n is 1024 + n.
__device__ inline void expand_int4(uint32_t word, uint32_t (&pairs)[4]) {
  constexpr uint32_t kMagic = 0x64006400u;
  constexpr uint32_t kMinus1032 = 0xE408E408u;
  constexpr uint32_t kSixteenth = 0x2C002C00u;
  constexpr uint32_t kMinus72 = 0xD480D480u;
  const uint32_t high = word >> 8;
  pairs[0] = add_f16x2((word & 0x000F000Fu) | kMagic, kMinus1032);
  pairs[1] = fma_f16x2((word & 0x00F000F0u) | kMagic, kSixteenth, kMinus72);
  pairs[2] = add_f16x2((high & 0x000F000Fu) | kMagic, kMinus1032);
  pairs[3] = fma_f16x2((high & 0x00F000F0u) | kMagic, kSixteenth, kMinus72);
}

// What a lane reads of a unit, and its A fragments a[step] of the unit's two products.
template <UnitFormat kFormat>
struct LaneWeights;

template <>
struct LaneWeights<UnitFormat::kBf16> {
  uint4 first, second;
  __device__ void load(uint32_t unit, int lane, int) {
    first = ptx::load_shared_16(unit + lane * 16);
    second = ptx::load_shared_16(unit + 512 + lane * 16);
  }
  __device__ void expand(uint32_t (&a)[2][4]) const {
    a[0][0] = first.x, a[0][1] = first.y, a[0][2] = first.z, a[0][3] = first.w;
    a[1][0] = second.x, a[1][1] = second.y, a[1][2] = second.z, a[1][3] = second.w;
  }
};
template <>
struct LaneWeights<UnitFormat::kF16> : LaneWeights<UnitFormat::kBf16> {};

template <>
struct LaneWeights<UnitFormat::kFp8> {
  uint4 codes;
  __device__ void load(uint32_t unit, int lane, int) {
    codes = ptx::load_shared_16(unit + lane * 16);
  }
  __device__ void expand(uint32_t (&a)[2][4]) const {
    const uint32_t x[2] = {codes.x, codes.y};
    const uint32_t y[2] = {codes.z, codes.w};
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      ptx::e4m3x4_to_f16x2(x[step], a[step][0], a[step][2]);
      ptx::e4m3x4_to_f16x2(y[step], a[step][1], a[step][3]);
    }
  }
};

// Two words of pairs, the first and the second half of the lane's weights, times a factor.
__device__ inline void scale_pairs(const uint32_t (&x)[4], const uint32_t (&y)[4], uint32_t factor,
                                   uint32_t (&a)[2][4]) {
#pragma unroll
  for (int step = 0; step < 2; ++step) {
    a[step][0] = multiply_f16x2(x[2 * step], factor);
    a[step][1] = multiply_f16x2(y[2 * step], factor);
    a[step][2] = multiply_f16x2(x[2 * step + 1], factor);
    a[step][3] = multiply_f16x2(y[2 * step + 1], factor);
  }
}

template <>
struct LaneWeights<UnitFormat::kNvfp4> {
  uint2 codes;
  uint32_t scale;
  __device__ void load(uint32_t unit, int lane, int) {
    codes = ptx::load_shared_8(unit + lane * 8);
    scale = ptx::load_shared_1(unit + 256 + lane);
  }
  __device__ void expand(uint32_t (&a)[2][4]) const {
    const uint32_t factor = scale * 0x00800080u;  // the scale times 128, twice
    uint32_t x[4], y[4];
    expand_nvfp4(codes.x, x);
    expand_nvfp4(codes.y, y);
    scale_pairs(x, y, factor, a);
  }
};

template <>
struct LaneWeights<UnitFormat::kInt4> {
  uint2 codes;
  uint32_t scale;
  __device__ void load(uint32_t unit, int lane, int unit_scales) {
    codes = ptx::load_shared_8(unit + lane * 8);
    const int index = lane / 4 * unit_scales + lane % 4 * unit_scales / 4;
    scale = ptx::load_shared_2(unit + 256 + index * 2);
  }
  __device__ void expand(uint32_t (&a)[2][4]) const {
    uint32_t x[4], y[4];
    expand_int4(codes.x, x);
    expand_int4(codes.y, y);
    scale_pairs(x, y, scale * 0x00010001u, a);
  }
};

// Sums of one tile in one segment for 4 * kTokenGroups tokens.
//
// A product multiplies 16 rows of A with 8 columns of B. Rows 0..7 of A are the tile's rows with
// the first half of each lane's columns (X), rows 8..15 the same rows with the second half (Y).
// Columns 0..3 of B are the X activations of four tokens, columns 4..7 their Y activations. Of the
// result the quadrants X-X and Y-Y are wanted, and their sum. That way a tile has only 8 rows,
// which shares narrow matrices out evenly over the multiprocessors, and no lane is idle.
template <int kTokenGroups>
struct TileSums {
  float c[kTokenGroups][2][4] = {};  // the two products of a unit are summed apart: shorter chains

  // Sums of weight row lane / 4 and tokens 4 * group + 2 * (lane % 2) and + 1; lanes t and t ^ 2
  // have the same.
  __device__ float2 total(int group) const {
    const bool is_x = threadIdx.x % 4 < 2;
    float x = is_x ? c[group][0][0] + c[group][1][0] : c[group][0][2] + c[group][1][2];
    float y = is_x ? c[group][0][1] + c[group][1][1] : c[group][0][3] + c[group][1][3];
    x += __shfl_xor_sync(0xffffffffu, x, 2);
    y += __shfl_xor_sync(0xffffffffu, y, 2);
    return {x, y};
  }
};

// sums += weights times activations of one unit. `activations`: of each token group, 8 activations
// of token g % 4: columns 16t .. + 7 (lanes g < 4, X) or 16t + 8 .. + 15 (Y).
template <UnitFormat kFormat, int kTokenGroups>
__device__ inline void multiply(TileSums<kTokenGroups>& sums, const LaneWeights<kFormat>& weights,
                                const uint4 (&activations)[kTokenGroups]) {
  uint32_t a[2][4];
  weights.expand(a);
#pragma unroll
  for (int group = 0; group < kTokenGroups; ++group) {
    const uint4& b = activations[group];
    if constexpr (kFormat == UnitFormat::kBf16) {
      ptx::mma_bf16(sums.c[group][0], a[0], b.x, b.y);
      ptx::mma_bf16(sums.c[group][1], a[1], b.z, b.w);
    } else {
      ptx::mma_f16(sums.c[group][0], a[0], b.x, b.y);
      ptx::mma_f16(sums.c[group][1], a[1], b.z, b.w);
    }
  }
}

}  // namespace levin::runtime::cuda
