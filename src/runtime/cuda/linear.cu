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

template <int kRows, FormatSet kFormats>
__global__ void __launch_bounds__(kThreads, 2) norm_linear(const __grid_constant__ NormLinear p) {
  p.trace.stamp(Trace::kStart);
  Item* items = items_of(p.shared);
  const int first_rows = p.candidates != nullptr ? p.pass->most_vocab : 0;
  const int count = make_items(p.parts, p.part_count, items, first_rows);
  constexpr int kTokenGroups = groups_of(kRows);
  const int rows_now = p.pass->rows;
  NormWeights weights;
  weights.load(p.inputs[0].weight, p.width);
  const OperandSpace space = operand_space(p.shared, p.operands, p.operand_count, p.units);
  __syncthreads();
  if (rows_now == 0) return ptx::wait_for_previous();
  const int rows = kRows == 1 ? 1 : rows_now;
  WarpStream stream = stream_of(p.shared);
  stream.read_gently(static_cast<int>(threadIdx.x / 32), count, kWarps, p.shared.ahead,
                     p.shared.late);
  Best<kTokenGroups> best = no_best<kTokenGroups>();
  const NormedOutput normed = {p.normed, p.normed_stride, p.normed_by_hidden_row};
  if (kRows == 1 && p.input_count == 1 && !space.per_token()) {
    const RowOperands operands(space);
    const float inverse_width = 1.0F / static_cast<float>(p.width);
    const int normed_row = normed.by_hidden_row ? p.pass->hidden_row[0] : 0;
    ptx::wait_for_previous();
    p.trace.stamp(Trace::kReady);
    normalize_one<false>(p.inputs[0].x, p.width, inverse_width, p.eps, weights, operands,
                         space.scratch, normed, normed_row, {});
  } else if (kRows > 1 && p.input_count == 1 && !space.per_token()) {
    const RowOperands operands(space);
    ptx::wait_for_previous();
    p.trace.stamp(Trace::kReady);
    normalize_several<kRows, false>(p.inputs[0], *p.pass, rows, p.width, p.eps, weights, operands,
                                    space.scratch, normed, {});
  } else {
    ptx::wait_for_previous();
    p.trace.stamp(Trace::kReady);
    normalize<kRows>(p.inputs, p.input_count, *p.pass, rows, p.width, p.eps, weights, space,
                     normed);
  }
  space.pad(rows, p.width * p.input_count / 4, p.units);
  sync_computing();
  // Not earlier: what the next kernel does on arriving delays this one's input.
  ptx::launch_dependents();
  if (threadIdx.x == 0) p.trace.mark(Trace::kInputs);
  multiply_parts<kFormats>(p.parts, p.part_count, items, count, stream, space,
                           partials_of(p.shared), *p.pass, rows, p.trace, best);
  if (p.candidates != nullptr) reduce_candidates(best, rows, p.candidates);
  p.trace.stamp(Trace::kEnd);
}

namespace {

// This lane's share of a group's sum of squares; warp_sum() adds them up. `pieces`: of the group.
__device__ inline float pieces_of_lane(const float* pieces, int per_group) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  float sum = lane < per_group ? __ldcg(pieces + lane) : 0.0F;
#pragma unroll 1
  for (int j = lane + 32; j < per_group; j += 32) sum += __ldcg(pieces + j);
  return sum;
}
__device__ inline float scale_of_squares(const ActLinear& p, float squares) {
  return rsqrtf(squares * p.inverse_group_width + p.eps);
}

// Scales of the groups of the tokens' gated norms, into `scales` [tokens, groups].
__device__ inline void group_scales(const ActLinear& p, int rows, float* scales) {
  const int per_group = p.pieces / p.groups;
  const int count = rows * p.groups;
#pragma unroll 1
  for (int i = 2 * static_cast<int>(threadIdx.x / 32); i < count; i += 2 * kWarps) {
    const float* pieces = p.squares + i * per_group;
    const float of_two[2] = {pieces_of_lane(pieces, per_group),
                             i + 1 < count ? pieces_of_lane(pieces + per_group, per_group) : 0.0F};
    const float scale = scale_of_squares(p, warp_sums(of_two));
    const int mine = i + static_cast<int>(threadIdx.x % 32 / 16);
    if (threadIdx.x % 16 == 0 && mine < count) scales[mine] = scale;
  }
  sync_computing();
}

