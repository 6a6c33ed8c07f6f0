// Philox-4x32: a counter-based random number generator (Salmon et al., SC'11). The same key and
// counter give the same words on every device, so randomness never depends on batching or order.
// Constants and round order as in Triton's tl.randint and FlashInfer.
#pragma once

#include <array>
#include <cstdint>

namespace levin {

// Four random words for (seed, offset). `rounds` is 10 by default; 5 is a documented faster setting
// of stochastic rounding.
constexpr std::array<uint32_t, 4> philox(uint64_t seed, uint64_t offset, int rounds = 10,
                                         uint64_t stream = 0) {
  uint32_t key0 = static_cast<uint32_t>(seed);
  uint32_t key1 = static_cast<uint32_t>(seed >> 32);
  std::array<uint32_t, 4> c = {static_cast<uint32_t>(offset), static_cast<uint32_t>(offset >> 32),
                               static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)};
  for (int i = 0; i < rounds; ++i) {
    const uint64_t a = uint64_t{0xCD9E8D57} * c[2];
    const uint64_t b = uint64_t{0xD2511F53} * c[0];
    c = {static_cast<uint32_t>(a >> 32) ^ c[1] ^ key0, static_cast<uint32_t>(a),
         static_cast<uint32_t>(b >> 32) ^ c[3] ^ key1, static_cast<uint32_t>(b)};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return c;
}

// Uniform in (0, 1], never 0: safe to take the logarithm of.
constexpr double uniform_open_closed(uint32_t high, uint32_t low) {
  const uint64_t bits = (uint64_t{high} << 32 | low) >> 11;  // 53 bits
  return static_cast<double>(bits + 1) * 0x1p-53;
}

}  // namespace levin
