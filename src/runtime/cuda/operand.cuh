// Activations as the tensor cores take them: rows of 16-bit values in shared memory, built once per
// block from float32. A linear whose inputs the checkpoint quantizes gets exactly those values (an
// e4m3 code is a float16); the scale that multiplies them goes into the linear's factor.
#pragma once

#include "runtime/cuda/packed.cuh"
#include "runtime/cuda/ptx.cuh"

namespace levin::runtime::cuda {

enum class OperandKind : uint8_t {
  kBf16,       // rounded to bfloat16, for BF16 weights
  kF16,        // rounded to float16 after dividing by `scale`, a power of two
  kFp8Static,  // e4m3(x / scale)
  kFp8Token    // e4m3(x / row scale), row scale = amax / 448
};

struct Operand {
  OperandKind kind = OperandKind::kBf16;
  float scale = 1.0F;
  float inverse = 1.0F;  // 1 / scale
};

inline constexpr int kMaxOperands = 3;  // different ones of a kernel's linears

// Bytes from one row of an operand of `units` units to the next. The 16 bytes more than needed
// spread the rows of one column over the banks.
__host__ __device__ inline int operand_stride(int units) {
  return units * 2 * kUnitColumns + 16;
}

// Saturating at the largest float16.
__device__ inline uint32_t to_f16x2(float x, float y) {
  return ptx::floats_to_f16x2_saturating(x, y);
}

// e4m3 codes as float16, saturating at 448.
__device__ inline uint32_t to_e4m3_as_f16x2(float x, float y) {
  return ptx::e4m3x2_to_f16x2(ptx::floats_to_e4m3x2(x, y));
}

// Four consecutive values as operand bytes. `row_inverse`: 1 / row scale, of kFp8Token.
__device__ inline uint2 to_operand(const Operand& operand, float4 v, float row_inverse) {
  if (operand.kind == OperandKind::kBf16) {
    return {ptx::floats_to_bf16x2(v.x, v.y), ptx::floats_to_bf16x2(v.z, v.w)};
  }
  const float s = operand.kind == OperandKind::kFp8Token ? row_inverse : operand.inverse;
  v = make_float4(v.x * s, v.y * s, v.z * s, v.w * s);
  if (operand.kind == OperandKind::kF16) return {to_f16x2(v.x, v.y), to_f16x2(v.z, v.w)};
  return {to_e4m3_as_f16x2(v.x, v.y), to_e4m3_as_f16x2(v.z, v.w)};
}

// Among the computing warps.
__device__ inline void sync_computing() {
  ptx::sync_threads(1, kThreads);
}

// Sum over a warp, for every lane.
__device__ inline float warp_sum(float value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, distance);
  }
  return value;
}

// Sum over the computing threads of each of `values`, in an order that depends on nothing;
// `scratch` holds kWarps * kCount floats. Every thread gets the sums. All of them call.
template <int kCount>
__device__ inline void block_sum(float (&values)[kCount], float* scratch) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) values[i] = warp_sum(values[i]);
  const int warp = threadIdx.x / 32;
  if (threadIdx.x % 32 == 0) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) scratch[warp * kCount + i] = values[i];
  }
  sync_computing();
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    values[i] = scratch[threadIdx.x % kWarps * kCount + i];
#pragma unroll
    for (int distance = kWarps / 2; distance > 0; distance /= 2) {
      values[i] += __shfl_xor_sync(0xffffffffu, values[i], distance);
    }
  }
  sync_computing();
}

// The same sums, bit for bit, with one barrier: `scratch` must not be used again before another.
template <int kCount>
__device__ inline void block_sum_once(float (&values)[kCount], float* scratch) {
  static_assert(kWarps == 16);
#pragma unroll
  for (int i = 0; i < kCount; ++i) values[i] = warp_sum(values[i]);
  if (threadIdx.x % 32 == 0) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) scratch[i * kWarps + threadIdx.x / 32] = values[i];
  }
  sync_computing();
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const auto* of_warps = reinterpret_cast<const float4*>(scratch + i * kWarps);
    const float4 a = of_warps[0], b = of_warps[1], c = of_warps[2], d = of_warps[3];
    // The order of the butterfly above: 8 apart, then 4, 2, 1.
    const float4 e = {a.x + c.x, a.y + c.y, a.z + c.z, a.w + c.w};
    const float4 f = {b.x + d.x, b.y + d.y, b.z + d.z, b.w + d.w};
    const float4 g = {e.x + f.x, e.y + f.y, e.z + f.z, e.w + f.w};
    values[i] = (g.x + g.z) + (g.y + g.w);
  }
}

