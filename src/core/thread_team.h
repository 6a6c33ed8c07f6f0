// A persistent team of threads that all run the same function at the same time (SPMD): `run` costs
// one wake-up per call, barriers inside it cost a spin. This is what the step path uses; there is
// no queue, no lock and no allocation in it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

namespace levin {

// A number that threads wait on, spinning first, and how many of them sleep.
struct SleepCounter {
  std::atomic<uint32_t> count{0};
  mutable std::atomic<int> sleepers{0};
};

// Spins for a short while and then sleeps, so that a team larger than the free cores still makes
// progress.
class SpinBarrier {
 public:
  explicit SpinBarrier(int participants) : participants_(participants) {}
  void wait();

 private:
  const int participants_;
  std::atomic<int> arrived_{0};
  SleepCounter phase_;
};

class ThreadTeam {
 public:
  // `size` threads take part in every run, the caller among them. At least 1. `pinned`: each but
  // the caller stays on a core of its own (core_of()), so that none of them ever shares one or
  // leaves its memory; the caller, whose affinity is its owner's, has the core that is left. Throws
  // Error when the machine has no more threads, or does not let them be bound.
  explicit ThreadTeam(int size, bool pinned = false);
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int size() const { return size_; }

  // Calls `function(thread)` for thread 0..size-1 at the same time and returns when all are done.
  // `function` must not throw. One run at a time.
  template <typename Function>
  void run(Function&& function) {
    using Callable = std::remove_reference_t<Function>;
    task_ = [](void* context, int thread) { (*static_cast<Callable*>(context))(thread); };
    context_ = const_cast<void*>(static_cast<const void*>(&function));
    start_and_wait();
  }

  // Inside run(): waits until every thread of the team is here.
  void barrier() { barrier_.wait(); }

 private:
  using Task = void (*)(void* context, int thread);
  void start_and_wait();
  void worker(int thread);
  void start_threads();
  void pin_threads();
  // Ends and joins the threads.
  void stop();

  int size_;
  SpinBarrier barrier_;
  std::vector<std::thread> threads_;
  SleepCounter generation_;
  SleepCounter running_;
  std::atomic<bool> stop_{false};
  Task task_ = nullptr;
  void* context_ = nullptr;
};

// Whether threads of this process were found, lately, to keep each other or other programs waiting
// for cores: then those that wait sleep soon.
bool threads_crowded();

// Contiguous share of `count` items for `part` of `parts`, sizes differing by at most one `grain`.
struct Range {
  int64_t begin;
  int64_t end;
};
Range share(int64_t count, int part, int parts, int64_t grain = 1);

// Cores this process may run on: its affinity mask; empty where the kernel does not tell.
std::vector<int> usable_cores();
// Threads that this process can keep busy: their number, or less where its control groups give it
// less time (containers); at least 1.
int available_cores();
// Which of `cores` a pinned thread of a team stays on: the first is the caller's, and where there
// are more threads than cores they begin again. `cores` is not empty.
int core_of(int thread, const std::vector<int>& cores);

}  // namespace levin
