// Embedding and operands of many rows (prefill_rows.h).
#include "runtime/cuda/device.h"
#include "runtime/cuda/prefill_rows.h"

namespace levin::runtime::cuda {
namespace {

constexpr int kRowThreads = 256;
constexpr int kRowWarps = kRowThreads / 32;

__device__ inline float table_value(const EmbedRows& p, int64_t at) {
  switch (p.type) {
    case TableType::kF32:
      return static_cast<const float*>(p.table)[at];
    case TableType::kF16:
      return __half2float(static_cast<const __half*>(p.table)[at]);
    case TableType::kBf16:
      break;
  }
  return __bfloat162float(static_cast<const __nv_bfloat16*>(p.table)[at]);
}

__global__ void __launch_bounds__(kRowThreads) embed_rows(const __grid_constant__ EmbedRows p) {
  const int row = static_cast<int>(blockIdx.x);
  const int64_t at = static_cast<int64_t>(p.chunk.token[row]) * p.width;
  for (int i = static_cast<int>(threadIdx.x); i < p.width; i += kRowThreads) {
    p.out[static_cast<int64_t>(row) * p.width + i] = table_value(p, at + i);
  }
}

__device__ inline float warp_sum(float x) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    x += __shfl_xor_sync(0xffffffffu, x, distance);
  }
  return x;
}

// Over all threads, which all call; in an order that depends on nothing.
__device__ inline float row_sum(float x, float* scratch) {
  x = warp_sum(x);
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
  __syncthreads();
  float sum = 0.0F;
  for (int w = 0; w < kRowWarps; ++w) sum += scratch[w];
  __syncthreads();
  return sum;
}
__device__ inline float row_max(float x, float* scratch) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, distance));
  }
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
  __syncthreads();
  float most = 0.0F;
  for (int w = 0; w < kRowWarps; ++w) most = fmaxf(most, scratch[w]);
  __syncthreads();
  return most;
}

// One input of one row into shared memory.
__device__ inline void load_row(const MakeOperands& p, const MakeOperands::Input& input, int row,
                                float* values, float* scratch) {
  const int line = input.row == nullptr ? row : input.row[row];
  const float* x = line >= 0 ? input.x + line * input.stride
                             : input.kept_x + static_cast<int64_t>(~line) * p.width;
  const int vectors = p.width / 4;
  float squares = 0.0F;
  for (int i = static_cast<int>(threadIdx.x); i < vectors; i += kRowThreads) {
    const float4 v = __ldcg(reinterpret_cast<const float4*>(x) + i);
    squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    reinterpret_cast<float4*>(values)[i] = v;
  }
  if (p.kind == MakeOperands::Kind::kPlain) return;
  if (p.kind == MakeOperands::Kind::kNorm) {
    const float scale = rsqrtf(row_sum(squares, scratch) / static_cast<float>(p.width) + p.eps);
    for (int i = static_cast<int>(threadIdx.x); i < p.width; i += kRowThreads) {
      values[i] = values[i] * __ldg(input.weight + i) * scale;
    }
    return;
  }
  __syncthreads();
  const int width = p.width / p.groups;
  const int lane = static_cast<int>(threadIdx.x % 32);
  for (int group = static_cast<int>(threadIdx.x / 32); group < p.groups; group += kRowWarps) {
    float* of_group = values + group * width;
    float sum = 0.0F;
    for (int i = lane; i < width; i += 32) sum += of_group[i] * of_group[i];
    const float scale = rsqrtf(warp_sum(sum) / static_cast<float>(width) + p.eps);
    for (int i = lane; i < width; i += 32) {
      of_group[i] = of_group[i] * scale * __ldg(input.weight + group * width + i);
    }
  }
}

