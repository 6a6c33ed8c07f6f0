// A device round is one launch: no allocation, no copy and no wait, of the device or of the host.
// Counted by replacements of the CUDA runtime's functions (the linker's --wrap, see cuda.cmake) and
// of operator new.
#include <atomic>
#include <cstdlib>
#include <new>

#include "cuda_device.h"
#include "cuda_engine.h"
#include "engine/round.h"
#include "runtime/cuda/device.h"

#if defined(__GNUC__) && !defined(__clang__)
// GCC pairs the inlined malloc() and free() below with the built-in operators.
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"
#endif

namespace {

struct Calls {
  int64_t allocations = 0;  // and releases
  int64_t waits = 0;
  int64_t copies = 0;
  int64_t launches = 0;
  int64_t of_new = 0;
};
Calls calls;
std::atomic<int64_t> news = 0;

}  // namespace

void* operator new(std::size_t size) {
  news.fetch_add(1, std::memory_order_relaxed);
  if (void* memory = std::malloc(size > 0 ? size : 1)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}

// NOLINTBEGIN(bugprone-reserved-identifier): the linker's names.
#define LEVIN_COUNTED(counter, name, parameters, arguments) \
  cudaError_t __real_##name parameters;                     \
  cudaError_t __wrap_##name parameters {                    \
    ++calls.counter;                                        \
    return __real_##name arguments;                         \
  }

extern "C" {
LEVIN_COUNTED(allocations, cudaMalloc, (void** to, std::size_t bytes), (to, bytes))
LEVIN_COUNTED(allocations, cudaMallocAsync, (void** to, std::size_t bytes, cudaStream_t stream),
              (to, bytes, stream))
LEVIN_COUNTED(allocations, cudaMallocHost, (void** to, std::size_t bytes), (to, bytes))
LEVIN_COUNTED(allocations, cudaHostAlloc, (void** to, std::size_t bytes, unsigned flags),
              (to, bytes, flags))
LEVIN_COUNTED(allocations, cudaFree, (void* memory), (memory))
LEVIN_COUNTED(allocations, cudaFreeHost, (void* memory), (memory))
LEVIN_COUNTED(waits, cudaStreamSynchronize, (cudaStream_t stream), (stream))
LEVIN_COUNTED(waits, cudaDeviceSynchronize, (), ())
LEVIN_COUNTED(waits, cudaEventSynchronize, (cudaEvent_t event), (event))
LEVIN_COUNTED(copies, cudaMemcpy,
              (void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind),
              (to, from, bytes, kind))
LEVIN_COUNTED(copies, cudaMemcpyAsync,
              (void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
               cudaStream_t stream),
              (to, from, bytes, kind, stream))
LEVIN_COUNTED(launches, cudaGraphLaunch, (cudaGraphExec_t graph, cudaStream_t stream),
              (graph, stream))
}
// NOLINTEND(bugprone-reserved-identifier)

namespace levin::engine {
namespace {

Calls counted() {
  Calls now = calls;
  now.of_new = news.load();
  return now;
}

void count_rounds(int sequences, int k, double temperature) {
  const auto engine = testing::engine_with(model::load_model(testing::tiny_folder()), sequences);
  std::vector<Request> requests;
  for (int i = 0; i < sequences; ++i) {
    requests.push_back({.prompt = {1, 2, 3, 4 + i},
                        .sampling = {.temperature = temperature, .top_p = 0.9, .max_tokens = 500},
                        .speculation = {.num_speculative_tokens = k}});
  }
  Rounds rounds(*engine->runtime);
  std::vector<Sequence> run;
  for (int i = 0; i < sequences; ++i) {
    run.emplace_back(*engine, requests[static_cast<std::size_t>(i)], i, 1);
  }
  std::vector<Sequence*> views;
  for (Sequence& sequence : run) views.push_back(&sequence);
  for (int i = 0; i < 4; ++i) rounds.run(views);  // the prompts, and what the first rounds set up

  constexpr int kRounds = 25;
  const Calls before = counted();
  const std::size_t tokens = run[0].output().size();
  for (int i = 0; i < kRounds; ++i) rounds.run(views);
  const Calls after = counted();
  EXPECT_EQ(after.launches - before.launches, kRounds);
  EXPECT_EQ(after.waits - before.waits, 0);
  EXPECT_EQ(after.copies - before.copies, 0);
  EXPECT_EQ(after.allocations - before.allocations, 0);
  EXPECT_EQ(after.of_new - before.of_new, 0);
  EXPECT_GE(run[0].output().size(), tokens + kRounds);
  // The counters count.
  EXPECT_GT(before.allocations, 0);
  EXPECT_GT(before.waits, 0);
  EXPECT_GT(before.copies, 0);
  EXPECT_GT(before.of_new, 0);
}

TEST(CudaRoundCalls, OneLaunchAndNothingElse) {
  LEVIN_NEEDS_CUDA();
  count_rounds(1, 0, 0);
  count_rounds(1, 3, 0);
  count_rounds(1, 7, 1);
  count_rounds(2, 3, 1);
  count_rounds(8, 0, 1);
}

}  // namespace
}  // namespace levin::engine