// A thread's part of a strip of kStrip columns of a row.
constexpr int kStripVectors = 2;
constexpr int kStrip = kStripVectors * kThreads;  // float4
using StripPart = float4[kStripVectors];

__device__ inline void load_strip(const float4* row, int first, int vectors, StripPart& part) {
#pragma unroll
  for (int i = 0; i < kStripVectors; ++i) {
    const int index = first + static_cast<int>(threadIdx.x) + i * kThreads;
    part[i] = index < vectors ? __ldcg(row + index) : make_float4(0, 0, 0, 0);
  }
}

// The strip after the gated norm. `weights` are those of the row's first strip.
__device__ inline void scale_strip(const ActLinear& p, const float* scales, int first, int vectors,
                                   const StripPart& weights, StripPart& part) {
  // Of a column; exact, since columns are far below 2^23.
  const auto group = [&](int column) {
    return static_cast<int>((static_cast<float>(column) + 0.5F) * p.inverse_group_width);
  };
#pragma unroll
  for (int i = 0; i < kStripVectors; ++i) {
    const int index = first + static_cast<int>(threadIdx.x) + i * kThreads;
    if (index >= vectors) continue;
    const float4 w =
        first == 0 ? weights[i] : __ldg(reinterpret_cast<const float4*>(p.weight) + index);
    float4& v = part[i];
    v.x *= scales[group(4 * index)] * w.x;
    v.y *= scales[group(4 * index + 1)] * w.y;
    v.z *= scales[group(4 * index + 2)] * w.z;
    v.w *= scales[group(4 * index + 3)] * w.w;
  }
}

// All tokens' inputs into operands.
__device__ inline void build_operands(const ActLinear& p, int rows, const StripPart& weights,
                                      const OperandSpace& space) {
  const bool gated = p.kind == InputKind::kGatedNorm;
  const int vectors = p.width / 4;
  float* scales = space.row_scales + kRowScales;
  StripPart part;
  load_strip(reinterpret_cast<const float4*>(p.x), 0, vectors, part);
  if (gated) group_scales(p, rows, scales);
#pragma unroll 1
  for (int token = 0; token < rows; ++token) {
    const auto* row = reinterpret_cast<const float4*>(p.x + static_cast<int64_t>(token) * p.width);
    const float* row_scales = scales + token * p.groups;
    float row_inverse = 1.0F;
    if (space.per_token()) {
      float amax = 0.0F;
      for (int first = 0; first < vectors; first += kStrip) {
        load_strip(row, first, vectors, part);
        if (gated) scale_strip(p, row_scales, first, vectors, weights, part);
#pragma unroll
        for (int i = 0; i < kStripVectors; ++i) amax = fmaxf(amax, largest_magnitude(part[i]));
      }
      row_inverse = space.set_row_scale(token, amax);
    }
#pragma unroll 1
    for (int first = 0; first < vectors; first += kStrip) {
      if (token + first > 0 || space.per_token()) load_strip(row, first, vectors, part);
      if (gated) scale_strip(p, row_scales, first, vectors, weights, part);
#pragma unroll
      for (int i = 0; i < kStripVectors; ++i) {
        const int index = first + static_cast<int>(threadIdx.x) + i * kThreads;
        if (index >= vectors) continue;
        space.store(token, index, part[i], row_inverse);
        if (p.observed != nullptr && blockIdx.x == 0) {
          reinterpret_cast<float4*>(p.observed + static_cast<int64_t>(token) * p.width)[index] =
              part[i];
        }
      }
    }
  }
}

