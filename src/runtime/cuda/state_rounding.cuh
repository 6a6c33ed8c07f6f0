// What an F16 cache holds of an SSM state: rounding to nearest or stochastically
// (runtime/ssm_rounding.h), on the device.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

namespace levin::runtime::cuda {

// F16 bits of `value` with 13 random bits added below the last kept bit (runtime/ssm_rounding.h).
__device__ inline float round_stochastically(float value, uint32_t random) {
  const uint32_t bits = __float_as_uint(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t half;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u;
  } else {
    if (magnitude < 0x7f800000u) magnitude += random & 0x1fffu;
    const uint32_t exponent = magnitude >> 23;
    half = exponent > 142   ? sign | 0x7c00u
           : exponent < 113 ? sign
                            : sign | ((exponent - 112) << 10) | ((magnitude >> 13) & 0x3ffu);
  }
  return __half2float(__ushort_as_half(static_cast<unsigned short>(half)));
}

// Philox-4x32 (core/philox.h) on the device.
__device__ inline void device_philox(uint64_t seed, uint64_t offset, int rounds, uint64_t stream,
                                     uint32_t (&c)[4]) {
  uint32_t key0 = static_cast<uint32_t>(seed);
  uint32_t key1 = static_cast<uint32_t>(seed >> 32);
  c[0] = static_cast<uint32_t>(offset);
  c[1] = static_cast<uint32_t>(offset >> 32);
  c[2] = static_cast<uint32_t>(stream);
  c[3] = static_cast<uint32_t>(stream >> 32);
  for (int i = 0; i < rounds; ++i) {
    const uint32_t a_high = __umulhi(0xCD9E8D57u, c[2]);
    const uint32_t a_low = 0xCD9E8D57u * c[2];
    const uint32_t b_high = __umulhi(0xD2511F53u, c[0]);
    const uint32_t b_low = 0xD2511F53u * c[0];
    const uint32_t c0 = a_high ^ c[1] ^ key0;
    const uint32_t c2 = b_high ^ c[3] ^ key1;
    c[0] = c0;
    c[1] = a_low;
    c[2] = c2;
    c[3] = b_low;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
}

// The 16 random bits of one element of a layer's state, [heads, head_dim, states], after the token
// at `position`.
__device__ inline uint32_t rounding_bits(uint64_t seed, int rounds, int layer, int position,
                                         uint64_t element) {
  const uint64_t stream = static_cast<uint64_t>(layer) << 32 | static_cast<uint32_t>(position);
  uint32_t words[4];
  device_philox(seed, element / 8, rounds, stream, words);
  const int which = static_cast<int>(element % 8);
  uint32_t word = words[0];
#pragma unroll
  for (int k = 1; k < 4; ++k) {
    if (which / 2 == k) word = words[k];
  }
  return which % 2 == 0 ? word : word >> 16;
}

}  // namespace levin::runtime::cuda
