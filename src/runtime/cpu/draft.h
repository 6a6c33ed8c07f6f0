// The draft head (multi-token prediction; formulas: vLLM's nemotron_h_mtp.py). At position p it
// takes the backbone's hidden state of token p after norm_f and token p + 1, and predicts token p +
// 2; its output, after final_layernorm, takes the hidden state's place for the next proposal.
//
// Its attention has a cache with one entry for each position. An entry needs only the head's fusion
// and two projections, but also the next token, so entries are made late: those of a long prompt at
// the end of the extend that reads it, the few of decoded or verified tokens together with the
// first pass of the next draft, which reads the same weights anyway.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/model.h"
#include "runtime/cpu/pass.h"
#include "runtime/cpu/state.h"
#include "runtime/cpu/weights.h"

namespace levin::runtime::cpu {

// Rows of the draft head, cut into passes of at most as many rows as there is work space for.
class DraftRows {
 public:
  DraftRows(int64_t max_rows, int64_t capacity, int64_t max_segments);

  struct Row {
    const float* hidden = nullptr;
    int32_t token = 0;  // the one after
  };
  struct Chunk {
    std::span<const Row> rows;
    std::span<const Segment> segments;  // first_row counts from the chunk's first
  };

  void clear();
  bool empty() const { return rows_.empty(); }
  // Rows of one slot at consecutive positions are added in order.
  void add(int slot, int64_t position, const Row& row);
  // Makes the chunks. The last rows, up to max_rows, are together in the last one.
  void finish();
  std::size_t chunks() const { return chunk_ends_.size(); }
  Chunk chunk(std::size_t index) const;

 private:
  struct End {
    std::size_t row, segment;
  };
  std::size_t max_rows_;
  std::vector<Row> rows_;
  std::vector<Segment> whole_;     // as added, first_row in rows_
  std::vector<Segment> segments_;  // cut at the chunks' ends
  std::vector<End> chunk_ends_;
};

class DraftHead {
 public:
  // Throws Error for a schedule other than one attention layer followed by MoE or dense layers.
  DraftHead(const model::Model& model, const Options& options, const MtpWeights& weights,
            const Matrix& lm_head, State& state, int64_t max_rows);

  // Before an extend: decides which cache entries it makes. `final_rows` is where the new tokens'
  // hidden states will be, in the order of the segments.
  void plan_extend(std::span<const Extend> batch, std::span<const Segment> segments,
                   const Rows& final_rows);
  // Inside the extend's run: entries that must be made before and after the backbone's pass.
  void run_before(const Shared& shared, int thread) { run_entries(shared, thread, before_); }
  void run_after(const Shared& shared, int thread) { run_entries(shared, thread, after_); }
  // After it, before the slots' lengths advance: remembers the new hidden states.
  void finish_extend(std::span<const Extend> batch, std::span<const Segment> segments,
                     const Rows& final_rows);
  void rewind(int slot, int64_t length);

  void plan_draft(std::span<const Draft> batch);
  void run_draft(const Shared& shared, int thread);

  std::span<const int32_t> drafts(int entry) const;
  std::span<const float> logits(int entry, int step) const;
  int64_t bytes() const { return arena_.bytes(); }

 private:
  struct Best {
    float value = 0;
    int64_t index = 0;
  };

  int64_t log_rows() const { return kDraftLogRows + max_drafts_; }
  void add_logged(DraftRows& rows, int slot, int64_t end, int32_t next_token);
  void run_entries(const Shared& shared, int thread, const DraftRows& rows);
  void make_entries(Pass& pass, const DraftRows::Chunk& chunk);
  void fuse(Pass& pass, std::span<const DraftRows::Row> rows);
  void run_outputs(Pass& pass, const DraftRows::Chunk& chunk, int64_t first_output);
  void choose(Pass& pass, int64_t outputs);
  void next_step(int step, const Rows& final_rows);

  const model::Model& model_;
  const MtpWeights& weights_;
  const Matrix& lm_head_;
  State& state_;
  int max_drafts_;
  DraftRows before_, after_, draft_;
  std::span<const Draft> batch_;
  int steps_ = 0;
  std::vector<int> active_;           // batch entries of the rows that make proposals
  std::vector<int32_t> logits_rows_;  // where their logits go
  std::vector<int> proposed_;         // by entry of the last draft
  std::vector<int64_t> vocab_;        // what its proposals are among
  Matrix head_;                       // the panels of lm_head that they need
  std::vector<int32_t> drafts_;       // [slots][max drafts]
  std::vector<Best> best_;            // [threads][slots]
  Rows logits_;                       // [slots * max drafts][vocab]
  Arena arena_;
};

}  // namespace levin::runtime::cpu
