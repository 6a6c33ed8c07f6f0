// Everything on the device that is not weights: the sequences' caches and the buffers that phases
// hand to each other.
#pragma once

#include <vector>

#include "runtime/cuda/attention.h"
#include "runtime/cuda/mamba.h"
#include "runtime/cuda/round_kernels.h"
#include "runtime/cuda/weights.h"

namespace levin::runtime::cuda {

struct KvCaches {
  KvView keys;
  KvView values;
};

inline constexpr int kHiddenRing =
    16;  // kept hidden states of a slot: that of position p is p % 16

struct State {
  // By layer; empty entries for layers of another kind.
  std::vector<MambaCache> mamba;
  std::vector<KvCaches> kv;
  KvCaches mtp_kv;
  std::byte* zeroed_begin = nullptr;  // caches that must start as zeros lie between these
  std::byte* zeroed_end = nullptr;

  Chunks chunks;  // of attention
  int max_chunks = 0;
  int hidden_rows = 0;  // of `hidden` that belong to slots; kMaxRows rows for drafts follow

  Pass* pass = nullptr;
  Pass* draft_pass = nullptr;
  float* h = nullptr;          // [kMaxRows, hidden]: the residual stream
  float* mtp_h = nullptr;      // the draft head's
  float* embedding = nullptr;  // [kMaxRows, hidden]
  float* hidden = nullptr;     // [hidden_rows + kMaxRows, hidden]: after norm_f
  float* projected = nullptr;  // [kMaxRows, in_proj_rows]
  float* y = nullptr;          // [kMaxRows, d_inner]
  float* squares = nullptr;    // [kMaxRows, heads * pieces]
  float* queries = nullptr;    // [kMaxRows, q_rows]
  float* attended = nullptr;   // [kMaxRows, q_rows]
  float* sums = nullptr;       // attention's partial results
  float* weights = nullptr;
  // By layer, those of the draft head last: [kMaxRows, experts] router logits with tags, then the
  // choice of experts (Router::choice); null for layers of another kind.
  std::vector<uint64_t*> router_words;
  uint32_t* epoch = nullptr;       // number of the pass: their tag
  uint8_t* routed_acts = nullptr;  // [kMaxRows * chosen] operand rows
  uint8_t* shared_acts = nullptr;  // [kMaxRows] operand rows
  int routed_stride = 0;           // bytes
  int shared_stride = 0;
  float* latent = nullptr;          // [kMaxRows, latent]
  float* latent_sum = nullptr;      // [kMaxRows, latent]
  float* mlp = nullptr;             // [kMaxRows, widest intermediate]
  Candidate* candidates = nullptr;  // [blocks, kMaxRows]
  float* logits = nullptr;          // [max_extend_tokens, vocab]
  float* draft_logits = nullptr;    // [slots * max_rewind, vocab]
  int32_t* drafts = nullptr;        // [slots * max_rewind]
  // Of device rounds (round_kernels.h); they start as zeros.
  RoundWork* round_work = nullptr;
  RoundSequence* round_sequences = nullptr;  // [slots]
  int32_t* experts_touched = nullptr;        // distinct routed experts of a pass, over layers
  // Of kernels without clusters (choose_team.cuh).
  uint8_t* choose_memory = nullptr;
  int64_t choose_stride = 0;
  uint32_t* choose_arrivals = nullptr;
};

// Places everything. Dimensions without a kernel are an Error.
State place_state(const model::Model& model, const Options& options, int blocks,
                  const LoadedKernels& kernels, Arena& arena);

// Of a slot, in one layer.
int64_t mamba_state_bytes(const model::Config& config, const Options& options);

// All of a mixer's parameters; what it works on is left out.
MambaScan mamba_scan_of(const model::Config& config, const Options& options,
                        const DeviceMamba& mixer, const MambaCache& cache, int layer);

}  // namespace levin::runtime::cuda