// The squares of the groups that a thread's columns of a strip are in. A warp's columns must be of
// one group.
struct GroupSquares {
  const float* pieces[kStripVectors];  // null: no such columns
  int per_group = 0;

  static __device__ bool possible(const ActLinear& p) {
    return p.kind == InputKind::kPlain ||
           (p.width % p.groups == 0 && p.width / p.groups % 128 == 0);
  }
  __device__ explicit GroupSquares(const ActLinear& p) {
    if (p.kind == InputKind::kPlain) return;
    per_group = p.pieces / p.groups;
    const int width = p.width / p.groups;
#pragma unroll
    for (int i = 0; i < kStripVectors; ++i) {
      const int column = 4 * ((static_cast<int>(threadIdx.x) & ~31) + i * kThreads);
      pieces[i] = column < p.width ? p.squares + column / width * per_group : nullptr;
    }
  }
};

// One token's input into operands, as short as can be.
__device__ inline void build_one(const ActLinear& p, const StripPart& weights,
                                 const RowOperands& operands, const GroupSquares& of) {
  const int vectors = p.width / 4;
  const bool gated = p.kind == InputKind::kGatedNorm;
  StripPart part;
  load_strip(reinterpret_cast<const float4*>(p.x), 0, vectors, part);
  float squares[kStripVectors];
#pragma unroll
  for (int i = 0; i < kStripVectors; ++i) {
    squares[i] = gated && of.pieces[i] != nullptr ? pieces_of_lane(of.pieces[i], of.per_group) : 0;
  }
#pragma unroll
  for (int i = 0; i < kStripVectors; ++i) {
    const int index = static_cast<int>(threadIdx.x) + i * kThreads;
    float4& v = part[i];
    if (gated) {
      const float scale = scale_of_squares(p, warp_sum(squares[i]));
      v.x *= scale * weights[i].x;
      v.y *= scale * weights[i].y;
      v.z *= scale * weights[i].z;
      v.w *= scale * weights[i].w;
    }
    if (index >= vectors) continue;
    operands.store(0, index, v);
    if (p.observed != nullptr && blockIdx.x == 0) reinterpret_cast<float4*>(p.observed)[index] = v;
  }
}

// The inputs of up to kMost tokens into operands, four tokens at a time. `scales`: room for those
// of the groups.
template <int kMost>
__device__ inline void build_several(const ActLinear& p, int rows, const StripPart& weights,
                                     const RowOperands& operands, float* scales) {
  constexpr int kAtOnce = 4;
  const int vectors = p.width / 4;
  const bool gated = p.kind == InputKind::kGatedNorm;
#pragma unroll
  for (int first = 0; first < kMost; first += kAtOnce) {
    if (first >= rows) break;
    StripPart part[kAtOnce];
#pragma unroll
    for (int r = 0; r < kAtOnce; ++r) {
      const int64_t token = min(first + r, rows - 1);
      load_strip(reinterpret_cast<const float4*>(p.x + token * p.width), 0, vectors, part[r]);
    }
    if (first == 0 && gated) group_scales(p, rows, scales);
#pragma unroll
    for (int i = 0; i < kStripVectors; ++i) {
      const int index = static_cast<int>(threadIdx.x) + i * kThreads;
      if (index >= vectors) break;
      const int group =
          gated ? static_cast<int>((static_cast<float>(4 * index) + 0.5F) * p.inverse_group_width)
                : 0;
#pragma unroll
      for (int r = 0; r < kAtOnce; ++r) {
        const int token = first + r;
        if (token >= rows) break;
        float4& v = part[r][i];
        if (gated) {
          const float scale = scales[token * p.groups + group];
          v.x *= scale * weights[i].x;
          v.y *= scale * weights[i].y;
          v.z *= scale * weights[i].z;
          v.w *= scale * weights[i].w;
        }
        operands.store(token, index, v);
        if (p.observed != nullptr && blockIdx.x == 0) {
          reinterpret_cast<float4*>(p.observed + static_cast<int64_t>(token) * p.width)[index] = v;
        }
      }
    }
  }
}

}  // namespace

