// The phases of a whole generation round (step.h).
#include "runtime/cuda/step_launch.h"

namespace levin::runtime::cuda {

bool Step::can_sample(int vocab) const {
  if (!kernels_.clusters) return blocks_ >= kChooseBlocks;
  return choose_memory_bytes(choose_share(vocab)) <= shared_per_block_;
}

void Step::round(cudaStream_t stream, int sequences, int rows, int drafts,
                 const RoundStep& buffers) {
  RoundStep step = buffers;
  step.work = s_.round_work;
  step.sequences = s_.round_sequences;
  step.pass = s_.pass;
  step.draft_pass = s_.draft_pass;
  step.drafts = s_.drafts;
  step.draft_stride = options_.max_rewind;
  step.most_drafts = drafts;
  step.experts_touched = s_.experts_touched;
  // What a pass works on is read by its kernels before they wait for the one before them: whoever
  // writes it has to be over when the first of them starts (first_).
  stream_ = stream;
  first_ = true;
  launch("begin round", begin_round_kernel(), dim3(1), 32, 0, step);
  for (int i = 0; i < drafts; ++i) draft(stream, sequences);
  if (drafts > 0) launch("begin verify", begin_verify_kernel(), dim3(1), 32, 0, step);
  extend(stream, rows, true);

  ChooseTokens choose;
  choose.pass = s_.pass;
  choose.work = s_.round_work;
  choose.sequences = s_.round_sequences;
  choose.logits = s_.logits;
  choose.candidates = s_.candidates;
  choose.candidate_blocks = std::min(w_.lm_head.matrix.tiles, blocks_);
  choose.vocab = static_cast<int>(c_.vocab_size);
  choose.share = can_sample(choose.vocab) ? choose_share(choose.vocab) : 0;
  choose.memory = s_.choose_memory;
  choose.memory_stride = s_.choose_stride;
  choose.arrivals = s_.choose_arrivals;
  const int shared = kernels_.clusters ? choose_memory_bytes(choose.share) : 0;
  allow_shared(choose_tokens_kernel(), shared);
  launch("choose tokens", choose_tokens_kernel(), dim3(kChooseBlocks, static_cast<unsigned>(rows)),
         kChooseThreads, shared, choose);
  launch("end round", end_round_kernel(), dim3(1), 32, 0, step);
}

}  // namespace levin::runtime::cuda
