#include "bench/arithmetic.h"

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "core/thread_team.h"
#include "runtime/cpu/isa.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace levin::bench {
namespace {

using Clock = std::chrono::steady_clock;

// Independent sums: more than latency times throughput of any multiply-add.
constexpr int kSums = 12;
constexpr double kPassSeconds = 0.01;

// `steps` times kSums multiply-adds of a vector. The result depends on all of them.
using Loop = float (*)(int64_t steps);

struct Kind {
  const char* name;
  const char* instruction;
  Loop loop;
  double operations;  // of one instruction
};

// Two instructions, which levin asks no compiler to fuse.
float f32_plain(int64_t steps) {
  float sums[kSums] = {};
  float a = 1.0F;
  for (int64_t step = 0; step < steps; ++step) {
    for (float& sum : sums) sum += a * 1e-3F;
    a += 1e-3F;  // or the product would be the same in every step
  }
  float all = 0;
  for (const float sum : sums) all += sum;
  return all;
}

#if defined(__x86_64__)
[[gnu::target("avx2,fma")]] float f32_avx2(int64_t steps) {
  const __m256 a = _mm256_set1_ps(1.5F);
  const __m256 b = _mm256_set1_ps(1e-3F);
  __m256 sums[kSums];
  for (__m256& sum : sums) sum = _mm256_setzero_ps();
  for (int64_t step = 0; step < steps; ++step) {
#pragma GCC unroll 12
    for (__m256& sum : sums) sum = _mm256_fmadd_ps(a, b, sum);
  }
  for (const __m256& sum : sums) sums[0] = _mm256_add_ps(sums[0], sum);
  return _mm256_cvtss_f32(sums[0]);
}

[[gnu::target("avx512f")]] float f32_avx512(int64_t steps) {
  const __m512 a = _mm512_set1_ps(1.5F);
  const __m512 b = _mm512_set1_ps(1e-3F);
  __m512 sums[kSums];
  for (__m512& sum : sums) sum = _mm512_setzero_ps();
  for (int64_t step = 0; step < steps; ++step) {
#pragma GCC unroll 12
    for (__m512& sum : sums) sum = _mm512_fmadd_ps(a, b, sum);
  }
  for (const __m512& sum : sums) sums[0] = _mm512_add_ps(sums[0], sum);
  return _mm512_cvtss_f32(sums[0]);
}

[[gnu::target("avx512f,avx512bf16")]] float bf16_avx512(int64_t steps) {
  const __m512bh a = reinterpret_cast<__m512bh>(_mm512_set1_epi32(0x3fc03fc0));  // 1.5, twice
  const __m512bh b = reinterpret_cast<__m512bh>(_mm512_set1_epi32(0x3a833a83));  // about 1e-3
  __m512 sums[kSums];
  for (__m512& sum : sums) sum = _mm512_setzero_ps();
  for (int64_t step = 0; step < steps; ++step) {
#pragma GCC unroll 12
    for (__m512& sum : sums) sum = _mm512_dpbf16_ps(sum, a, b);
  }
  for (const __m512& sum : sums) sums[0] = _mm512_add_ps(sums[0], sum);
  return _mm512_cvtss_f32(sums[0]);
}

// Sums in tiles 0 to 3, so that a product never waits for the one before it.
[[gnu::target("amx-tile,amx-bf16")]] float bf16_amx(int64_t steps) {
  struct alignas(64) {
    uint8_t palette = 1;
    uint8_t start_row = 0;
    uint8_t reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
  } config;
  for (int i = 0; i < 8; ++i) {
    config.row_bytes[i] = 64;
    config.rows[i] = 16;
  }
  alignas(64) uint16_t operand[512];
  std::fill(std::begin(operand), std::end(operand), uint16_t{0x3a83});  // about 1e-3
  alignas(64) float sums[256];
  _tile_loadconfig(&config);
  _tile_loadd(6, operand, 64);
  _tile_loadd(7, operand, 64);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t step = 0; step < steps; ++step) {
#pragma GCC unroll 3
    for (int i = 0; i < kSums / 4; ++i) {
      _tile_dpbf16ps(0, 6, 7);
      _tile_dpbf16ps(1, 6, 7);
      _tile_dpbf16ps(2, 6, 7);
      _tile_dpbf16ps(3, 6, 7);
    }
  }
  _tile_stored(0, sums, 64);
  _tile_release();
  return sums[0];
}

