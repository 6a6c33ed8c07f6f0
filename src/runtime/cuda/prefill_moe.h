// The mixture of experts in a prefill chunk, around its products: router, tokens sorted by expert,
// weighted sum.
//
// A token's choices are pairs, pair = token * chosen + j. Pairs are put in a list by expert; each
// expert's rows begin at a multiple of 8. Which row of its expert a pair gets is a matter of chance
// and changes nothing: rows do not meet before the weighted sum, which goes by j.
#pragma once

#include "runtime/cuda/moe.h"
#include "runtime/cuda/prefill_gemm.h"

namespace levin::runtime::cuda {

// Router logits of rows in float32: the normalized inputs are split into three bfloat16 each (their
// 24 bits), the products are exact.
struct RouterLogits {
  const float* x = nullptr;  // [rows, width]
  int rows = 0;
  int width = 0;
  Gate gate;
  int experts = 0;
  uint64_t* words = nullptr;        // [rows, experts]: logits, tagged as the decode kernels want it
  const uint32_t* epoch = nullptr;  // the tag
};
void launch_router_logits(cudaStream_t stream, const RouterLogits& router);

// The list of pairs.
struct SortedPairs {
  int* expert = nullptr;        // [pairs]
  int* rank = nullptr;          // [pairs]: row among the expert's
  float* weight = nullptr;      // [pairs]
  int* row = nullptr;           // [pairs]: in the list
  int* first = nullptr;         // [experts]
  int* count = nullptr;         // [experts], zero before choose_experts
  int* tiles_before = nullptr;  // [experts + 1]

  ExpertRows rows() const { return {first, count, tiles_before}; }
};

// Rows of the list for so many pairs, at most.
inline int64_t sorted_rows(int64_t pairs, int64_t experts) {
  return pairs + 7 * experts;
}

// Chooses experts for `rows` tokens and counts; `router.words` as above.
void launch_choose(cudaStream_t stream, const Router& router, int rows, const SortedPairs& pairs);
// Where each expert's rows begin. `tile`: tokens of a product's block.
void launch_place_experts(cudaStream_t stream, const SortedPairs& pairs, int experts, int tile);

// Operand rows of the tokens into the list.
struct GatherRows {
  SortedPairs pairs;
  int chosen = 0;
  int units = 0;
  Panels from, to;
  const float* row_scales = nullptr;  // null: none
  float* sorted_scales = nullptr;
};
void launch_gather(cudaStream_t stream, const GatherRows& gather, int rows);

// out[token] (+)= sum over j of weight * y[row of the pair].
struct CombineExperts {
  SortedPairs pairs;
  int chosen = 0;
  const float* y = nullptr;  // [list rows, width]
  int width = 0;
  float* out = nullptr;  // [rows, width]
  bool add = true;
};
void launch_combine(cudaStream_t stream, const CombineExperts& combine, int rows);

}  // namespace levin::runtime::cuda
