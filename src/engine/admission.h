// How many sequences fit into memory, told before any of it is taken.
#pragma once

#include <cstdint>
#include <string>

#include "model/config.h"
#include "runtime/runtime.h"

namespace levin::engine {

// Bytes of one slot with max_model_len tokens, as the CPU runtime lays it out, without padding.
struct SlotBytes {
  int64_t kv = 0;      // keys and values of the attention layers
  int64_t mamba = 0;   // SSM states
  int64_t mtp = 0;     // the draft head's keys and values, and its inputs
  int64_t rewind = 0;  // inputs of the last tokens, convolution windows included

  int64_t total() const { return kv + mamba + mtp + rewind; }
  // One line for the log.
  std::string message() const;
};

// `options` with max_model_len set.
SlotBytes slot_bytes(const model::Config& config, const runtime::Options& options);

// Bytes that slots may take beside weights of `weights_bytes`: half of what these leave of
// `available_bytes`. Throws Error with ExitCode::kMachine when they leave nothing.
int64_t memory_for_slots(int64_t weights_bytes, int64_t available_bytes);

// Slots that fit into `memory_bytes`, at most options.max_num_seqs; warns when it is fewer. Throws
// Error with ExitCode::kMachine when not even one fits.
int fit_slots(const model::Config& config, const runtime::Options& options, int64_t memory_bytes);

}  // namespace levin::engine
