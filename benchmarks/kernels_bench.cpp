// The linear kernels of the CPU runtime at the matrix shapes of Nemotron 3 Nano 30B-A3B, on all
// cores. Decode and verification (1 to 8 tokens) are judged by the bytes they read, as a share of
// what a plain streaming read gets in the same process; prefill by its arithmetic. The control is
// the loop that one writes first: row-major BF16, one dot product a row.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/thread_team.h"
#include "runtime/cpu/arena.h"
#include "runtime/cpu/isa.h"
#include "runtime/cpu/panels.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace levin::runtime::cpu {
namespace {

using model::ActivationFormat;
using model::WeightFormat;

// More than the caches hold, so that weights come from memory as they do in a real step.
constexpr int64_t kWorkingSet = int64_t{384} << 20;

ThreadTeam& team() {
  static ThreadTeam instance(available_cores());
  return instance;
}

// GB/s of reading memory in order with all threads: the best of a few passes.
double read_bandwidth() {
  static const double measured = [] {
    ArenaPlan plan;
    const auto place = plan.add<uint64_t>(kWorkingSet / 8);
    const Arena arena(plan.bytes());
    uint64_t* data = arena.at(place);
    std::fill_n(data, place.count, 1);
    std::vector<uint64_t> sums(static_cast<std::size_t>(team().size()) * 8);
    double best = 0;
    for (int pass = 0; pass < 8; ++pass) {
      const auto start = std::chrono::steady_clock::now();
      team().run([&](int thread) {
        const Range range = share(place.count, thread, team().size(), 32);
        uint64_t sum[8] = {};
        for (int64_t i = range.begin; i + 8 <= range.end; i += 8) {
          for (int j = 0; j < 8; ++j) sum[j] += data[i + j];
        }
        sums[static_cast<std::size_t>(thread) * 8] =
            sum[0] + sum[1] + sum[2] + sum[3] + sum[4] + sum[5] + sum[6] + sum[7];
      });
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
      benchmark::DoNotOptimize(sums.data());
      best = std::max(best, static_cast<double>(kWorkingSet) / seconds.count() * 1e-9);
    }
    return best;
  }();
  return measured;
}

struct Format {
  const char* name;
  WeightFormat weights;
  ActivationFormat activations;
  int group;
  double bits;
};

constexpr Format kFormats[] = {
    {"bf16", WeightFormat::kBf16, ActivationFormat::kNone, 0, 16},
    {"fp8", WeightFormat::kFp8, ActivationFormat::kFp8Static, 0, 8},
    {"nvfp4_w4a16", WeightFormat::kNvfp4, ActivationFormat::kNone, 16, 4.5},
    {"nvfp4_w4a4", WeightFormat::kNvfp4, ActivationFormat::kNvfp4, 16, 4.5},
    {"int4_g64", WeightFormat::kInt4, ActivationFormat::kNone, 64, 4.25},
    {"f32_router", WeightFormat::kF32, ActivationFormat::kNone, 0, 32},
};

struct Shape {
  const char* name;
  int64_t out, in;
};

// lm_head is cut to a quarter of its 131072 rows, which is larger than any cache already.
constexpr Shape kShapes[] = {
    {"in_proj", 10304, 2688},
    {"expert_up", 1856, 2688},
    {"expert_down", 2688, 1856},
    {"lm_head", 32768, 2688},
};

// As many copies of a matrix as fill the working set, with random bytes that are valid codes.
struct Matrices {
  std::vector<std::byte> weight, scales;
  model::Linear linear;
  Matrix matrix;
  Arena arena;
  std::vector<PanelMatrix> copies;

