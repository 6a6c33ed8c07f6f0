// How the SSM state is rounded when its cache is F16, shared by all runtimes so that they can be
// compared. The state is rounded after every token, in prefill and decode alike: any split of the
// same tokens then gives the same bits. (vLLM and FlashInfer round once per prefill chunk and once
// per decode step, which makes the result depend on the chunking.) The output of a token uses the
// state before rounding.
//
// Stochastic rounding adds 13 random bits below the last kept mantissa bit, the software path of
// FlashInfer's include/flashinfer/mamba/conversion.cuh: magnitudes that end below the smallest
// normal F16 number become zero, overflow becomes infinity. The bits are a pure function of (seed,
// layer, token position, element): element e of a layer's state, counted row-major in [heads,
// head_dim, state], takes half-word e % 8 of philox(seed, e / 8, rounds, layer << 32 | position).
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <span>

#include "core/philox.h"
#include "core/small_floats.h"
#include "runtime/runtime.h"

namespace levin::runtime {

// F16 bits of `value` rounded stochastically with the lower 13 bits of `random`.
inline uint16_t stochastic_float_to_f16(float value, uint32_t random) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return 0x7e00;  // NaN
  if (magnitude < 0x7f800000u) magnitude += random & 0x1fffu;
  const uint32_t exponent = magnitude >> 23;
  if (exponent > 142) return sign | 0x7c00;
  if (exponent < 113) return sign;
  return static_cast<uint16_t>(sign | ((exponent - 112) << 10) | ((magnitude >> 13) & 0x3ffu));
}

// Replaces `state`, elements first_element .. of layer `layer` after the token at `position`, by
// what the cache holds. F32 caches hold it as it is.
inline void round_ssm_state(std::span<float> state, const Options& options, int layer,
                            int64_t position, int64_t first_element) {
  if (options.ssm_cache_dtype == SsmCacheDType::kF32) return;
  if (!options.stochastic_rounding) {
    for (float& value : state) value = f16_to_float(float_to_f16(value));
    return;
  }
  const uint64_t stream = static_cast<uint64_t>(layer) << 32 | static_cast<uint32_t>(position);
  std::array<uint32_t, 4> words{};
  for (std::size_t i = 0; i < state.size(); ++i) {
    const uint64_t element = static_cast<uint64_t>(first_element) + i;
    if (i == 0 || element % 8 == 0) {
      words = philox(options.seed, element / 8, options.philox_rounds, stream);
    }
    const uint32_t word = words[element % 8 / 2];
    const uint32_t random = element % 2 == 0 ? word : word >> 16;
    state[i] = f16_to_float(stochastic_float_to_f16(state[i], random));
  }
}

}  // namespace levin::runtime
