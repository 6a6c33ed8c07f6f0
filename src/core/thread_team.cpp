#include "core/thread_team.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <string>
#include <system_error>

#include "core/control_groups.h"
#include "core/error.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace levin {
namespace {

using Clock = std::chrono::steady_clock;

// Spinning before the kernel is asked to wait: longer than threads of a phase differ, shorter than
// a scheduler tick. Being woken costs tens of microseconds.
constexpr std::chrono::nanoseconds kMostSpinning = std::chrono::microseconds{150};
constexpr std::chrono::nanoseconds kLeastSpinning = std::chrono::microseconds{2};
constexpr int kSpinsBetweenLooksAtClock = 32;

// On a machine that is busy with other things two threads of a team may share one core: then
// whoever spins keeps the other from what is waited for, and should spin less. Being late is no
// sign of it, since sleepers make one another late: threads know by how long they could not run.
constexpr double kCrowdedShare = 0.2;
constexpr std::chrono::milliseconds kLeastInterval{2};
std::atomic<Clock::rep> crowded_until{0};

// Whoever spins little loses little, which says nothing about others who want the core. So what
// comes back soon is believed for twice as long as the time before.
constexpr Clock::duration kCrowdedFirst = std::chrono::milliseconds{50};
constexpr Clock::duration kCrowdedMost = std::chrono::seconds{2};
void note_crowd(Clock::time_point at) {
  static std::atomic<Clock::rep> last{kCrowdedFirst.count()};
  const Clock::rep now = at.time_since_epoch().count();
  const Clock::rep until = crowded_until.load(std::memory_order_relaxed);
  Clock::rep length = last.load(std::memory_order_relaxed);
  if (now > until) {
    length = now - until < 4 * length ? std::min(2 * length, kCrowdedMost.count())
                                      : kCrowdedFirst.count();
    last.store(length, std::memory_order_relaxed);
  }
  crowded_until.store(now + length, std::memory_order_relaxed);
}

bool is_crowded(Clock::time_point now) {
  return now.time_since_epoch().count() < crowded_until.load(std::memory_order_relaxed);
}

// A thread's own account.
struct Account {
  // The last look: when it was, the thread's time on a core then, time asleep since.
  Clock::time_point looked = Clock::now();
  std::chrono::nanoseconds ran = cpu_time();
  std::chrono::nanoseconds asleep{0};

  static std::chrono::nanoseconds cpu_time() {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return std::chrono::seconds{time.tv_sec} + std::chrono::nanoseconds{time.tv_nsec};
  }
  // What the thread did until now says nothing: it may have waited for something else.
  void restart() {
    looked = Clock::now();
    ran = cpu_time();
    asleep = {};
  }
  // Tells everybody when the thread could not run for a good part of its time. A system call: for
  // those who have waited in vain or made others wait.
  void look() {
    const Clock::time_point now = Clock::now();
    const Clock::duration interval = now - looked;
    if (interval < kLeastInterval) return;
    const auto run = cpu_time();
    const auto lost = interval - asleep - (run - ran);
    looked = now;
    ran = run;
    asleep = {};
    if (static_cast<double>(lost.count()) > kCrowdedShare * static_cast<double>(interval.count())) {
      note_crowd(now);
    }
  }
};
Account& account() {
  thread_local Account own;
  return own;
}

// The kernel's wait and wake. Those of std::atomic give the core away a few times first: on a
// crowded machine that is a scheduler's slice for somebody else, each time, where who sleeps comes
// back at once.
long futex(const std::atomic<uint32_t>& value, int operation, uint32_t argument) {
  return syscall(SYS_futex, &value, operation, argument, nullptr, nullptr, 0);
}

void wait_for_change(const SleepCounter& value, uint32_t old) {
  const Clock::time_point begin = Clock::now();
  const auto longest = is_crowded(begin) ? kLeastSpinning : kMostSpinning;
  do {
    for (int spin = 0; spin < kSpinsBetweenLooksAtClock; ++spin) {
      if (value.count.load(std::memory_order_acquire) != old) return;
#if defined(__x86_64__)
      _mm_pause();
#endif
    }
  } while (Clock::now() - begin < longest);
  Account& own = account();
  own.look();
  const Clock::time_point to_bed = Clock::now();
  value.sleepers.fetch_add(1, std::memory_order_seq_cst);
  // Comes back at once if the count changed meanwhile, and now and then for no reason.
  while (value.count.load(std::memory_order_seq_cst) == old) {
    futex(value.count, FUTEX_WAIT_PRIVATE, old);
  }
  value.sleepers.fetch_sub(1, std::memory_order_relaxed);
  own.asleep += Clock::now() - to_bed;
}

// Wakes who sleeps; false when nobody does. After a change in sequentially consistent order: either
// this sees the sleeper, or the sleeper sees the change.
bool wake(const SleepCounter& value) {
  if (value.sleepers.load(std::memory_order_seq_cst) == 0) return false;
  futex(value.count, FUTEX_WAKE_PRIVATE, std::numeric_limits<int>::max());
  return true;
}

// The same by whoever may have made others wait because it could not run.
void wake_late(const SleepCounter& value) {
  if (wake(value)) account().look();
}

}  // namespace

