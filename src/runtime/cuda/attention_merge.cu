// The end of attention: the results of a token's chunks become one (attention.h).
#include "runtime/cuda/attention.h"

namespace levin::runtime::cuda {
namespace {

constexpr float kMinusInfinity = -INFINITY;

}  // namespace

// Of one head of one token kMergeDims dims of all chunks: a thread adds up four dims of every
// kGroups-th chunk, and the groups' sums are added up in order.
template <int kDim>
__global__ void __launch_bounds__(kMergeThreads) merge_chunks(const __grid_constant__ Attention p) {
  p.trace.stamp(Trace::kStart);
  constexpr int kVectors = kMergeDims / 4;
  constexpr int kGroups = kMergeThreads / kVectors;
  constexpr int kMergeWarps = kMergeThreads / 32;
  constexpr int kOfThread = kMaxChunks / kMergeThreads;
  static_assert(kMaxChunks % kMergeThreads == 0);
  __shared__ float factors[kMaxChunks];
  __shared__ float sums[kGroups][kMergeDims];
  __shared__ float largest[kMergeWarps];
  __shared__ float weights[kMergeWarps];
  ptx::launch_dependents();
  const int head = static_cast<int>(blockIdx.x) / (kDim / kMergeDims);
  const int first_dim = static_cast<int>(blockIdx.x) % (kDim / kMergeDims) * kMergeDims;
  const auto token = static_cast<int>(blockIdx.y);
  const int rows = p.pass->rows;
  const int last = token < rows ? p.pass->position[token] + p.position_offset : -1;
  const auto thread = static_cast<int>(threadIdx.x);
  const int vector = thread % kVectors;
  const int group = thread / kVectors;
  const int chunks = last < 0 ? 0 : p.chunks.of(last) + 1;
  const int64_t first = p.at(token, head, 0);
  ptx::wait_for_previous();
  p.trace.stamp(Trace::kReady);
  if (token >= rows) return;

  float2 of_chunk[kOfThread];  // largest score, sum of weights
  float most = kMinusInfinity;
#pragma unroll
  for (int i = 0; i < kOfThread; ++i) {
    const int chunk = thread + i * kMergeThreads;
    of_chunk[i] = make_float2(kMinusInfinity, 0.0F);
    if (chunk < chunks) {
      of_chunk[i] = __ldcg(reinterpret_cast<const float2*>(p.weights) + first + chunk);
    }
    most = fmaxf(most, of_chunk[i].x);
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, distance));
  }
  if (thread % 32 == 0) largest[thread / 32] = most;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kMergeWarps; ++w) most = fmaxf(most, largest[w]);
  float weight = 0.0F;
#pragma unroll
  for (int i = 0; i < kOfThread; ++i) {
    const int chunk = thread + i * kMergeThreads;
    if (chunk >= chunks) break;
    const float factor = ptx::exp2_approx(of_chunk[i].x - most);
    factors[chunk] = factor;
    weight += of_chunk[i].y * factor;
  }
  weight = warp_sum(weight);
  if (thread % 32 == 0) weights[thread / 32] = weight;
  __syncthreads();

  float4 sum = make_float4(0, 0, 0, 0);
  const auto* from = reinterpret_cast<const float4*>(p.sums + first * kDim + first_dim) + vector;
  constexpr int kAtOnce = 8;
#pragma unroll 1
  for (int begin = group; begin < chunks; begin += kAtOnce * kGroups) {
    float4 v[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int chunk = min(begin + i * kGroups, chunks - 1);
      v[i] = __ldcg(from + static_cast<int64_t>(chunk) * (kDim / 4));
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int chunk = begin + i * kGroups;
      if (chunk >= chunks) break;
      const float factor = factors[chunk];
      sum.x += v[i].x * factor;
      sum.y += v[i].y * factor;
      sum.z += v[i].z * factor;
      sum.w += v[i].w * factor;
    }
  }
  *reinterpret_cast<float4*>(&sums[group][4 * vector]) = sum;
  __syncthreads();
  const int dim = first_dim + thread;
  if (thread < kMergeDims && dim < p.keys.head_dim) {
    float y = 0.0F;
    float total = 0.0F;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) y += sums[g][thread];
#pragma unroll
    for (int w = 0; w < kMergeWarps; ++w) total += weights[w];
    const float value_scale = p.values.fp8 ? p.values.scale : 1.0F;
    p.out[(static_cast<int64_t>(token) * p.heads + head) * p.keys.head_dim + dim] =
        chunks == 0 ? 0.0F : y / total * value_scale;
  }
  p.trace.stamp(Trace::kEnd);
}

Kernel<Attention> merge_chunks_kernel(const KvView& keys) {
  return keys.padded_dim == 64 ? merge_chunks<64> : merge_chunks<128>;
}

}  // namespace levin::runtime::cuda
