// The work space of prefill, and the description of a chunk.
#pragma once

#include <string>

#include "runtime/cuda/prefill_attention.h"
#include "runtime/cuda/prefill_mamba.h"
#include "runtime/cuda/prefill_moe.h"
#include "runtime/cuda/prefill_rows.h"
#include "runtime/cuda/state.h"

namespace levin::runtime::cuda {

// Tokens that go through the model together, of one or several sequences. Lies in pinned memory and
// is copied to the device as it is; the arrays follow the struct in the order named here.
struct ChunkArrays {
  int32_t* token = nullptr;     // [capacity]
  int32_t* slot = nullptr;      // [capacity]
  int32_t* position = nullptr;  // [capacity]
  int32_t* previous = nullptr;  // [capacity], see ChunkRows
  int32_t* kept = nullptr;      // [capacity]
  int32_t* wanted = nullptr;    // [capacity]: the rows whose logits are wanted, ascending
  Segment* segments = nullptr;  // [slots]

  // Places the arrays in the `bytes()` from `at` on.
  ChunkArrays(std::byte* at, int capacity, int slots);
  ChunkArrays() = default;
  static std::size_t bytes(int capacity, int slots);
};

struct PrefillSpace {
  int capacity = 0;  // rows of a chunk
  ChunkArrays arrays;
  std::byte* chunk = nullptr;  // where they lie

  float* h = nullptr;           // [capacity, hidden]: the residual stream
  float* normed = nullptr;      // [capacity, hidden]
  float* wide = nullptr;        // [capacity, widest output of a projection]
  float* keys = nullptr;        // [capacity, kv_rows]
  float* values = nullptr;      // [capacity, kv_rows]
  float* mixed = nullptr;       // [capacity, widest input of an output projection]
  __half* convolved = nullptr;  // [capacity, conv_dim]
  Panels operands[kMaxOperands];
  float* row_scales[kMaxOperands] = {};
  Panels activations;    // of the shared expert or a dense block
  Panels sorted_inputs;  // of the experts
  float* sorted_scales = nullptr;
  Panels sorted_activations;         // of the experts
  float* expert_outputs = nullptr;   // [sorted rows, hidden or latent]
  uint64_t* router_words = nullptr;  // [capacity, experts]
  SortedPairs pairs;
};

// Rows of a chunk: those of the longest extend() that the options allow, up to a limit beyond which
// larger chunks gain nothing.
int prefill_capacity(const Options& options);
// Why the configuration has no prefill on tensor cores; empty when it has. `capability`: the
// device's, 90 for 9.0.
std::string no_prefill_because(const model::Config& config, const Options& options, int capability);

PrefillSpace place_prefill(const model::Model& model, const Options& options, Arena& arena);

}  // namespace levin::runtime::cuda