bool threads_crowded() {
  return is_crowded(Clock::now());
}

void SpinBarrier::wait() {
  const uint32_t phase = phase_.count.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == participants_) {
    arrived_.store(0, std::memory_order_relaxed);
    phase_.count.store(phase + 1, std::memory_order_seq_cst);
    wake_late(phase_);
    return;
  }
  wait_for_change(phase_, phase);
}

ThreadTeam::ThreadTeam(int size, bool pinned) : size_(std::max(size, 1)), barrier_(size_) {
  try {
    start_threads();
    if (pinned) pin_threads();
  } catch (const Error&) {
    stop();
    throw;
  }
}

void ThreadTeam::start_threads() {
  threads_.reserve(static_cast<std::size_t>(size_));
  try {
    for (int thread = 1; thread < size_; ++thread) {
      threads_.emplace_back([this, thread] { worker(thread); });
    }
  } catch (const std::system_error& error) {
    throw Error({.what = "cannot start the threads asked for",
                 .where = "--threads",
                 .expected = std::to_string(size_),
                 .found = error.code().message() + " after " + std::to_string(threads_.size() + 1),
                 .hint = "ask for fewer",
                 .exit_code = ExitCode::kMachine});
  }
}

void ThreadTeam::pin_threads() {
  const auto refuse = [](std::string expected, std::string found) {
    throw Error({.what = "cannot bind a thread to a core",
                 .where = "--pin-threads",
                 .expected = std::move(expected),
                 .found = std::move(found),
                 .hint = "leave it out, or give --no-pin-threads beside a profile",
                 .exit_code = ExitCode::kMachine});
  };
  const std::vector<int> cores = usable_cores();
  if (cores.empty()) refuse("cores to choose from", "a kernel that does not tell them");
  for (int thread = 1; thread < size_; ++thread) {
    cpu_set_t set;
    CPU_ZERO(&set);
    const int core = core_of(thread, cores);
    CPU_SET(static_cast<std::size_t>(core), &set);
    std::thread& bound = threads_[static_cast<std::size_t>(thread - 1)];
    const int error = pthread_setaffinity_np(bound.native_handle(), sizeof(set), &set);
    if (error != 0) {
      refuse("core " + std::to_string(core), std::generic_category().message(error));
    }
  }
}

ThreadTeam::~ThreadTeam() {
  stop();
}

void ThreadTeam::stop() {
  stop_.store(true, std::memory_order_relaxed);
  generation_.count.fetch_add(1, std::memory_order_seq_cst);
  wake(generation_);
  for (std::thread& thread : threads_) thread.join();
}

void ThreadTeam::start_and_wait() {
  running_.count.store(static_cast<uint32_t>(size_ - 1), std::memory_order_relaxed);
  generation_.count.fetch_add(1, std::memory_order_seq_cst);
  // Between runs the caller may sleep, for want of work.
  if (wake(generation_)) account().restart();
  task_(context_, 0);
  for (uint32_t left = running_.count.load(std::memory_order_acquire); left != 0;
       left = running_.count.load(std::memory_order_acquire)) {
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
    running_.count.fetch_sub(1, std::memory_order_seq_cst);
    wake_late(running_);
  }
}

Range share(int64_t count, int part, int parts, int64_t grain) {
  const int64_t grains = (count + grain - 1) / grain;
  const int64_t begin = grains * part / parts * grain;
  const int64_t end = grains * (part + 1) / parts * grain;
  return {std::min(begin, count), std::min(end, count)};
}

std::vector<int> usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  }
  return cores;
}

int core_of(int thread, const std::vector<int>& cores) {
  return cores[static_cast<std::size_t>(thread) % cores.size()];
}

int available_cores() {
  const auto cores = static_cast<int>(usable_cores().size());
  // Rounded down: threads that are stopped for a part of every period keep the others waiting, and
  // waiting uses up the quota. With one of 1.5, a token of the tiny model took 0.75 ms on one
  // thread and 1.84 on two.
  static const double quota = processor_quota();
  return std::max(1, quota > 0 ? std::min(cores, static_cast<int>(quota)) : cores);
}

}  // namespace levin
