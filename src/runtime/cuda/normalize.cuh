// RMSNorm of the tokens' rows by the computing threads of a block, straight into operands.
#pragma once

#include "runtime/cuda/linear.h"

namespace levin::runtime::cuda {

// The norm's weights of this thread, loaded while the previous kernel still runs.
struct NormWeights {
  float4 values[kMaxVectors];
  __device__ void load(const float* weight, int width) {
#pragma unroll
    for (int i = 0; i < kMaxVectors; ++i) {
      const int vector = threadIdx.x + i * kThreads;
      values[i] = vector * 4 < width ? __ldg(reinterpret_cast<const float4*>(weight) + vector)
                                     : make_float4(0, 0, 0, 0);
    }
  }
};

// Where normalized rows are left, for the draft head and for observers.
struct NormedOutput {
  float* data = nullptr;
  int stride = 0;
  bool by_hidden_row = false;
};

// The router's logit of one expert on the way: the dot product needs the same pass over the row and
// the same sum over the block as the norm.
struct RouterTap {
  // This thread's part of the expert's row; of bfloat16 the bits, in x and y, until unpack().
  float4 gate[kMaxVectors];
  bool bf16 = false;
  uint64_t* words = nullptr;  // [kMaxRows][experts], where the logit goes, with `epoch` as its tag
  int experts = 0;
  int expert = 0;  // beyond `experts`: no logit
  uint32_t epoch = 0;

  // Bits to numbers. Who does it waits for them.
  __device__ void unpack() {
    if (!bf16) return;
#pragma unroll
    for (float4& of : gate) of = unpacked(of);
    bf16 = false;
  }
  static __device__ float4 unpacked(const float4& bits) {
    const uint32_t x = __float_as_uint(bits.x);
    const uint32_t y = __float_as_uint(bits.y);
    return make_float4(__uint_as_float(x << 16), __uint_as_float(x & 0xffff0000u),
                       __uint_as_float(y << 16), __uint_as_float(y & 0xffff0000u));
  }
};

// This thread's vectors of kRows rows from `first` on; behind the last row that one again.
template <int kRows>
__device__ inline void load_rows(const NormedInput& input, const Pass& pass, int first, int rows,
                                 int width, float4 (&v)[kRows][kMaxVectors]) {
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int token = min(first + r, rows - 1);
    const int line = input.by_previous_row ? pass.previous_row[token] : token;
    const auto* x =
        reinterpret_cast<const float4*>(input.x + static_cast<int64_t>(line) * input.stride);
#pragma unroll
    for (int i = 0; i < kMaxVectors; ++i) {
      const int vector = threadIdx.x + i * kThreads;
      v[r][i] = vector * 4 < width ? __ldcg(x + vector) : make_float4(0, 0, 0, 0);
    }
  }
}

// kRows rows at a time, from `first` on; those from `rows` on do not count.
template <int kRows, bool kRouter>
__device__ inline void normalize_rows(const NormedInput& input, const Pass& pass, int first,
                                      int rows, int width, float eps, const NormWeights& weights,
                                      const OperandSpace& space, const NormedOutput& normed,
                                      const RouterTap& tap) {
  constexpr int kSums = kRouter ? 2 : 1;
  float4 v[kRows][kMaxVectors];
  float sums[kRows * kSums];  // squares, products
  load_rows(input, pass, first, rows, width, v);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    float& squares = sums[r * kSums];
    squares = 0.0F;
    if constexpr (kRouter) sums[r * kSums + 1] = 0.0F;
#pragma unroll
    for (int i = 0; i < kMaxVectors; ++i) {
      float4& a = v[r][i];
      const float4 w = weights.values[i];
      squares += a.x * a.x + a.y * a.y + a.z * a.z + a.w * a.w;
      a = make_float4(a.x * w.x, a.y * w.y, a.z * w.z, a.w * w.w);
      if constexpr (kRouter) {
        const float4 g = tap.gate[i];
        sums[r * kSums + 1] += a.x * g.x + a.y * g.y + a.z * g.z + a.w * g.w;
      }
    }
  }
  block_sum(sums, space.scratch);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int token = first + r;
    if (token >= rows) break;
    const float scale = rsqrtf(sums[r * kSums] * (1.0F / static_cast<float>(width)) + eps);
    if constexpr (kRouter) {
      if (threadIdx.x == 0 && tap.expert < tap.experts) {
        ptx::store_tagged(tap.words + token * tap.experts + tap.expert,
                          __float_as_uint(sums[r * kSums + 1] * scale), tap.epoch);
      }
    }
    float amax = 0.0F;