[[gnu::target("avx512f,avx512vnni")]] float int8_avx512(int64_t steps) {
  const __m512i a = _mm512_set1_epi8(3);
  const __m512i b = _mm512_set1_epi8(-2);
  __m512i sums[kSums];
  for (__m512i& sum : sums) sum = _mm512_setzero_si512();
  for (int64_t step = 0; step < steps; ++step) {
#pragma GCC unroll 12
    for (__m512i& sum : sums) sum = _mm512_dpbusd_epi32(sum, a, b);
  }
  for (const __m512i& sum : sums) sums[0] = _mm512_add_epi32(sums[0], sum);
  int32_t lanes[16];
  _mm512_storeu_si512(lanes, sums[0]);
  return static_cast<float>(lanes[0]);
}
#endif

std::vector<Kind> supported_kinds() {
#if defined(__x86_64__)
  std::vector<Kind> kinds;
  const bool avx512 = __builtin_cpu_supports("avx512f") != 0;
  const std::vector<runtime::cpu::Isa> isas = runtime::cpu::supported_isas();
  if (std::find(isas.begin(), isas.end(), runtime::cpu::Isa::kAmx) != isas.end()) {
    kinds.push_back({"BF16", "tdpbf16ps", bf16_amx, 16 * 16 * 32 * 2});
  } else if (avx512 && __builtin_cpu_supports("avx512bf16")) {
    kinds.push_back({"BF16", "vdpbf16ps", bf16_avx512, 64});
  }
  if (avx512 && __builtin_cpu_supports("avx512vnni")) {
    kinds.push_back({"INT8", "vpdpbusd", int8_avx512, 128});
  }
  if (avx512) {
    kinds.push_back({"F32", "vfmadd231ps, 512 bits", f32_avx512, 32});
  } else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    kinds.push_back({"F32", "vfmadd231ps, 256 bits", f32_avx2, 16});
  } else {
    kinds.push_back({"F32", "mulss, addss", f32_plain, 2});
  }
  return kinds;
#else
  return {{"F32", "plain C++", f32_plain, 2}};
#endif
}

// One cache line for each thread.
struct alignas(64) Sink {
  float value = 0;
};

Spread measure(const Kind& kind, int threads, int passes) {
  ThreadTeam team(threads);
  std::vector<Sink> sinks(static_cast<std::size_t>(threads));
  const auto seconds = [&](int64_t steps) {
    const Clock::time_point start = Clock::now();
    team.run([&](int thread) { sinks[static_cast<std::size_t>(thread)].value = kind.loop(steps); });
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  const int64_t steps = steps_that_take(kPassSeconds, seconds);
  std::vector<double> rates;
  for (int pass = 0; pass < passes; ++pass) {
    const double operations = kind.operations * kSums * static_cast<double>(steps) * threads;
    rates.push_back(operations / seconds(steps) / 1e9);
  }
  return spread_of(rates);
}

}  // namespace

int64_t steps_that_take(double least, const std::function<double(int64_t)>& seconds) {
  constexpr int kTimes = 3;
  const auto enough = [&](int64_t steps) {
    for (int i = 0; i < kTimes; ++i) {
      if (seconds(steps) < least) return false;
    }
    return true;
  };
  int64_t steps = 1 << 12;
  while (steps < (int64_t{1} << 40) && !enough(steps)) steps *= 2;
  return steps;
}

std::vector<ArithmeticRate> measure_arithmetic(const ArithmeticOptions& options) {
  const int threads = options.threads > 0 ? options.threads : available_cores();
  std::vector<ArithmeticRate> rates;
  for (const Kind& kind : supported_kinds()) {
    rates.push_back({.name = kind.name,
                     .instruction = kind.instruction,
                     .one_thread = measure(kind, 1, options.passes),
                     .all_threads = measure(kind, threads, options.passes),
                     .threads = threads});
  }
  return rates;
}

const ArithmeticRate& rate_of(const std::vector<ArithmeticRate>& rates, const std::string& name) {
  const auto found = std::find_if(rates.begin(), rates.end(),
                                  [&](const ArithmeticRate& rate) { return rate.name == name; });
  return found != rates.end() ? *found : rates.back();
}

}  // namespace levin::bench