  Matrices(const Kernels& k, const Format& format, const Shape& shape) {
    const auto elements = static_cast<double>(shape.out * shape.in);
    std::mt19937_64 random(1);
    const auto fill = [&](std::vector<std::byte>& bytes, double size, uint64_t mask) {
      bytes.resize(static_cast<std::size_t>(size));
      for (std::size_t i = 0; i + 8 <= bytes.size(); i += 8) {
        const uint64_t word = random() & mask;
        std::memcpy(bytes.data() + i, &word, 8);
      }
    };
    const bool four_bits = format.group > 0;
    // The masks keep exponents moderate and exclude NaN.
    fill(weight, elements * (four_bits ? 4 : format.bits) / 8,
         four_bits          ? ~uint64_t{0}
         : format.bits == 8 ? 0xbfbfbfbfbfbfbfbfULL
                            : 0xbfffbfffbfffbfffULL);
    if (four_bits) {
      fill(scales, elements / format.group * (format.group == 16 ? 1 : 2),
           format.group == 16 ? 0x3f3f3f3f3f3f3f3fULL : 0x3fff3fff3fff3fffULL);
    }
    linear.name = shape.name;
    linear.format = format.weights;
    linear.activation = format.activations;
    linear.out = shape.out;
    linear.in = shape.in;
    linear.group_size = format.group;
    linear.weight.bytes = weight;
    linear.scales.bytes = scales;
    linear.input_scale = 1.0F / 500;
    matrix = plan_matrix(linear, /*exact_input=*/false, k.integer_products);

    const int64_t count = std::max<int64_t>(1, kWorkingSet / matrix.weight_bytes());
    ArenaPlan plan;
    const auto row_scale = plan.add<float>(matrix.panels.panels * kLanes);
    std::vector<Place<uint8_t>> places;
    for (int64_t i = 0; i < count; ++i) places.push_back(plan.add<uint8_t>(matrix.weight_bytes()));
    arena = Arena(plan.bytes());
    for (const auto& place : places) {
      matrix.panels.data = arena.at(place);
      matrix.panels.row_scale = arena.at(row_scale);
      copies.push_back(matrix.panels);
    }
    team().run([&](int thread) {
      const Range range = share(matrix.panels.panels, thread, team().size());
      for (const auto& place : places) {
        pack_panels(matrix, range.begin, range.end, arena.at(place), arena.at(row_scale), nullptr);
      }
    });
  }
};

// Activations of `tokens` tokens, packed, with room for the results.
struct Batch {
  Arena arena;
  PackedInput input;
  LinearOutput output;
  std::vector<uint8_t*> scratch;

  Batch(const Kernels& k, const Matrix& m, int64_t tokens) {
    ArenaPlan plan;
    const auto x = plan.add<float>(m.in);
    const auto tile = plan.add<uint8_t>(m.input_bytes(tokens));
    const auto scale = plan.add<float>(tokens);
    const auto y = plan.add<float>(tokens * m.panels.panels * kLanes);
    std::vector<Place<uint8_t>> places;
    for (int i = 0; i < team().size(); ++i) {
      places.push_back(plan.add<uint8_t>(linear_scratch_bytes(m.panels.blocks)));
    }
    arena = Arena(plan.bytes());
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < m.in; ++i) arena.at(x)[i] = normal(random);
    const std::vector<const float*> rows(static_cast<std::size_t>(kTile), arena.at(x));
    for (int64_t t = 0; t < tokens; t += kTile) {
      k.pack(rows.data(), std::min(kTile, tokens - t), m.in, m.input, m.panels.digits,
             m.input_scale, arena.at(tile) + m.input_bytes(t), arena.at(scale) + t);
    }
    input = {arena.at(tile), arena.at(scale), tokens};
    output.base = arena.at(y);
    output.stride = m.panels.panels * kLanes;
    for (const auto& place : places) scratch.push_back(arena.at(place));
  }
};

void report(benchmark::State& state, double bytes, double multiplications) {
  const auto passes = static_cast<double>(state.iterations());
  using benchmark::Counter;
  state.counters["GB/s"] = Counter(bytes * passes * 1e-9, Counter::kIsRate);
  state.counters["of_read"] = Counter(bytes * passes * 1e-9 / read_bandwidth(), Counter::kIsRate);
  state.counters["GFLOP/s"] = Counter(2 * multiplications * passes * 1e-9, Counter::kIsRate);
}

void run_linear(benchmark::State& state, Isa isa, const Format& format, const Shape& shape,
                int64_t tokens) {
  const Kernels& k = kernels(isa);
  const Matrices matrices(k, format, shape);
  const Batch batch(k, matrices.matrix, tokens);
  std::size_t next = 0;
  for (auto _ : state) {
    const PanelMatrix& m = matrices.copies[next];
    next = (next + 1) % matrices.copies.size();
    team().run([&](int thread) {
      const Range range = share(m.panels, thread, team().size());
      k.linear(m, batch.input, batch.output, range.begin, range.end,
               batch.scratch[static_cast<std::size_t>(thread)]);
    });
  }
  report(state, static_cast<double>(matrices.matrix.weight_bytes()),
         static_cast<double>(shape.out * shape.in * tokens));
}