__global__ void __launch_bounds__(kRowThreads)
    make_operands(const __grid_constant__ MakeOperands p) {
  extern __shared__ __align__(16) float row_values[];
  __shared__ float scratch[kRowWarps];
  const int row = static_cast<int>(blockIdx.x);
  const int columns = p.width * p.input_count;
  const int units = (columns + kUnitColumns - 1) / kUnitColumns;
  for (int i = 0; i < p.input_count; ++i) {
    load_row(p, p.inputs[i], row, row_values + i * p.width, scratch);
  }
  for (int i = columns + static_cast<int>(threadIdx.x); i < units * kUnitColumns;
       i += kRowThreads) {
    row_values[i] = 0.0F;
  }
  __syncthreads();
  if (p.out != nullptr) {
    for (int i = static_cast<int>(threadIdx.x); i < p.width / 4; i += kRowThreads) {
      const float4 v = reinterpret_cast<const float4*>(row_values)[i];
      reinterpret_cast<float4*>(p.out + static_cast<int64_t>(row) * p.width)[i] = v;
    }
  }
  for (int o = 0; o < p.operand_count; ++o) {
    const OperandRows& to = p.operands[o];
    float inverse = 1.0F;
    if (to.operand.kind == OperandKind::kFp8Token) {
      float amax = 0.0F;
      for (int i = static_cast<int>(threadIdx.x); i < columns; i += kRowThreads) {
        amax = fmaxf(amax, fabsf(row_values[i]));
      }
      const float scale = fp8_row_scale(row_max(amax, scratch));
      if (threadIdx.x == 0) to.row_scales[row] = scale;
      inverse = 1.0F / scale;
    }
    // A thread writes one 16-byte piece: columns 2q and 2q + 1 of each of the unit's four quarters.
    for (int i = static_cast<int>(threadIdx.x); i < units * 8; i += kRowThreads) {
      const int unit = i / 8;
      const int q = i % 8;
      const auto* from = reinterpret_cast<const float2*>(row_values + unit * kUnitColumns) + q;
      const float2 a = from[0];
      const float2 b = from[8];
      const float2 c = from[16];
      const float2 d = from[24];
      const uint2 low = to_operand(to.operand, make_float4(a.x, a.y, b.x, b.y), inverse);
      const uint2 high = to_operand(to.operand, make_float4(c.x, c.y, d.x, d.y), inverse);
      *reinterpret_cast<uint4*>(to.panels.row(unit, row) + Panels::offset(row, 2 * q)) = {
          low.x, low.y, high.x, high.y};
    }
  }
}

__global__ void __launch_bounds__(kRowThreads)
    keep_rows(const __grid_constant__ ChunkRows chunk, const float* from, float* to, int width) {
  const int row = static_cast<int>(blockIdx.x);
  const int kept = chunk.kept[row];
  if (kept < 0) return;
  for (int i = static_cast<int>(threadIdx.x); i < width; i += kRowThreads) {
    to[static_cast<int64_t>(kept) * width + i] = from[static_cast<int64_t>(row) * width + i];
  }
}

}  // namespace

void launch_embed_rows(cudaStream_t stream, const EmbedRows& embed) {
  embed_rows<<<embed.chunk.rows, kRowThreads, 0, stream>>>(embed);
  check(cudaGetLastError());
}

void launch_make_operands(cudaStream_t stream, const MakeOperands& make, int rows) {
  const int units = (make.width * make.input_count + kUnitColumns - 1) / kUnitColumns;
  const std::size_t shared = static_cast<std::size_t>(units) * kUnitColumns * sizeof(float);
  if (shared > 48 * 1024) {
    check(cudaFuncSetAttribute(make_operands, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shared)));
  }
  make_operands<<<rows, kRowThreads, shared, stream>>>(make);
  check(cudaGetLastError());
}

void launch_keep_rows(cudaStream_t stream, const ChunkRows& chunk, const float* from, float* to,
                      int width) {
  keep_rows<<<chunk.rows, kRowThreads, 0, stream>>>(chunk, from, to, width);
  check(cudaGetLastError());
}

}  // namespace levin::runtime::cuda
