// How fast this machine multiplies: the ceiling of prompts and of large batches, as the bandwidth
// is that of decoding.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "bench/spread.h"

namespace levin::bench {

// A kind of multiply-add, at its peak: operands in registers, enough independent sums to fill the
// pipelines. 10^9 operations per second, a multiply-add counting 2.
struct ArithmeticRate {
  std::string name;  // "BF16", "INT8", "F32"
  std::string instruction;
  Spread one_thread;
  Spread all_threads;
  int threads = 0;
};

struct ArithmeticOptions {
  int threads = 0;  // 0: available_cores()
  int passes = 7;
};

// The fewest steps, doubled from 4096, of which `seconds` says thrice that they take `least`: once
// is as often a thread that had to wait for its core, and so few steps would time the waiting.
int64_t steps_that_take(double least, const std::function<double(int64_t)>& seconds);

// F32 always; BF16 and INT8 where this processor and build have an instruction for them that
// levin's kernels use (AMX, AVX-512 BF16 and VNNI).
std::vector<ArithmeticRate> measure_arithmetic(const ArithmeticOptions& options);

// The rate of `name`, or of F32, the last of measure_arithmetic(), which kernels without it use.
const ArithmeticRate& rate_of(const std::vector<ArithmeticRate>& rates, const std::string& name);

}  // namespace levin::bench