#pragma unroll
    for (int i = 0; i < kMaxVectors; ++i) {
      float4& a = v[r][i];
      a = make_float4(a.x * scale, a.y * scale, a.z * scale, a.w * scale);
      amax = fmaxf(amax, largest_magnitude(a));
    }
    const float row_inverse = space.per_token() ? space.set_row_scale(token, amax) : 1.0F;
    const int line = normed.by_hidden_row ? pass.hidden_row[token] : token;
#pragma unroll
    for (int i = 0; i < kMaxVectors; ++i) {
      const int vector = threadIdx.x + i * kThreads;
      if (vector * 4 >= width) continue;
      space.store(token, input.column / 4 + vector, v[r][i], row_inverse);
      if (normed.data != nullptr && blockIdx.x == 0) {
        float* to = normed.data + static_cast<int64_t>(line) * normed.stride + input.column;
        reinterpret_cast<float4*>(to)[vector] = v[r][i];
      }
    }
  }
}

// The same of one row whose operands have no scale of its own, as short as can be: this is what
// everybody waits for when a phase begins.
template <bool kRouter>
__device__ inline void normalize_one(const float* input, int width, float inverse_width, float eps,
                                     const NormWeights& weights, const RowOperands& operands,
                                     float* scratch, const NormedOutput& normed, int normed_row,
                                     RouterTap tap) {
  constexpr int kSums = kRouter ? 2 : 1;
  const auto* x = reinterpret_cast<const float4*>(input);
  float4 v[kMaxVectors];
#pragma unroll
  for (int i = 0; i < kMaxVectors; ++i) {
    const int vector = threadIdx.x + i * kThreads;
    v[i] = vector * 4 < width ? __ldcg(x + vector) : make_float4(0, 0, 0, 0);
  }
  if constexpr (kRouter) tap.unpack();
  float sums[kSums] = {};  // squares, products
#pragma unroll
  for (int i = 0; i < kMaxVectors; ++i) {
    float4& a = v[i];
    const float4 w = weights.values[i];
    sums[0] += a.x * a.x + a.y * a.y + a.z * a.z + a.w * a.w;
    a = make_float4(a.x * w.x, a.y * w.y, a.z * w.z, a.w * w.w);
    if constexpr (kRouter) {
      const float4 g = tap.gate[i];
      sums[1] += a.x * g.x + a.y * g.y + a.z * g.z + a.w * g.w;
    }
  }
  block_sum_once(sums, scratch);
  const float scale = rsqrtf(sums[0] * inverse_width + eps);
  if constexpr (kRouter) {
    if (threadIdx.x == 0 && tap.expert < tap.experts) {
      ptx::store_tagged(tap.words + tap.expert, __float_as_uint(sums[1] * scale), tap.epoch);
    }
  }
#pragma unroll
  for (int i = 0; i < kMaxVectors; ++i) {
    const int vector = threadIdx.x + i * kThreads;
    if (vector * 4 >= width) break;
    float4& a = v[i];
    a = make_float4(a.x * scale, a.y * scale, a.z * scale, a.w * scale);
    operands.store(0, vector, a);
    if (normed.data != nullptr && blockIdx.x == 0) {
      float* to = normed.data + static_cast<int64_t>(normed_row) * normed.stride;
      reinterpret_cast<float4*>(to)[vector] = a;
    }
  }
}

// The same of up to kRows rows at once, those from `first` on. `scratch`: 2 * kRows * kWarps floats
// that are not used again before another barrier.
template <int kRows, bool kRouter>
__device__ inline void normalize_together(const NormedInput& input, const Pass& pass, int first,
                                          int rows, int width, float eps,
                                          const NormWeights& weights, const RowOperands& operands,
                                          float* scratch, const NormedOutput& normed,
                                          const RouterTap& tap) {
  static_assert(kRows % 2 == 0);
  constexpr int kSums = kRouter ? 2 : 1;
  float4 v[kRows][kMaxVectors];
  load_rows(input, pass, first, rows, width, v);
  float sums[kRows * kSums];  // of each row: squares, products
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    float squares = 0.0F;
    float products = 0.0F;
#pragma unroll
    for (int i = 0; i < kMaxVectors; ++i) {
      float4& a = v[r][i];
      const float4 w = weights.values[i];
      squares += a.x * a.x + a.y * a.y + a.z * a.z + a.w * a.w;
      a = make_float4(a.x * w.x, a.y * w.y, a.z * w.z, a.w * w.w);
      if constexpr (kRouter) {
        const float4 g = tap.bf16 ? RouterTap::unpacked(tap.gate[i]) : tap.gate[i];
        products += a.x * g.x + a.y * g.y + a.z * g.z + a.w * g.w;
      }
    }
    sums[r * kSums] = squares;
    if constexpr (kRouter) sums[r * kSums + 1] = products;
  }
  constexpr int kLanes = 32 / (kRows * kSums);  // that have the same sum
  const auto lane = static_cast<int>(threadIdx.x % 32);
  const auto warp = static_cast<int>(threadIdx.x / 32);
  const float sum = warp_sums(sums);
  if (lane % kLanes == 0) scratch[lane / kLanes * kWarps + warp] = sum;
  sync_computing();
  float scales[kRows];
