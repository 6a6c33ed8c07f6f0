// The draft head (multi-token prediction): a small attention + feed-forward stack that guesses the
// token after next from a hidden state and the next token, and, fed its own output, the ones after.
//
// At position p it takes the backbone's hidden state of token p after norm_f and the token p + 1:
//   x = eh_proj(concat(rmsnorm(embedding(t[p+1])), rmsnorm(h[p]))), embedding half first
//   x += attention(rmsnorm(x)),  x += moe(rmsnorm(x)),  m = rmsnorm(x)
//   logits = lm_head(m), which predict token p + 2
// m takes the place of h for the next step. (vLLM's nemotron_h_mtp.py; Megatron-LM's
// multi_token_prediction.py with a repeated layer.)
//
// Its attention has a cache of its own with one entry for each position. The entry of position p
// needs token p + 1, so it is made when that token is known: at the next extend or draft. The steps
// of a draft write entries beyond the sequence, which later ones overwrite.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/model.h"
#include "runtime/reference/context.h"
#include "runtime/reference/work.h"

namespace levin::runtime::reference {

class MtpHead {
 public:
  // Throws Error for a layer schedule other than one attention layer followed by MoE or dense
  // layers. `max_context`: cache entries of a slot.
  MtpHead(const model::Model& model, const Context& context, int64_t max_context);

  void reset(int slot);
  // Makes the cache entries of all tokens so far, the last of which is followed by `next_token`.
  void catch_up(Context& context, Work& work, int slot, int32_t next_token);
  // Tells the head about tokens that were extended, and their hidden states [tokens, hidden] after
  // norm_f. All earlier ones have been caught up with.
  void append(int slot, std::span<const int32_t> tokens, std::span<const float> hidden);
  // Forgets the tokens from position `length` on; at least the position before the last append().
  void rewind(int slot, int64_t length);

  // What a snapshot has of the head (all entries but the last token's, whose successor is unknown,
  // are made first): the caches' positions from the parent's last one on; last token and hidden
  // state.
  int64_t cache_floats(int64_t parent, int64_t length) const;
  int64_t state_floats() const { return 1 + hidden_size_; }
  float* save_cache(Context& context, Work& work, int slot, int64_t parent, float* out);
  void save_state(int slot, float* out) const;
  const float* restore_cache(int slot, int64_t parent, int64_t length, const float* in);
  void restore_state(int slot, int64_t length, const float* in);
  void poison(int slot);

  void draft(Context& context, Work& work, std::span<const Draft> batch);
  std::span<const int32_t> drafts(int entry) const;
  std::span<const float> draft_logits(int entry, int step) const;

  int64_t memory_bytes() const;

 private:
  struct Sequence {
    int64_t length = 0;           // tokens extended
    int64_t entries = 0;          // positions whose cache entry is final
    int64_t first = 0;            // position of the first row kept below
    std::vector<int32_t> tokens;  // tokens of positions first .. length - 1
    Buffer hidden;                // and their hidden states
  };

  // Fills row `row` of the inputs: hidden state and the token after it.
  void set_input(int64_t row, std::span<const float> hidden, int32_t next_token);
  // x = eh_proj(inputs).
  void fuse(Context& context, int rows);
  // Makes the entries of positions entries .. end - 1.
  void make_entries(Context& context, Work& work, int slot, int64_t end, int32_t next_token);
  // The layers, from x to final.
  void forward(Context& context, Work& work, std::span<const Segment> segments, int rows);

  const model::Model& model_;
  const model::Mtp& mtp_;
  int64_t hidden_size_;
  int64_t vocab_size_;
  int max_drafts_;
  std::vector<Sequence> sequences_;  // by slot
  std::vector<KvCache> caches_;      // by slot
  Buffer inputs_;                    // [rows, 2 * hidden]: embedding, hidden state
  Buffer x_, normed_, mixed_;        // [rows, hidden]
  Buffer final_;                     // [slots, hidden]
  Buffer logits_;                    // [slots, vocab] of one step
  Buffer draft_logits_;              // [slots, max_drafts, vocab]
  std::vector<int32_t> drafts_;      // [slots, max_drafts]
  std::vector<int> proposed_;        // per entry of the last draft()
  std::vector<int64_t> vocab_;       // what they are among
  std::vector<Segment> segments_;    // rows of the current step
  std::vector<int> active_;          // and the batch entries they belong to
  std::vector<int64_t> rows_;        // by batch entry: its row in the current step
};

}  // namespace levin::runtime::reference
