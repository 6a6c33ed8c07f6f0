// Beginning and end of device rounds (round_kernels.h): a warp each, a lane for each sequence.
#include "runtime/cuda/round_kernels.h"
#include "runtime/cuda/state.h"

namespace levin::runtime::cuda {
namespace {

constexpr unsigned kAllLanes = 0xffffffffu;

__device__ inline int lane_id() {
  return static_cast<int>(threadIdx.x);
}

// Sum of the values of the lanes before this one.
__device__ inline int before_me(int value) {
  int sum = value;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const int other = __shfl_up_sync(kAllLanes, sum, distance);
    if (lane_id() >= distance) sum += other;
  }
  return sum - value;
}

__device__ inline int32_t hidden_row_of(int32_t slot, int32_t position) {
  return slot * kHiddenRing + (position + kHiddenRing) % kHiddenRing;
}

// Memory of the host, word by word by all lanes, past all caches.
template <typename T>
__device__ inline void copy_from_host(const T* from, T* to) {
  static_assert(sizeof(T) % 4 == 0);
  const auto* words = reinterpret_cast<const volatile uint32_t*>(from);
  auto* own = reinterpret_cast<uint32_t*>(to);
  for (int i = lane_id(); i < static_cast<int>(sizeof(T) / 4); i += 32) own[i] = words[i];
}

__device__ inline void clear(Pass& pass) {
  auto* words = reinterpret_cast<int32_t*>(&pass);
  for (int i = lane_id(); i < static_cast<int>(sizeof(Pass) / 4); i += 32) words[i] = 0;
  __syncwarp();
}

// One row for each sequence that drafts: its last token.
__device__ inline void make_draft_pass(const RoundStep& p, const RoundSequence* mine, int slot,
                                       int drafts) {
  clear(*p.draft_pass);
  const bool in = drafts > 0;
  const int row = before_me(in ? 1 : 0);
  Pass& pass = *p.draft_pass;
  if (in) {
    pass.token[row] = mine->last_token;
    pass.slot[row] = slot;
    pass.position[row] = mine->length;
    pass.previous_row[row] = hidden_row_of(slot, mine->length - 1);
    pass.logits_row[row] = lane_id() * p.draft_stride;
    pass.vocab[row] = mine->draft_vocab;
    Segment& segment = pass.segment[row];
    segment.slot = slot;
    segment.first_row = row;
    segment.rows = 1;
    segment.position = mine->length;
  }
  const int rows = __shfl_sync(kAllLanes, before_me(in ? 1 : 0) + (in ? 1 : 0), 31);
  const int vocab = in ? mine->draft_vocab : 0;
  const bool of_all = __any_sync(kAllLanes, in && vocab == 0);
  const int most = __reduce_max_sync(kAllLanes, vocab);
  if (lane_id() == 0) {
    pass.rows = pass.segments = rows;
    pass.most_vocab = of_all ? 0 : most;
  }
}

// The last token and the drafts of each sequence. `mine`: null for lanes without a live one.
__device__ inline void make_block_pass(const RoundStep& p, const RoundSequence* mine, int slot,
                                       int drafts) {
  Pass& pass = *p.pass;
  clear(pass);
  const int rows = mine != nullptr ? 1 + drafts : 0;
  const int first = before_me(rows);
  const int index = before_me(rows > 0 ? 1 : 0);
  if (rows > 0) {
    Segment& segment = pass.segment[index];
    segment.slot = slot;
    segment.first_row = first;
    segment.rows = rows;
    segment.position = mine->length;
    segment.replay = mine->length - mine->committed;
    segment.parity = mine->parity;
    segment.fresh = mine->committed == 0 ? 1 : 0;
    p.work->first_row[lane_id()] = first;
  }
  for (int i = 0; i < rows; ++i) {
    const int row = first + i;
    const int position = mine->length + i;
    pass.token[row] = i == 0 ? mine->last_token : p.drafts[lane_id() * p.draft_stride + i - 1];
    pass.slot[row] = slot;
    pass.position[row] = position;
    pass.hidden_row[row] = hidden_row_of(slot, position);
    pass.previous_row[row] = hidden_row_of(slot, position - 1);
    pass.logits_row[row] = row;
    p.work->entry_of[row] = lane_id();
  }
  const int all_rows = __shfl_sync(kAllLanes, first + rows, 31);
  const int segments = __shfl_sync(kAllLanes, index + (rows > 0 ? 1 : 0), 31);
  if (lane_id() == 0) {
    pass.rows = all_rows;
    pass.segments = segments;
    p.work->drafted = ptx::global_timer();
    *p.experts_touched = 0;
  }
}

}  // namespace