// Sums over a warp of several values, each in the order of warp_sum(): lane l gets that of value
// l / (32 / kCount).
template <int kCount>
__device__ inline float warp_sums(const float (&values)[kCount]) {
  static_assert(kCount == 1 || kCount == 2 || kCount == 4 || kCount == 8);
  float v[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) v[i] = values[i];
  const auto lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int distance = 16, left = kCount / 2; distance > 0; distance /= 2, left /= 2) {
    if (left == 0) {
      v[0] += __shfl_xor_sync(0xffffffffu, v[0], distance);
      continue;
    }
    // The upper lanes keep the upper half of the values and hand over the lower one.
    const bool upper = (lane & distance) != 0;
#pragma unroll
    for (int i = 0; i < left; ++i) {
      const float given = upper ? v[i] : v[i + left];
      const float kept = upper ? v[i + left] : v[i];
      v[i] = kept + __shfl_xor_sync(0xffffffffu, given, distance);
    }
  }
  return v[0];
}

// Of up to two values of every warp in `scratch` (16 of each) the sum of the value that this half
// of the warp has, in the order of block_sum().
__device__ inline float sum_of_warps(const float* scratch) {
  static_assert(kWarps == 16);
  float sum = scratch[threadIdx.x % kWarps];
#pragma unroll
  for (int distance = kWarps / 2; distance > 0; distance /= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, distance);
  }
  return sum;
}

__device__ inline float block_max(float value, float* scratch) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, distance));
  }
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
  sync_computing();
  for (int w = 0; w < kWarps; ++w) value = fmaxf(value, scratch[w]);
  sync_computing();
  return value;
}

__device__ inline float largest_magnitude(float4 v) {
  return fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
}

// Scale of an FP8 row of largest magnitude `amax`.
__device__ inline float fp8_row_scale(float amax) {
  return amax == 0.0F ? 1.0F : fmaxf(amax / 448.0F, 1.17549435e-38F);
}

// Not inlined: few checkpoints want it, and the others' kernels should be small.
__device__ __noinline__ inline float keep_row_scale(float* to, float amax, float* scratch) {
  const float scale = fp8_row_scale(block_max(amax, scratch));
  if (threadIdx.x == 0) *to = scale;
  return 1.0F / scale;
}

// The operands of one block: rows of each of `count` operands.
struct OperandSpace {
  uint8_t* data = nullptr;      // [count][rows][stride]
  float* row_scales = nullptr;  // [kMaxRows], of kFp8Token
  float* scratch = nullptr;     // scratch_floats()
  const Operand* operands = nullptr;
  int count = 0;
  int rows = 0;  // rows there is space for
  int stride = 0;

  __device__ uint8_t* row(int operand, int row) const {
    return data + (static_cast<size_t>(operand) * rows + row) * stride;
  }
  // Columns 4 * vector .. + 3 of a row of every operand.
  __device__ void store(int row_index, int vector, float4 v, float row_inverse) const {
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      *reinterpret_cast<uint2*>(row(i, row_index) + vector * 8) =
          to_operand(operands[i], v, row_inverse);
    }
  }
  // Zeroes the columns that pad the last unit: `vectors` vectors of 4 columns are real.
  __device__ void pad(int row_count, int vectors, int units) const {
    const int padding = units * (kUnitColumns / 4) - vectors;
    for (int i = threadIdx.x; i < padding * row_count * count; i += kThreads) {
      const int vector = vectors + i % padding;
      const int line = i / padding;
      *reinterpret_cast<uint2*>(row(line / row_count, line % row_count) + vector * 8) = {0, 0};
    }
  }
  // Of kFp8Token: keeps the scale of a row whose largest magnitude is the largest `amax` of the
  // computing threads, which all call. Its inverse.
  __device__ float set_row_scale(int row_index, float amax) const {
    return keep_row_scale(row_scales + row_index, amax, scratch);
  }
  __device__ bool per_token() const {
    bool any = false;
    for (int i = 0; i < count; ++i) any |= operands[i].kind == OperandKind::kFp8Token;
    return any;
  }
};

// The operands of all rows, with all that storing needs in registers before the rows are there. Not
// for kFp8Token.
struct RowOperands {
  OperandKind kind[kMaxOperands];
  float inverse[kMaxOperands];
  uint32_t at[kMaxOperands];  // shared addresses of row 0
  int count;
  int stride;

  __device__ explicit RowOperands(const OperandSpace& space)
      : count(space.count), stride(space.stride) {
#pragma unroll
    for (int i = 0; i < kMaxOperands; ++i) {
      if (i >= count) break;
      kind[i] = space.operands[i].kind;
      inverse[i] = space.operands[i].inverse;
      at[i] = ptx::shared_address(space.row(i, 0));
    }
  }
  // Columns 4 * vector .. + 3.
  __device__ void store(int row, int vector, float4 v) const {
#pragma unroll
    for (int i = 0; i < kMaxOperands; ++i) {
      if (i >= count) break;
      ptx::store_shared_8(at[i] + row * stride + vector * 8,
                          to_operand({kind[i], 0.0F, inverse[i]}, v, 0.0F));
    }
  }
};

}  // namespace levin::runtime::cuda
