// The kernels between the passes of a device round: what they take, and what host and device tell
// each other.
//
// The host writes an order into a ring of pinned memory and launches a graph; the graph's first
// kernel reads the order, the last one writes the report into another ring. Both have the round's
// number modulo kRoundRing as their place.
#pragma once

#include "runtime/cuda/linear.cuh"
#include "runtime/round_rules.h"

namespace levin::runtime::cuda {

inline constexpr int kRoundRing = 8;

struct RoundOrder {
  int32_t count;              // sequences
  int32_t slot[kPassRows];    // of each
  int32_t enters[kPassRows];  // its sequence is in `entering`, not on the device yet
};

struct RoundReport {
  int32_t count;
  int32_t experts;
  uint64_t began, drafted, ended;  // nanoseconds
  Block block[kPassRows];
  uint64_t number;  // 1 + the round's: the report is complete
};

// Of the round that is running, in device memory.
struct RoundWork {
  uint64_t number;
  int32_t count;
  int32_t slot[kPassRows];
  int32_t drafts[kPassRows];
  int32_t first_row[kPassRows];
  int32_t live[kPassRows];      // takes part
  int32_t entry_of[kPassRows];  // by row
  int32_t chosen[kPassRows];    // by row
  uint64_t began, drafted;
};

struct RoundStep {
  const RoundOrder* orders = nullptr;       // [kRoundRing], of the host
  const RoundSequence* entering = nullptr;  // [slots], of the host
  RoundReport* reports = nullptr;           // [kRoundRing], of the host
  RoundWork* work = nullptr;
  RoundSequence* sequences = nullptr;  // [slots]
  Pass* pass = nullptr;
  Pass* draft_pass = nullptr;
  const int32_t* drafts = nullptr;  // [entry][draft_stride]
  int draft_stride = 0;
  int most_drafts = 0;
  int32_t* experts_touched = nullptr;
  Trace trace;
};

// Reads the order, and prepares the first draft pass; without drafts the pass that verifies.
// One warp.
Kernel<RoundStep> begin_round_kernel();
// After the last draft: the pass that verifies. One warp.
Kernel<RoundStep> begin_verify_kernel();
// After choose_tokens: accepts, moves the sequences, reports. One warp.
Kernel<RoundStep> end_round_kernel();

// The next token after each row of the pass, as engine/sampler.h chooses it.
struct ChooseTokens {
  const Pass* pass = nullptr;
  RoundWork* work = nullptr;
  const RoundSequence* sequences = nullptr;
  const float* logits = nullptr;          // [rows, vocab]
  const Candidate* candidates = nullptr;  // [blocks, kMaxRows]: best of each block of lm_head
  int candidate_blocks = 0;
  int vocab = 0;
  int share = 0;  // tokens of one block of a team, a multiple of kSumBlock
  Trace trace;
  // Of kernels without clusters (choose_team.cuh).
  uint8_t* memory = nullptr;  // [kMaxRows, kChooseBlocks]
  int64_t memory_stride = 0;
  uint32_t* arrivals = nullptr;  // [kMaxRows]
};

inline constexpr int kChooseBlocks = 8;  // of a team, for one row
inline constexpr int kChooseThreads = 512;
inline constexpr int kSumBlock = 256;  // tokens whose weights are added up first, as by the host

inline int choose_share(int vocab) {
  constexpr int kUnit = kChooseBlocks * kSumBlock;
  return (vocab + kUnit - 1) / kUnit * kSumBlock;
}
// Of a block: of dynamic shared memory or, of kernels without clusters, of device memory.
int choose_memory_bytes(int share);
// Grid: kChooseBlocks, rows; clusters of kChooseBlocks where there are any.
Kernel<ChooseTokens> choose_tokens_kernel();

}  // namespace levin::runtime::cuda
