// What one pass through the model works on: up to kMaxRows tokens of one or several sequences. The
// struct lies in device memory; a captured graph of kernels reads it, so that the same graph serves
// every pass.
#pragma once

#include <cstdint>

namespace levin::runtime::cuda {

inline constexpr int kPassRows = 8;

// Consecutive tokens of one sequence among the rows of a pass, and where its Mamba state stands.
//
// The state of a slot is that after `position - replay` tokens; the inputs of the `replay` tokens
// after them are in the slot's log. A pass first replays those (which commits them), then runs its
// own rows. It logs its own rows, so that the next pass can start at any of them: rewinding is
// forgetting the end of the log. With `commit` the state after the own rows is stored as well.
struct Segment {
  int32_t slot;
  int32_t first_row;
  int32_t rows;
  int32_t position;  // of the first row's token
  int32_t replay;
  int32_t parity;  // which half of window and log is current; the pass writes the other
  int32_t fresh;   // the state before the replay is that of no tokens: all zero
  int32_t commit;
};

struct Pass {
  int32_t rows;
  int32_t segments;
  int32_t token[kPassRows];
  int32_t slot[kPassRows];
  int32_t position[kPassRows];      // of the token
  int32_t hidden_row[kPassRows];    // where the token's hidden state after norm_f is kept
  int32_t previous_row[kPassRows];  // where that of the token before it is
  int32_t logits_row[kPassRows];    // where its logits go; -1: nowhere
  int32_t vocab[kPassRows];         // its logits are of the first so many tokens; 0: of all
  int32_t most_vocab;               // of all rows, 0: of all tokens
  Segment segment[kPassRows];
};

}  // namespace levin::runtime::cuda