#pragma unroll
  for (int r = 0; r < kRows; r += 2) {
    const float squares = sum_of_warps(scratch + (r + lane / kWarps) * kSums * kWarps);
    const float scale = rsqrtf(squares * (1.0F / static_cast<float>(width)) + eps);
    scales[r] = __shfl_sync(0xffffffffu, scale, 0);
    scales[r + 1] = __shfl_sync(0xffffffffu, scale, kWarps);
  }
  if constexpr (kRouter) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (warp != r || first + r >= rows || tap.expert >= tap.experts) continue;
      const float products = sum_of_warps(scratch + (r * kSums + 1) * kWarps);
      if (lane == 0) {
        ptx::store_tagged(tap.words + (first + r) * tap.experts + tap.expert,
                          __float_as_uint(products * scales[r]), tap.epoch);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int token = first + r;
    if (token >= rows) break;
#pragma unroll
    for (int i = 0; i < kMaxVectors; ++i) {
      const int vector = threadIdx.x + i * kThreads;
      if (vector * 4 >= width) break;
      const float4 b = v[r][i];
      const float4 a =
          make_float4(b.x * scales[r], b.y * scales[r], b.z * scales[r], b.w * scales[r]);
      operands.store(token, input.column / 4 + vector, a);
      if (normed.data != nullptr && blockIdx.x == 0) {
        const int line = normed.by_hidden_row ? pass.hidden_row[token] : token;
        float* to = normed.data + static_cast<int64_t>(line) * normed.stride + input.column;
        reinterpret_cast<float4*>(to)[vector] = a;
      }
    }
  }
}

// All rows of one input whose operands have no scale of their own, in a kernel for up to kMost
// tokens.
template <int kMost, bool kRouter>
__device__ inline void normalize_several(const NormedInput& input, const Pass& pass, int rows,
                                         int width, float eps, const NormWeights& weights,
                                         const RowOperands& operands, float* scratch,
                                         const NormedOutput& normed, const RouterTap& tap) {
  constexpr int kAtOnce = kMost <= 2 ? 2 : 4;
#pragma unroll
  for (int first = 0; first < kMost; first += kAtOnce) {
    if (first >= rows) break;
    normalize_together<kAtOnce, kRouter>(input, pass, first, rows, width, eps, weights, operands,
                                         scratch + first * 2 * kWarps, normed, tap);
  }
}

// All rows of one input, in a kernel for up to kMost tokens.
template <int kMost, bool kRouter>
__device__ inline void normalize_input(const NormedInput& input, const Pass& pass, int rows,
                                       int width, float eps, const NormWeights& weights,
                                       const OperandSpace& space, const NormedOutput& normed,
                                       const RouterTap& tap) {
  constexpr int kAtOnce = kMost == 1 ? 1 : 2;
#pragma unroll 1
  for (int first = 0; first < rows; first += kAtOnce) {
    normalize_rows<kAtOnce, kRouter>(input, pass, first, rows, width, eps, weights, space, normed,
                                     tap);
  }
}

// All rows of `count` inputs. `weights` are those of the first.
template <int kMost>
__device__ inline void normalize(const NormedInput* inputs, int count, const Pass& pass, int rows,
                                 int width, float eps, NormWeights& weights,
                                 const OperandSpace& space, const NormedOutput& normed) {
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    if (i > 0) weights.load(inputs[i].weight, width);
    normalize_input<kMost, false>(inputs[i], pass, rows, width, eps, weights, space, normed, {});
  }
}

}  // namespace levin::runtime::cuda
