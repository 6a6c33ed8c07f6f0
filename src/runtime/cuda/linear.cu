// Phases that multiply one input with one to three matrices (linear.cuh).
#include "runtime/cuda/block.cuh"
#include "runtime/cuda/linear.h"
#include "runtime/cuda/normalize.cuh"

namespace levin::runtime::cuda {
namespace {

// Leaves the block's best token of each row in `candidates`. The rings are not in use any more.
template <int kTokenGroups>
__device__ inline void reduce_candidates(Best<kTokenGroups>& best, int tokens,
                                         Candidate* candidates) {
  auto* space = reinterpret_cast<Candidate*>(shared_memory);  // [warp][token]
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int group = 0; group < kTokenGroups; ++group) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      Candidate& mine = best.of[group][j];
#pragma unroll
      for (int distance = 16; distance >= 4; distance /= 2) {
        const Candidate other = {__shfl_xor_sync(0xffffffffu, mine.value, distance),
                                 __shfl_xor_sync(0xffffffffu, mine.index, distance)};
        if (better(other, mine)) mine = other;
      }
      if (lane < 2) space[threadIdx.x / 32 * kMaxRows + 4 * group + lane * 2 + j] = mine;
    }
  }
  sync_computing();
  const int token = static_cast<int>(threadIdx.x);
  if (token >= tokens) return;
  Candidate found = space[token];
  for (int warp = 1; warp < kWarps; ++warp) {
    const Candidate other = space[warp * kMaxRows + token];
    if (better(other, found)) found = other;
  }
  candidates[blockIdx.x * kMaxRows + token] = found;
}

template <int kTokenGroups>
__device__ inline Best<kTokenGroups> no_best() {
  Best<kTokenGroups> best;
#pragma unroll
  for (int group = 0; group < kTokenGroups; ++group) {
    best.of[group][0] = best.of[group][1] = kNoCandidate;
  }
  return best;
}

}  // namespace

template <int kTokenGroups>
__global__ void __launch_bounds__(kThreads, 2) norm_linear(const __grid_constant__ NormLinear p) {
  p.trace.stamp(0);
  Item* items = items_of(p.shared);
  const int count = make_items(p.parts, p.part_count, p.shared.slot_bytes, items);
  NormWeights weights;
  weights.load(p.inputs[0].weight, p.width);
  const OperandSpace space = operand_space(p.shared, p.operands, p.operand_count, p.units);
  __syncthreads();
  ptx::launch_dependents();
  WarpStream stream = stream_of(p.shared);
  stream.read(static_cast<int>(threadIdx.x / 32), count, kWarps);
  ptx::wait_for_previous();
  p.trace.stamp(1);

  const int rows = p.pass->rows;
  const NormedOutput normed = {p.normed, p.normed_stride, p.normed_by_hidden_row};
  normalize(p.inputs, p.input_count, *p.pass, rows, p.width, p.eps, weights, space, normed);
  space.pad(rows, p.width * p.input_count / 4, p.units);
  sync_computing();

  Best<kTokenGroups> best = no_best<kTokenGroups>();
  multiply_parts<kTokenGroups>(p.parts, p.part_count, items, count, stream, space,
                               partials_of(p.shared), *p.pass, best);
  if (p.candidates != nullptr) reduce_candidates(best, rows, p.candidates);
  p.trace.stamp(2);
}

namespace {

// Scales of the groups of one token's gated norm, into `scales` [tokens, groups].
__device__ inline void group_scales(const ActLinear& p, int rows, float* scales) {
  const int per_group = p.pieces / p.groups;
  const float width = static_cast<float>(p.width / p.groups);
  for (int i = threadIdx.x; i < rows * p.groups; i += kThreads) {
    const float* pieces = p.squares + (i / p.groups) * p.pieces + i % p.groups * per_group;
    float sum = 0.0F;
    for (int j = 0; j < per_group; ++j) sum += __ldcg(pieces + j);
    scales[i] = rsqrtf(sum / width + p.eps);
  }
  sync_computing();
}

struct ActInput {
  const ActLinear& p;
  const float* scales;  // [tokens, groups] of kGatedNorm

  // Of a column; exact, since columns are far below 2^23.
  __device__ int group(int column) const {
    return static_cast<int>((static_cast<float>(column) + 0.5F) * p.inverse_group_width);
  }
  __device__ float4 vector(int token, int index) const {
    const auto* x = reinterpret_cast<const float4*>(p.x + static_cast<int64_t>(token) * p.width);
    float4 v = __ldcg(x + index);
    if (p.kind == InputKind::kGatedNorm) {
      const float4 w = __ldg(reinterpret_cast<const float4*>(p.weight) + index);
      const float* s = scales + token * p.groups;
      v.x *= s[group(4 * index)] * w.x;
      v.y *= s[group(4 * index + 1)] * w.y;
      v.z *= s[group(4 * index + 2)] * w.z;
      v.w *= s[group(4 * index + 3)] * w.w;
    }
    return v;
  }
};

// All tokens' inputs into operands.
__device__ inline void build_operands(const ActInput& input, int rows, const OperandSpace& space) {
  const ActLinear& p = input.p;
  const int vectors = p.width / 4;
  for (int token = 0; token < rows; ++token) {
    float row_inverse = 1.0F;
    if (space.per_token()) {
      float amax = 0.0F;
      for (int i = threadIdx.x; i < vectors; i += kThreads) {
        amax = fmaxf(amax, largest_magnitude(input.vector(token, i)));
      }
      row_inverse = space.set_row_scale(token, amax);
    }
#pragma unroll 2
    for (int index = threadIdx.x; index < vectors; index += kThreads) {
      const float4 v = input.vector(token, index);
      space.store(token, index, v, row_inverse);
      if (p.observed != nullptr && blockIdx.x == 0) {
        reinterpret_cast<float4*>(p.observed + static_cast<int64_t>(token) * p.width)[index] = v;
      }
    }
  }
}

}  // namespace

template <int kTokenGroups>
__global__ void __launch_bounds__(kThreads, 2) act_linear(const __grid_constant__ ActLinear p) {
  p.trace.stamp(0);
  Item* items = items_of(p.shared);
  const int count = make_items(p.parts, p.part_count, p.shared.slot_bytes, items);
  const OperandSpace space = operand_space(p.shared, p.operands, p.operand_count, p.units);
  __syncthreads();
  ptx::launch_dependents();
  WarpStream stream = stream_of(p.shared);
  stream.read(static_cast<int>(threadIdx.x / 32), count, kWarps);
  ptx::wait_for_previous();
  p.trace.stamp(1);

  const int rows = p.pass->rows;
  float* scales = space.row_scales + 2 * kMaxRows;
  if (p.kind == InputKind::kGatedNorm) group_scales(p, rows, scales);
  build_operands({p, scales}, rows, space);
  space.pad(rows, p.width / 4, p.units);
  sync_computing();

  Best<kTokenGroups> best = no_best<kTokenGroups>();
  multiply_parts<kTokenGroups>(p.parts, p.part_count, items, count, stream, space,
                               partials_of(p.shared), *p.pass, best);
  p.trace.stamp(2);
}

// One token group of 4, or two.
Kernel<NormLinear> norm_linear_kernel(int rows) {
  return rows <= 4 ? norm_linear<1> : norm_linear<2>;
}
Kernel<ActLinear> act_linear_kernel(int rows) {
  return rows <= 4 ? act_linear<1> : act_linear<2>;
}

}  // namespace levin::runtime::cuda
