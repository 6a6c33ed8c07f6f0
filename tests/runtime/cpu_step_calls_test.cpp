// A step on the CPU asks the kernel for nothing: counted by a parent that traces a child, as strace
// does. With two threads on a busy machine one may sleep at a barrier, and nothing else.
#include <gtest/gtest.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>
#include <vector>

#include "runtime/cpu/cpu_runtime.h"
#include "runtime/cpu_model_variants.h"

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

namespace levin::runtime::cpu {
namespace {

constexpr int kSteps = 40;
// A call that nothing else makes, with an argument that it ignores, begins a step and ends the
// last.
constexpr long kMarker = SYS_getppid;
constexpr long kMarked = 0x1e71;

using Calls = std::map<uint64_t, int>;  // by number

// Drafts, verifies and rewinds, with a marker before each step and one behind.
[[noreturn]] void run_steps(int threads) {
  const auto runtime = make_cpu_runtime(
      tiny_model(), {.max_model_len = 512, .max_extend_tokens = 64, .threads = threads});
  std::vector<int32_t> tokens(50, 5);
  runtime->extend(std::vector<Extend>{{.tokens = tokens}});
  const std::vector<Draft> draft = {{.next_token = 3, .k = 3}};
  const std::vector<Extend> verify = {{.tokens = std::span(tokens).first(4), .logits_rows = 4}};
  for (int step = 0; step < kSteps; ++step) {
    ::syscall(kMarker, kMarked);
    runtime->draft(draft);
    runtime->extend(verify);
    runtime->rewind(0, runtime->length(0) - 2);
  }
  ::syscall(kMarker, kMarked);
  ::_exit(0);
}

// The calls of each step, of all threads; empty when this process may not trace.
std::vector<Calls> traced_steps(int threads) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) ::_exit(77);
    ::raise(SIGSTOP);
    run_steps(threads);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (!WIFSTOPPED(status)) return {};
  const long options = PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_EXITKILL;
  ::ptrace(PTRACE_SETOPTIONS, child, nullptr, options);
  ::ptrace(PTRACE_SYSCALL, child, nullptr, nullptr);
  std::vector<Calls> steps;
  for (pid_t thread = 0; (thread = ::waitpid(-1, &status, __WALL)) > 0;) {
    if (!WIFSTOPPED(status)) {
      if (thread == child) break;
      continue;
    }
    if (WSTOPSIG(status) == (SIGTRAP | 0x80)) {
      __ptrace_syscall_info info{};
      ::ptrace(PTRACE_GET_SYSCALL_INFO, thread, sizeof(info), &info);
      if (info.op == PTRACE_SYSCALL_INFO_ENTRY) {
        if (info.entry.nr == kMarker && info.entry.args[0] == kMarked) {
          steps.emplace_back();
        } else if (!steps.empty()) {
          ++steps.back()[info.entry.nr];
        }
      }
    }
    ::ptrace(PTRACE_SYSCALL, thread, nullptr, nullptr);
  }
  if (!steps.empty()) steps.pop_back();  // what follows the last marker is the exit
  return steps;
}

int count(const Calls& calls) {
  int sum = 0;
  for (const auto& [number, times] : calls) sum += times;
  return sum;
}

TEST(CpuStepCalls, NoneWithOneThread) {
  const auto steps = traced_steps(1);
  if (steps.empty()) GTEST_SKIP() << "this process may not trace its children";
  ASSERT_EQ(steps.size(), kSteps);
  for (const Calls& calls : steps) {
    EXPECT_EQ(count(calls), 0) << "the first one is number " << calls.begin()->first;
  }
}

TEST(CpuStepCalls, NoneWithTwoThreadsButToSleep) {
  const auto steps = traced_steps(2);
  if (steps.empty()) GTEST_SKIP() << "this process may not trace its children";
  ASSERT_EQ(steps.size(), kSteps);
  for (const Calls& calls : steps) {
    for (const auto& [number, times] : calls) {
      EXPECT_TRUE(number == SYS_futex || number == SYS_clock_gettime) << "number " << number;
    }
  }
}

}  // namespace
}  // namespace levin::runtime::cpu

#endif
