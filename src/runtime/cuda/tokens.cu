// Embedding look-up and the end of a draft step (tokens.h).
#include "runtime/cuda/tokens.h"

namespace levin::runtime::cuda {

__global__ void __launch_bounds__(kThreads) embed(const __grid_constant__ Embed p) {
  p.trace.stamp(Trace::kStart);
  ptx::launch_dependents();
  ptx::wait_for_previous();
  p.trace.stamp(Trace::kReady);
  const int token = static_cast<int>(blockIdx.x);
  if (token == 0 && threadIdx.x == 0) ++*p.epoch;
  if (token >= p.pass->rows) return;
  const int64_t at = static_cast<int64_t>(p.pass->token[token]) * p.width;
  float* out = p.out + static_cast<int64_t>(token) * p.width;
  for (int i = threadIdx.x; i < p.width; i += kThreads) {
    switch (p.type) {
      case TableType::kF32:
        out[i] = static_cast<const float*>(p.table)[at + i];
        break;
      case TableType::kF16:
        out[i] = __half2float(static_cast<const __half*>(p.table)[at + i]);
        break;
      case TableType::kBf16:
        out[i] = __bfloat162float(static_cast<const __nv_bfloat16*>(p.table)[at + i]);
        break;
    }
  }
  p.trace.stamp(Trace::kEnd);
}

__global__ void __launch_bounds__(32 * kMaxRows)
    advance_draft(const __grid_constant__ AdvanceDraft p) {
  p.trace.stamp(Trace::kStart);
  ptx::launch_dependents();
  ptx::wait_for_previous();
  p.trace.stamp(Trace::kReady);
  const int token = static_cast<int>(threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (token >= p.pass->rows) return;
  Candidate best = {-INFINITY, 0x7fffffff};
  const auto better = [](const Candidate& a, const Candidate& b) {
    return a.value > b.value || (a.value == b.value && a.index < b.index);
  };
  for (int block = lane; block < p.blocks; block += 32) {
    const Candidate other = p.candidates[block * kMaxRows + token];
    if (better(other, best)) best = other;
  }
  for (int distance = 16; distance > 0; distance /= 2) {
    const Candidate other = {__shfl_xor_sync(0xffffffffu, best.value, distance),
                             __shfl_xor_sync(0xffffffffu, best.index, distance)};
    if (better(other, best)) best = other;
  }
  if (lane != 0) return;
  const int32_t chosen = best.index < p.vocab ? best.index : 0;  // no logit was a number
  p.drafts[p.pass->logits_row[token]] = chosen;
  p.pass->token[token] = chosen;
  ++p.pass->position[token];
  ++p.pass->segment[token].position;  // of one row each
  ++p.pass->logits_row[token];
  p.pass->previous_row[token] = p.hidden_base + token;
  p.trace.stamp(Trace::kEnd);
}

Kernel<Embed> embed_kernel() {
  return embed;
}
Kernel<AdvanceDraft> advance_draft_kernel() {
  return advance_draft;
}

}  // namespace levin::runtime::cuda
