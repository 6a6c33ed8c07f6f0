// Device times of passes, for benchmarks: the caches' contents do not matter to them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/cuda/make_cuda_runtime.h"

namespace levin::runtime {

// A round by the time stamps in its kernels: a kernel works from when its first block has its input
// to when its last block ends; the device idles when none does.
struct RoundTimeline {
  double microseconds = 0;  // from the first kernel's start to the last one's end
  double idle = 0;          // of those
  double longest_gap = 0;
  int kernels = 0;
};

class CudaProfile {
 public:
  virtual ~CudaProfile() = default;
  virtual std::string description() const = 0;
  virtual int64_t memory_bytes() const = 0;
  // The runtime whose passes are timed; its slot 0 has some tokens.
  virtual Runtime& runtime() = 0;
  // Bandwidth of a plain streaming read, GB/s.
  virtual double read_bandwidth() = 0;
  // Microseconds of each of `repeats` passes of `rows` tokens of one sequence at position
  // `context`, one launch after the other.
  virtual std::vector<double> time_passes(int rows, int context, int repeats) = 0;
  // The same for single steps of the draft head.
  virtual std::vector<double> time_drafts(int context, int repeats) = 0;
  // When the phases of one such pass started and ended, as text.
  virtual std::string phase_table(int rows, int context) = 0;
  // One generation round of slot 0, which is known to the device rounds.
  virtual RoundTimeline round_timeline(int drafts) = 0;
  // Microseconds from the call of extend() with a prompt of `tokens` in an empty slot until its
  // last token's logits are in the host's memory, for each of `repeats`.
  virtual std::vector<double> time_prompt(int tokens, int repeats) = 0;
  // Where such a prompt's time goes, as text.
  virtual std::string prompt_table(int tokens) = 0;
};

std::unique_ptr<CudaProfile> make_cuda_profile(std::shared_ptr<const model::Model> model,
                                               const Options& options, int device = 0,
                                               const CudaLimits& limits = {});

}  // namespace levin::runtime
