#include "core/thread_team.h"

#include <sched.h>

#include <algorithm>
#include <string>
#include <system_error>

#include "core/error.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace levin {
namespace {

// Spinning before the kernel is asked to wait: tens of microseconds, longer than threads of a phase
// differ, shorter than a scheduler tick.
constexpr int kMostSpins = 4000;
constexpr int kLeastSpins = 60;

// Waits until `value` is no longer `old`. On a machine that is busy with other things two threads
// of a team may share one core: then whoever spins keeps the other from what is waited for. So
// spinning in vain makes the next spin shorter, and a wait that ends in time makes it longer again.
template <typename T>
void wait_for_change(const std::atomic<T>& value, T old) {
  thread_local int most = kMostSpins;
  for (int spin = 0; spin < most; ++spin) {
    if (value.load(std::memory_order_acquire) != old) {
      most = std::min(2 * most, kMostSpins);
      return;
    }
#if defined(__x86_64__)
    _mm_pause();
#endif
  }
  most = std::max(most / 2, kLeastSpins);
  value.wait(old, std::memory_order_acquire);
}

}  // namespace

void SpinBarrier::wait() {
  const uint32_t phase = phase_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == participants_) {
    arrived_.store(0, std::memory_order_relaxed);
    phase_.store(phase + 1, std::memory_order_release);
    phase_.notify_all();  // a look at a counter unless somebody sleeps
    return;
  }
  wait_for_change(phase_, phase);
}

ThreadTeam::ThreadTeam(int size) : size_(std::max(size, 1)), barrier_(size_) {
  threads_.reserve(static_cast<std::size_t>(size_));
  try {
    for (int thread = 1; thread < size_; ++thread) {
      threads_.emplace_back([this, thread] { worker(thread); });
    }
  } catch (const std::system_error& error) {
    stop();
    throw Error({.what = "cannot start the threads asked for",
                 .where = "--threads",
                 .expected = std::to_string(size_),
                 .found = error.code().message() + " after " + std::to_string(threads_.size() + 1),
                 .hint = "ask for fewer",
                 .exit_code = ExitCode::kMachine});
  }
}

ThreadTeam::~ThreadTeam() {
  stop();
}

void ThreadTeam::stop() {
  stop_.store(true, std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadTeam::start_and_wait() {
  running_.store(size_ - 1, std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  task_(context_, 0);
  for (int left = running_.load(std::memory_order_acquire); left != 0;
       left = running_.load(std::memory_order_acquire)) {
    wait_for_change(running_, left);
  }
}

void ThreadTeam::worker(int thread) {
  uint32_t seen = 0;
  while (true) {
    wait_for_change(generation_, seen);
    ++seen;
    if (stop_.load(std::memory_order_relaxed)) return;
    task_(context_, thread);
    running_.fetch_sub(1, std::memory_order_release);
    running_.notify_all();
  }
}

Range share(int64_t count, int part, int parts, int64_t grain) {
  const int64_t grains = (count + grain - 1) / grain;
  const int64_t begin = grains * part / parts * grain;
  const int64_t end = grains * (part + 1) / parts * grain;
  return {std::min(begin, count), std::min(end, count)};
}

int available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

}  // namespace levin