template <int kRows, FormatSet kFormats>
__global__ void __launch_bounds__(kThreads, 2) act_linear(const __grid_constant__ ActLinear p) {
  p.trace.stamp(Trace::kStart);
  // With one token at once: this phase is short, and the next one takes as long until it wants its
  // input. Otherwise not before this one's input is there (below).
  if (kRows == 1 && p.kind == InputKind::kGatedNorm) ptx::launch_dependents();
  Item* items = items_of(p.shared);
  const int count = make_items(p.parts, p.part_count, items);
  constexpr int kTokenGroups = groups_of(kRows);
  const int rows_now = p.pass->rows;
  const OperandSpace space = operand_space(p.shared, p.operands, p.operand_count, p.units);
  __syncthreads();
  if (rows_now == 0) return ptx::wait_for_previous();
  const int rows = kRows == 1 ? 1 : rows_now;
  StripPart weights = {};
  if (p.kind == InputKind::kGatedNorm) {
    load_strip(reinterpret_cast<const float4*>(p.weight), 0, p.width / 4, weights);
  }
  WarpStream stream = stream_of(p.shared);
  stream.read_gently(static_cast<int>(threadIdx.x / 32), count, kWarps, p.shared.ahead,
                     p.shared.late);
  if (kRows == 1 && p.width <= 4 * kStrip && GroupSquares::possible(p) && !space.per_token()) {
    const RowOperands operands(space);
    const GroupSquares squares(p);
    ptx::wait_for_previous();
    p.trace.stamp(Trace::kReady);
    build_one(p, weights, operands, squares);
  } else if (kRows > 1 && p.width <= 4 * kStrip && GroupSquares::possible(p) &&
             !space.per_token()) {
    const RowOperands operands(space);
    ptx::wait_for_previous();
    p.trace.stamp(Trace::kReady);
    build_several<kRows>(p, rows, weights, operands, space.row_scales + kRowScales);
  } else {
    ptx::wait_for_previous();
    p.trace.stamp(Trace::kReady);
    build_operands(p, rows, weights, space);
  }
  space.pad(rows, p.width / 4, p.units);
  sync_computing();
  // Not earlier: what the next kernel does on arriving delays this one's input.
  ptx::launch_dependents();
  if (threadIdx.x == 0) p.trace.mark(Trace::kInputs);
  Best<kTokenGroups> best = no_best<kTokenGroups>();
  multiply_parts<kFormats>(p.parts, p.part_count, items, count, stream, space,
                           partials_of(p.shared), *p.pass, rows, p.trace, best);
  p.trace.stamp(Trace::kEnd);
}

namespace {

// A phase's linears mostly have one format.
template <typename Make>
auto kernel_of_linears(FormatSet formats, Make&& make) {
  return kernel_for<set_of(UnitFormat::kBf16), set_of(UnitFormat::kFp8), set_of(UnitFormat::kNvfp4),
                    set_of(UnitFormat::kInt4)>(formats, make);
}

}  // namespace

Kernel<NormLinear> norm_linear_kernel(int rows, FormatSet formats) {
  return kernel_of_linears(formats, [&]<FormatSet kFormats>() -> Kernel<NormLinear> {
    return rows == 1   ? norm_linear<1, kFormats>
           : rows <= 4 ? norm_linear<4, kFormats>
                       : norm_linear<8, kFormats>;
  });
}
Kernel<ActLinear> act_linear_kernel(int rows, FormatSet formats) {
  return kernel_of_linears(formats, [&]<FormatSet kFormats>() -> Kernel<ActLinear> {
    return rows == 1   ? act_linear<1, kFormats>
           : rows <= 4 ? act_linear<4, kFormats>
                       : act_linear<8, kFormats>;
  });
}

}  // namespace levin::runtime::cuda
