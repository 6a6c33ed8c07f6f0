// Router, sorting and weighted sum (prefill_moe.h).
#include "runtime/cuda/device.h"
#include "runtime/cuda/prefill_moe.h"

namespace levin::runtime::cuda {
namespace {

constexpr int kRouterTokens = 16;  // of a block
constexpr int kRouterWarps = 8;    // each takes every eighth 16 columns
constexpr int kRouterExperts = 64;

// Four consecutive values as pairs of bfloat16 whose sum is the value: largest part first.
struct Split {
  uint32_t part[3][2];

  __device__ void set(float4 v) {
    float left[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 3; ++i) {
#pragma unroll
      for (int pair = 0; pair < 2; ++pair) {
        const uint32_t bits = ptx::floats_to_bf16x2(left[2 * pair], left[2 * pair + 1]);
        part[i][pair] = bits;
        left[2 * pair] -= __uint_as_float(bits << 16);
        left[2 * pair + 1] -= __uint_as_float(bits & 0xffff0000u);
      }
    }
  }
};

__device__ inline float4 router_input(const RouterLogits& p, int row, int column) {
  if (row >= p.rows || column >= p.width) return make_float4(0, 0, 0, 0);
  return __ldcg(
      reinterpret_cast<const float4*>(p.x + static_cast<int64_t>(row) * p.width + column));
}

// Grid: tokens / 16, experts / 64. Lane (g, t) of a warp has rows g and g + 8 and of each 16
// columns the four from 4t on, of A and of B alike.
template <bool kGateBf16>
__global__ void __launch_bounds__(32 * kRouterWarps)
    router_logits(const __grid_constant__ RouterLogits p) {
  if constexpr (!ptx::kChunks) return __trap();
  __shared__ float sums[kRouterWarps][kRouterTokens][kRouterExperts];
  constexpr int kTiles = kRouterExperts / 8;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int g = lane / 4;
  const int t = lane % 4;
  const int token = static_cast<int>(blockIdx.x) * kRouterTokens;
  const int expert = static_cast<int>(blockIdx.y) * kRouterExperts;
  float c[kTiles][4] = {};
  for (int column = warp * 16 + 4 * t; column < p.width + 4 * t; column += 16 * kRouterWarps) {
    Split x[2];
    x[0].set(router_input(p, token + g, column));
    x[1].set(router_input(p, token + g + 8, column));
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const int e = expert + 8 * tile + g;
      const bool exists = e < p.experts && column < p.width;
      const int64_t at = static_cast<int64_t>(e) * p.width + column;
      if constexpr (kGateBf16) {
        const uint2 b = exists ? __ldg(reinterpret_cast<const uint2*>(
                                     static_cast<const uint16_t*>(p.gate.weights) + at))
                               : make_uint2(0, 0);
#pragma unroll
        for (int i = 2; i >= 0; --i) {
          const uint32_t a[4] = {x[0].part[i][0], x[1].part[i][0], x[0].part[i][1],
                                 x[1].part[i][1]};
          ptx::mma_bf16(c[tile], a, b.x, b.y);
        }
      } else {
        Split w;
        w.set(exists ? __ldg(reinterpret_cast<const float4*>(
                           static_cast<const float*>(p.gate.weights) + at))
                     : make_float4(0, 0, 0, 0));
        // Products below 2^-24 of the largest are left out.
#pragma unroll
        for (int both = 2; both >= 0; --both) {
#pragma unroll
          for (int i = 0; i <= both; ++i) {
            const uint32_t a[4] = {x[0].part[i][0], x[1].part[i][0], x[0].part[i][1],
                                   x[1].part[i][1]};
            ptx::mma_bf16(c[tile], a, w.part[both - i][0], w.part[both - i][1]);
          }
        }
      }
    }
  }
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[warp][g + i / 2 * 8][8 * tile + 2 * t + i % 2] = c[tile][i];
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kRouterTokens * kRouterExperts;
       i += 32 * kRouterWarps) {
    const int row = i / kRouterExperts;
    const int e = i % kRouterExperts;
    if (token + row >= p.rows || expert + e >= p.experts) continue;
    float sum = 0.0F;
    for (int w = 0; w < kRouterWarps; ++w) sum += sums[w][row][e];
    ptx::store_tagged(p.words + static_cast<int64_t>(token + row) * p.experts + expert + e,
                      __float_as_uint(sum), *p.epoch);
  }
}

constexpr int kChooseWarps = 4;  // a token each

__global__ void __launch_bounds__(32 * kChooseWarps)
    choose(const __grid_constant__ Router router, const __grid_constant__ SortedPairs pairs,
           int rows) {
  extern __shared__ __align__(16) uint8_t routing_memory[];
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int token = static_cast<int>(blockIdx.x) * kChooseWarps + warp;
  if (token >= rows) return;
  const int bytes = Routing::bytes(1, router.chosen, router.experts, router.groups);
  const Routing routing = {routing_memory + warp * ((bytes + 15) / 16 * 16), router.chosen};
  if (router.experts <= 128 && router.groups == 1) {
    choose_of_few(router, epoch_of(router), token, 0, routing, true);
  } else {
    choose_experts<kExpertWords>(router, epoch_of(router), token, 0, routing);
  }
  __syncwarp();
  if (lane >= router.chosen) return;
  const int pair = token * router.chosen + lane;
  const int expert = routing.expert()[lane];
  pairs.expert[pair] = expert;
  pairs.weight[pair] = routing.weight()[lane];
  pairs.rank[pair] = atomicAdd(pairs.count + expert, 1);
}

