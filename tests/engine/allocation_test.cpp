// A round allocates nothing: counted by a replaced operator new (not under sanitizers, which bring
// their own).
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <new>

#include "engine/round.h"
#include "engine/step_policy.h"
#include "fake_runtime.h"

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

// GCC pairs the inlined malloc() and free() below with the built-in operators.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"
#endif

namespace {
std::atomic<int64_t> allocations = 0;
}

void* operator new(std::size_t size) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* memory = std::malloc(size > 0 ? size : 1)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace levin::engine {
namespace {

TEST(Allocations, NoneInARound) {
  Engine engine;
  engine.model = model::load_model(std::filesystem::path(LEVIN_SOURCE_DIR) / "models/tiny");
  engine.runtime = runtime::make_reference_runtime(
      engine.model, {.max_model_len = 256, .max_num_seqs = 3, .max_extend_tokens = 32});
  const std::vector<SamplingParams> kinds = {
      {.temperature = 0, .max_tokens = 100},
      {.temperature = 1, .top_k = 50, .top_p = 0.9, .max_tokens = 100},
      {.temperature = 1,
       .min_p = 0.01,
       .frequency_penalty = 0.2,
       .max_tokens = 100,
       .min_tokens = 9}};
  std::vector<Request> requests;
  for (const SamplingParams& sampling : kinds) {
    requests.push_back({.prompt = testing::Tokens(40, 300),
                        .sampling = sampling,
                        .speculation = {.num_speculative_tokens = 3}});
  }
  Rounds rounds(*engine.runtime);
  std::vector<Sequence> sequences;
  for (int slot = 0; slot < 3; ++slot) {
    sequences.emplace_back(engine, requests[static_cast<std::size_t>(slot)], slot, 1);
  }
  std::vector<Sequence*> views;
  for (Sequence& sequence : sequences) views.push_back(&sequence);

  const int64_t before = allocations.load();
  for (int round = 0; round < 15; ++round) rounds.run(views);
  EXPECT_EQ(allocations.load() - before, 0);
  for (const Sequence& sequence : sequences) EXPECT_GT(sequence.output().size(), 10U);
  // The counter counts.
  std::vector<int> one(100);
  EXPECT_GT(allocations.load(), before);
}

TEST(Allocations, NoneInAChoice) {
  StepPolicy policy({.most_drafts = 7});
  RoundReport report;
  report.drafts_tried.resize(7, 1);
  report.drafts_right.resize(7, 1);
  const int64_t before = allocations.load();
  for (int round = 0; round < 500; ++round) {
    const int n = 1 + round % 70;
    const RoundLimits limits = policy.next({.adaptive = n, .most_drafts = 7, .prompts = n % 3});
    report.decoding = n;
    report.decode_rows = n * (1 + limits.adaptive_drafts);
    report.prompt_rows = n % 3 == 0 ? 0 : limits.prompt_tokens;
    report.extend_seconds = 1e-3 * (report.decode_rows + 2 * n);
    policy.observe(report);
  }
  EXPECT_EQ(allocations.load() - before, 0);
}

}  // namespace
}  // namespace levin::engine

#endif
