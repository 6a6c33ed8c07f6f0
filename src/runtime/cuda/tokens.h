// The small kernels between the large ones: embeddings in, tokens out.
#pragma once

#include "runtime/cuda/linear.cuh"

namespace levin::runtime::cuda {

enum class TableType : uint8_t { kF32, kF16, kBf16 };

struct Embed {
  const Pass* pass = nullptr;
  const void* table = nullptr;  // [vocab, width]
  TableType type = TableType::kBf16;
  int width = 0;
  float* out = nullptr;       // [tokens, width]
  uint32_t* epoch = nullptr;  // number of the pass, which begins here
  Trace trace;
};

// Ends a draft step: takes the best token of each row as its proposal and prepares the next step.
struct AdvanceDraft {
  Pass* pass = nullptr;
  const Candidate* candidates = nullptr;  // [blocks, kMaxRows]
  int blocks = 0;
  int vocab = 0;
  int hidden_base = 0;        // row of the hidden states that the step left, plus the token
  int32_t* drafts = nullptr;  // [logits rows]: the proposal goes to the row its logits went to
  Trace trace;
};

// Grid: tokens; kThreads threads.
Kernel<Embed> embed_kernel();
// One block of kMaxRows warps.
Kernel<AdvanceDraft> advance_draft_kernel();

}  // namespace levin::runtime::cuda