__global__ void __launch_bounds__(kMaxExperts)
    place_experts(const __grid_constant__ SortedPairs pairs, int experts, int tile) {
  __shared__ int rows[kMaxExperts];
  __shared__ int tiles[kMaxExperts];
  const int e = static_cast<int>(threadIdx.x);
  const int count = e < experts ? pairs.count[e] : 0;
  const int own_rows = (count + 7) / 8 * 8;
  const int own_tiles = (count + tile - 1) / tile;
  rows[e] = own_rows;
  tiles[e] = own_tiles;
  for (int distance = 1; distance < kMaxExperts; distance *= 2) {
    __syncthreads();
    const int more_rows = e >= distance ? rows[e - distance] : 0;
    const int more_tiles = e >= distance ? tiles[e - distance] : 0;
    __syncthreads();
    rows[e] += more_rows;
    tiles[e] += more_tiles;
  }
  if (e >= experts) return;
  pairs.first[e] = rows[e] - own_rows;
  pairs.tiles_before[e] = tiles[e] - own_tiles;
  if (e == experts - 1) pairs.tiles_before[experts] = tiles[e];
}

constexpr int kCopyThreads = 256;

__global__ void __launch_bounds__(kCopyThreads) gather(const __grid_constant__ GatherRows p) {
  __shared__ int to_row[32];
  const int token = static_cast<int>(blockIdx.x);
  if (static_cast<int>(threadIdx.x) < p.chosen) {
    const int pair = token * p.chosen + static_cast<int>(threadIdx.x);
    const int row = p.pairs.first[p.pairs.expert[pair]] + p.pairs.rank[pair];
    to_row[threadIdx.x] = row;
    p.pairs.row[pair] = row;
    if (p.row_scales != nullptr) p.sorted_scales[row] = p.row_scales[token];
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < p.units * 8; i += kCopyThreads) {
    const int unit = i / 8;
    const int piece = i % 8;
    const uint4 v =
        __ldcg(reinterpret_cast<const uint4*>(p.from.row(unit, token)) + (piece ^ (token & 7)));
    for (int j = 0; j < p.chosen; ++j) {
      const int row = to_row[j];
      reinterpret_cast<uint4*>(p.to.row(unit, row))[piece ^ (row & 7)] = v;
    }
  }
}

__global__ void __launch_bounds__(kCopyThreads) combine(const __grid_constant__ CombineExperts p) {
  __shared__ int row[32];
  __shared__ float weight[32];
  const int token = static_cast<int>(blockIdx.x);
  if (static_cast<int>(threadIdx.x) < p.chosen) {
    const int pair = token * p.chosen + static_cast<int>(threadIdx.x);
    row[threadIdx.x] = p.pairs.row[pair];
    weight[threadIdx.x] = p.pairs.weight[pair];
  }
  __syncthreads();
  auto* out = reinterpret_cast<float4*>(p.out + static_cast<int64_t>(token) * p.width);
  for (int i = static_cast<int>(threadIdx.x); i < p.width / 4; i += kCopyThreads) {
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 8
    for (int j = 0; j < p.chosen; ++j) {
      const float4 v =
          __ldcg(reinterpret_cast<const float4*>(p.y + static_cast<int64_t>(row[j]) * p.width) + i);
      const float w = weight[j];
      sum.x += w * v.x, sum.y += w * v.y, sum.z += w * v.z, sum.w += w * v.w;
    }
    if (p.add) {
      const float4 h = out[i];
      sum.x += h.x, sum.y += h.y, sum.z += h.z, sum.w += h.w;
    }
    out[i] = sum;
  }
}

}  // namespace

void launch_router_logits(cudaStream_t stream, const RouterLogits& router) {
  const dim3 grid(static_cast<unsigned>((router.rows + kRouterTokens - 1) / kRouterTokens),
                  static_cast<unsigned>((router.experts + kRouterExperts - 1) / kRouterExperts));
  if (router.gate.bf16) {
    router_logits<true><<<grid, 32 * kRouterWarps, 0, stream>>>(router);
  } else {
    router_logits<false><<<grid, 32 * kRouterWarps, 0, stream>>>(router);
  }
  check(cudaGetLastError());
}

void launch_choose(cudaStream_t stream, const Router& router, int rows, const SortedPairs& pairs) {
  check(cudaMemsetAsync(pairs.count, 0, sizeof(int) * static_cast<std::size_t>(router.experts),
                        stream));
  const int bytes = Routing::bytes(1, router.chosen, router.experts, router.groups);
  const int grid = (rows + kChooseWarps - 1) / kChooseWarps;
  choose<<<grid, 32 * kChooseWarps,
           static_cast<std::size_t>(kChooseWarps * ((bytes + 15) / 16 * 16)), stream>>>(
      router, pairs, rows);
  check(cudaGetLastError());
}

void launch_place_experts(cudaStream_t stream, const SortedPairs& pairs, int experts, int tile) {
  place_experts<<<1, kMaxExperts, 0, stream>>>(pairs, experts, tile);
  check(cudaGetLastError());
}

void launch_gather(cudaStream_t stream, const GatherRows& rows_to_gather, int rows) {
  gather<<<rows, kCopyThreads, 0, stream>>>(rows_to_gather);
  check(cudaGetLastError());
}

void launch_combine(cudaStream_t stream, const CombineExperts& experts, int rows) {
  combine<<<rows, kCopyThreads, 0, stream>>>(experts);
  check(cudaGetLastError());
}

}  // namespace levin::runtime::cuda