void run_read(benchmark::State& state) {
  for (auto _ : state) state.SetIterationTime(1);
  state.counters["GB/s"] = read_bandwidth();
}

#if defined(__x86_64__)
// y = W x, W row-major BF16, for one token.
__attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16"))) void plain_bf16(
    const uint16_t* weights, const uint16_t* x, int64_t in, int64_t begin, int64_t end, float* y) {
  for (int64_t row = begin; row < end; ++row) {
    __m512 a = _mm512_setzero_ps();
    __m512 b = _mm512_setzero_ps();
    const uint16_t* w = weights + row * in;
    for (int64_t k = 0; k + 64 <= in; k += 64) {
      const auto bf16 = [](const uint16_t* p) __attribute__((target("avx512f,avx512bf16"))) {
        return __builtin_bit_cast(__m512bh, _mm512_loadu_si512(p));
      };
      a = _mm512_dpbf16_ps(a, bf16(w + k), bf16(x + k));
      b = _mm512_dpbf16_ps(b, bf16(w + k + 32), bf16(x + k + 32));
    }
    y[row] = _mm512_reduce_add_ps(_mm512_add_ps(a, b));
  }
}

// Several tokens: the plain loop reads the weights once for each.
void run_control(benchmark::State& state, const Shape& shape, int64_t tokens) {
  const int64_t elements = shape.out * shape.in;
  const int64_t count = std::max<int64_t>(1, kWorkingSet / (2 * elements));
  ArenaPlan plan;
  const auto weights = plan.add<uint16_t>(count * elements);
  const auto x = plan.add<uint16_t>(shape.in * tokens);
  const auto y = plan.add<float>(shape.out * tokens);
  const Arena arena(plan.bytes());
  std::fill_n(arena.at(weights), weights.count, uint16_t{0x3c00});
  std::fill_n(arena.at(x), x.count, uint16_t{0x3c00});
  int64_t next = 0;
  for (auto _ : state) {
    const uint16_t* w = arena.at(weights) + next * elements;
    next = (next + 1) % count;
    team().run([&](int thread) {
      const Range range = share(shape.out, thread, team().size());
      for (int64_t t = 0; t < tokens; ++t) {
        plain_bf16(w, arena.at(x) + t * shape.in, shape.in, range.begin, range.end,
                   arena.at(y) + t * shape.out);
      }
    });
  }
  report(state, static_cast<double>(2 * elements), static_cast<double>(elements * tokens));
}
#endif

void register_all() {
  benchmark::RegisterBenchmark("read", run_read)->Iterations(1)->UseManualTime();
  const auto add = [](const std::string& name, auto function) {
    benchmark::RegisterBenchmark(name.c_str(), function)
        ->UseRealTime()
        ->MinTime(0.3)
        ->Unit(benchmark::kMicrosecond);
  };
  for (const Isa isa : supported_isas()) {
    for (const Format& format : kFormats) {
      for (const Shape& shape : kShapes) {
        for (const int64_t tokens : {1, 2, 4, 8, 64}) {
          if (isa != best_isa() && std::string(shape.name) != "expert_up") continue;
          const std::string name = std::string(tokens > 8 ? "prefill/" : "decode/") +
                                   std::string(name_of(isa)) + "/" + format.name + "/" +
                                   shape.name + "/" + std::to_string(tokens);
          add(name,
              [=](benchmark::State& state) { run_linear(state, isa, format, shape, tokens); });
        }
      }
    }
  }
#if defined(__x86_64__)
  if (best_isa() == Isa::kAvx512Bf16) {
    for (const Shape& shape : kShapes) {
      for (const int64_t tokens : {1, 4}) {
        add(std::string("control/plain_bf16/") + shape.name + "/" + std::to_string(tokens),
            [=](benchmark::State& state) { run_control(state, shape, tokens); });
      }
    }
  }
#endif
}

}  // namespace
}  // namespace levin::runtime::cpu

int main(int argc, char** argv) {
  levin::runtime::cpu::register_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