__global__ void __launch_bounds__(32) begin_round(const __grid_constant__ RoundStep p) {
  p.trace.stamp(Trace::kStart);
  p.trace.stamp(Trace::kReady);
  __shared__ RoundOrder order;
  RoundWork& work = *p.work;
  if (lane_id() == 0) work.began = ptx::global_timer();
  copy_from_host(p.orders + work.number % kRoundRing, &order);
  __syncwarp();
  for (int i = 0; i < order.count; ++i) {
    if (order.enters[i] != 0)
      copy_from_host(p.entering + order.slot[i], p.sequences + order.slot[i]);
  }
  __syncwarp();
  const bool in = lane_id() < order.count;
  const int slot = in ? order.slot[lane_id()] : 0;
  const RoundSequence* mine = p.sequences + slot;
  const bool live = in && mine->active != 0;
  const int drafts = live ? drafts_of(*mine, p.most_drafts) : 0;
  if (lane_id() == 0) work.count = order.count;
  if (in) {
    work.slot[lane_id()] = slot;
    work.live[lane_id()] = live ? 1 : 0;
    work.drafts[lane_id()] = drafts;
  }
  if (p.most_drafts > 0) {
    make_draft_pass(p, mine, slot, drafts);
  } else {
    make_block_pass(p, live ? mine : nullptr, slot, 0);
  }
  p.trace.stamp(Trace::kEnd);
}

__global__ void __launch_bounds__(32) begin_verify(const __grid_constant__ RoundStep p) {
  p.trace.stamp(Trace::kStart);
  ptx::launch_dependents();
  ptx::wait_for_previous();
  p.trace.stamp(Trace::kReady);
  const RoundWork& work = *p.work;
  const bool in = lane_id() < work.count && work.live[lane_id()] != 0;
  const int slot = in ? work.slot[lane_id()] : 0;
  make_block_pass(p, in ? p.sequences + slot : nullptr, slot, in ? work.drafts[lane_id()] : 0);
  p.trace.stamp(Trace::kEnd);
}

__global__ void __launch_bounds__(32) end_round(const __grid_constant__ RoundStep p) {
  p.trace.stamp(Trace::kStart);
  ptx::launch_dependents();
  ptx::wait_for_previous();
  p.trace.stamp(Trace::kReady);
  RoundWork& work = *p.work;
  RoundReport& report = p.reports[work.number % kRoundRing];
  const int lane = lane_id();
  if (lane < work.count) {
    Block block;
    if (work.live[lane] != 0) {
      // Out of global memory at once rather than one load after the other.
      RoundSequence sequence = p.sequences[work.slot[lane]];
      const int drafts = work.drafts[lane];
      const int first = work.first_row[lane];
      int32_t drafted[kMaxBlock];
      int32_t chosen[kMaxBlock];
#pragma unroll
      for (int i = 0; i < kMaxBlock; ++i) {
        chosen[i] = i <= drafts ? work.chosen[first + i] : -1;
        drafted[i] = i < drafts ? p.drafts[lane * p.draft_stride + i] : -1;
      }
      block = accept_block(sequence, drafted, drafts, chosen);
      RoundSequence& stored = p.sequences[work.slot[lane]];
      stored.active = sequence.active;
      stored.last_token = sequence.last_token;
      stored.length = sequence.length;
      stored.committed = sequence.committed;
      stored.parity = sequence.parity;
      stored.remaining = sequence.remaining;
    }
    report.block[lane] = block;
  }
  const uint64_t number = work.number;
  if (lane == 0) {
    report.count = work.count;
    report.experts = *p.experts_touched;
    report.began = work.began;
    report.drafted = work.drafted;
    report.ended = ptx::global_timer();
  }
  __threadfence_system();
  __syncwarp();
  if (lane == 0) {
    ptx::store_release_system(&report.number, number + 1);
    work.number = number + 1;
  }
  p.trace.stamp(Trace::kEnd);
}

Kernel<RoundStep> begin_round_kernel() {
  return begin_round;
}
Kernel<RoundStep> begin_verify_kernel() {
  return begin_verify;
}
Kernel<RoundStep> end_round_kernel() {
  return end_round;
}

}  // namespace levin::runtime::cuda
