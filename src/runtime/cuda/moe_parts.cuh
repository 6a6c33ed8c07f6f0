// What the kernels of the mixture-of-experts layer share (moe.h): the router's logits, the message
// that the routing is known, inputs and activations.
#pragma once

#include "runtime/cuda/block.cuh"
#include "runtime/cuda/moe.h"
#include "runtime/cuda/normalize.cuh"

namespace levin::runtime::cuda {

// As in RouterTap::gate.
__device__ inline float4 gate_vector(const MoeUp& p, int expert, int vector) {
  const int64_t at = static_cast<int64_t>(expert) * p.width + vector * 4;
  if (!p.gate.bf16) {
    return __ldg(reinterpret_cast<const float4*>(static_cast<const float*>(p.gate.weights) + at));
  }
  const float2 bits =
      __ldg(reinterpret_cast<const float2*>(static_cast<const uint16_t*>(p.gate.weights) + at));
  return make_float4(bits.x, bits.y, 0, 0);
}

__device__ inline RouterTap make_tap(const MoeUp& p, int expert) {
  RouterTap tap;
  tap.words = p.router.words;
  tap.experts = p.router.experts;
  tap.expert = expert;
  tap.bf16 = p.gate.bf16;
#pragma unroll
  for (int i = 0; i < kMaxVectors; ++i) {
    const int vector = threadIdx.x + i * kThreads;
    tap.gate[i] = make_float4(0, 0, 0, 0);
    if (expert < tap.experts && vector * 4 < p.width) tap.gate[i] = gate_vector(p, expert, vector);
  }
  return tap;
}

// The logits of experts beyond the number of blocks.
__device__ __noinline__ inline void more_logits(const MoeUp& p, int tokens, uint32_t epoch,
                                                float* scratch) {
  for (int expert = static_cast<int>(blockIdx.x + gridDim.x); expert < p.router.experts;
       expert += static_cast<int>(gridDim.x)) {
    for (int token = 0; token < tokens; ++token) {
      float sums[2] = {};  // squares and products
      const auto* x =
          reinterpret_cast<const float4*>(p.input.x + static_cast<int64_t>(token) * p.width);
      for (int vector = threadIdx.x; vector * 4 < p.width; vector += kThreads) {
        const float4 v = __ldcg(x + vector);
        const float4 w = __ldg(reinterpret_cast<const float4*>(p.input.weight) + vector);
        const float4 bits = gate_vector(p, expert, vector);
        const float4 g = p.gate.bf16 ? RouterTap::unpacked(bits) : bits;
        sums[0] += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
        sums[1] += v.x * w.x * g.x + v.y * w.y * g.y + v.z * w.z * g.z + v.w * w.w * g.w;
      }
      block_sum(sums, scratch);
      if (threadIdx.x == 0) {
        const float scale = rsqrtf(sums[0] * (1.0F / static_cast<float>(p.width)) + p.eps);
        ptx::store_tagged(p.router.words + token * p.router.experts + expert,
                          __float_as_uint(sums[1] * scale), epoch);
      }
    }
  }
}

// What the scouts tell the other warps: an mbarrier, then how many items there are in all.
struct Announcement {
  uint8_t* at;
  __device__ uint32_t barrier() const { return ptx::shared_address(at); }
  __device__ int& items() const { return *reinterpret_cast<int*>(at + 8); }
  // By all scouts after their work.
  __device__ void make(const Scouts& scouts, int count) const {
    scouts.sync();
    if (scouts.thread() != 0) return;
    items() = count;
    ptx::barrier_arrive(barrier());
  }
};

// A warp's way through the items: those that do not depend on the routing, by the warps that are no
// scouts; then the others, from the last warp on, since the first ones have had more to do.
struct Shift {
  WarpStream stream;
  const Announcement& known;
  int step;
  int free_items = 0;  // that do not depend on the routing
  bool routed = false;
  int end = 0;

  __device__ Shift(const WarpStream& s, const Announcement& a, const Scouts& scouts)
      : stream(s), known(a), step(scouts.others()) {}
  __device__ static int warp() { return static_cast<int>(threadIdx.x / 32); }
  // When the list has its first `count` items.
  __device__ void begin(int count, const SharedLayout& shared) {
    free_items = count;
    if (warp() < step) stream.read_gently(warp(), count, step, shared.ahead, shared.late);
  }
  __device__ int first_routed() const { return free_items + kWarps - 1 - warp(); }
  __device__ void start_routed() {
    routed = true;
    end = known.items();
    stream.read(first_routed(), end, kWarps);
  }
  __device__ void refill() {
    if (!stream.exhausted()) {
      stream.fill();
    } else if (!routed && ptx::barrier_passed(known.barrier(), 0)) {
      start_routed();
    }
  }
  // WarpStream::replace(), from the routed items on when they are known.
  __device__ void replace() {
    if (!stream.replace() && !routed && ptx::barrier_passed(known.barrier(), 0)) start_routed();
  }
  // Calls multiply(item) for all items of the warp.
  template <typename Multiply>
  __device__ void work(Multiply&& multiply) {
    int i = warp() < step ? warp() : free_items;
    int stop = free_items;
    bool last = false;
#pragma unroll 1
    while (true) {
      if (i >= stop) {
        if (last) return;
        last = true;
        if (!routed) {
          ptx::barrier_wait(known.barrier(), 0);
          start_routed();
        }
        i = first_routed();
        stop = end;
        step = kWarps;
        continue;
      }
      multiply(i);
      i += step;
    }
  }
};

// relu(y)^2 as the down projection wants it; `inverse` is that of its operand.
__device__ inline void store_activation(const Activations& to, int row, int column, float inverse,
                                        float y, float* observed, int width) {
  const float positive = fmaxf(y, 0.0F);
  const float x = positive * positive;
  uint32_t bits;
  if (to.kind == OperandKind::kBf16) {
    bits = ptx::floats_to_bf16x2(x, 0.0F);
  } else if (to.kind == OperandKind::kF16) {
    bits = to_f16x2(x * inverse, 0.0F);
  } else {
    bits = to_e4m3_as_f16x2(x * inverse, 0.0F);
  }
  reinterpret_cast<uint16_t*>(to.row(row))[column] = static_cast<uint16_t>(bits);
  if (observed != nullptr) observed[static_cast<int64_t>(row) * width + column] = x;
}

__device__ inline OperandSpace normed_space(const MoeUp& p) {
  return operand_space(p.shared, p.operands, p.operand_count, p.units);
}
__device__ inline OperandSpace latent_space(const MoeUp& p) {
  OperandSpace latent = normed_space(p);
  latent.data = shared_memory + p.latent_offset;
  latent.operands = &p.latent_operand;
  latent.count = 1;
  latent.row_scales += kMaxRows;
  latent.stride = operand_stride(p.latent_units);
  return latent;
}
// What the experts' activations are stored as, and the scales of their rows.
__device__ inline OperandSpace routed_space(const MoeUp& p) {
  return p.latent != nullptr ? latent_space(p) : normed_space(p);
}
__device__ inline int routed_operand(const MoeUp& p) {
  return p.latent != nullptr ? 0 : p.routed_operand;
}

// The latent inputs of the experts into operands. Not inlined, like all that few models want: the
// others' kernels should be small. Nor do such functions take what would have to lie in memory for
// them.
__device__ __noinline__ inline void load_latent(const MoeUp& p, int rows) {
  const OperandSpace latent = latent_space(p);
  const int vectors = p.latent_width / 4;
  for (int token = 0; token < rows; ++token) {
    const auto* x =
        reinterpret_cast<const float4*>(p.latent + static_cast<int64_t>(token) * p.latent_width);
    float row_inverse = 1.0F;
    if (latent.per_token()) {
      float amax = 0.0F;
      for (int i = threadIdx.x; i < vectors; i += kThreads) {
        amax = fmaxf(amax, largest_magnitude(__ldcg(x + i)));
      }
      row_inverse = latent.set_row_scale(token, amax);
    }
#pragma unroll 1
    for (int index = threadIdx.x; index < vectors; index += kThreads) {
      latent.store(token, index, __ldcg(x + index), row_inverse);
    }
  }
  latent.pad(rows, vectors, p.latent_units);
}

// What the sums and the activations of each distinct expert are multiplied by: from global memory,
// where nobody should have to look for them at the end.
struct ExpertFactors {
  float2* of;  // [distinct experts]

  __device__ explicit ExpertFactors(const MoeUp& p)
      : of(reinterpret_cast<float2*>(shared_memory + p.factors)) {}
  // By the scouts.
  __device__ void load(const MoeUp& p, const Routing& routing, const Scouts& scouts) const {
    const float* inverses = p.routed_out.expert_inverses;
#pragma unroll 1
    for (int d = scouts.thread(); d < routing.count(); d += scouts.threads()) {
      const int expert = routing.distinct()[d];
      of[d] = {__ldg(p.experts.factor + expert),
               inverses != nullptr ? __ldg(inverses + expert) : p.routed_out.inverse};
    }
  }
};

// What becomes of a sum of row `row` of the distinct expert `d`, for one token: its activation, if
// the token goes there. `scale`: of the token's input.
__device__ inline void finish_routed(const MoeUp& p, const Routing& routing,
                                     const ExpertFactors& factors, int d, int row, int token,
                                     float scale, float sum) {
  const PackedMatrix& m = p.experts.first;
  const int choice = routing.choice(d, token);
  if (choice < 0 || row >= m.rows) return;
  const int64_t at = static_cast<int64_t>(routing.distinct()[d]) * p.experts.row_stride + row;
  const float2 factor = factors.of[d];
  float y = sum * factor.x * scale;
  if (m.row_scale != nullptr) y *= m.row_scale[at];
  if (m.bias != nullptr) y += m.bias[at];
  store_activation(p.routed_out, token * p.router.chosen + choice, row, factor.y, y,
                   p.observed_routed, m.rows);
}

// Biases of the experts that a token goes to, weighted.
__device__ __noinline__ inline float down_bias(const MoeDown& p, Routing routing, int row,
                                               int token) {
  float sum = 0.0F;
  for (int d = 0; d < routing.count(); ++d) {
    const int choice = routing.choice(d, token);
    if (choice < 0) continue;
    const int64_t at = static_cast<int64_t>(routing.distinct()[d]) * p.experts.row_stride + row;
    sum += routing.weight()[token * p.router.chosen + choice] * p.experts.first.bias[at];
  }
  return sum;
}

// What an expert (or, before the first, the shared one) adds to y of one row and token.
__device__ inline float down_part(const MoeDown& p, const Routing& routing,
                                  const Partials& partials, int free_items, int tiles, int part,
                                  int tile, int in_tile, int row, int token) {
  if (part == 0) {
    if (p.shared_parts == 0) return 0.0F;
    const PackedMatrix& m = p.shared_part.matrix;
    const int segments = m.segments.value;
    float y = partials.sum(tile * segments, segments, in_tile, token) * p.shared_part.factor;
    if (m.row_scale != nullptr) y *= m.row_scale[row];
    if (m.bias != nullptr) y += m.bias[row];
    return y;
  }
  const int d = part - 1;
  float factor = reinterpret_cast<const float*>(shared_memory + p.factors)[d * kDownRows + token];
  // Of experts that the token does not go to the sum means nothing, and may be no number.
  if (factor == 0.0F) return 0.0F;
  const int segments = p.experts.first.segments.value;
  const float sum =
      partials.sum(free_items + (d * tiles + tile) * segments, segments, in_tile, token);
  const float* scales = p.experts.first.row_scale;
  if (scales != nullptr) {
    factor *= scales[static_cast<int64_t>(routing.distinct()[d]) * p.experts.row_stride + row];
  }
  return factor * sum;
}

// The end of a down projection: what each part adds, then their sum in order, the shared expert's
// before the experts' in ascending order. By all threads, after their products.
template <bool kOne>
__device__ inline void write_down(const MoeDown& p, const Routing& routing,
                                  const Partials& partials, int free_items, int first_tile,
                                  int tiles, int experts, int tokens) {
  const int rows_of_block = min(tiles * kTileRows, p.rows - first_tile * kTileRows);
  const int parts = 1 + experts;
  const int of_token = rows_of_block * parts;
  auto* added = reinterpret_cast<float*>(shared_memory);  // the rings are not in use any more
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < tokens * of_token; i += kThreads) {
    const int token = kOne ? 0 : i / of_token;
    const int in_token = i - token * of_token;
    const int part = in_token / rows_of_block;
    const int row = in_token - part * rows_of_block;
    added[i] = down_part(p, routing, partials, free_items, tiles, part, row / kTileRows,
                         row % kTileRows, first_tile * kTileRows + row, token);
  }
  sync_computing();
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < tokens * rows_of_block; i += kThreads) {
    const int token = kOne ? 0 : i / rows_of_block;
    const int row_of_block = i - token * rows_of_block;
    const int row = first_tile * kTileRows + row_of_block;
    const float* from = added + token * of_token + row_of_block;
    float y = from[0];
#pragma unroll 4
    for (int part = 1; part < parts; ++part) y += from[part * rows_of_block];
    if (p.routed && p.experts.first.bias != nullptr) y += down_bias(p, routing, row, token);
    float* out = p.out + static_cast<int64_t>(p.first_token + token) * p.out_stride;
    if (p.add) {
      atomicAdd(out + row, y);  // as OutputKind::kAdd
    } else {
      out[row] = y;
    }
  }
}

// One format, or another for the shared expert than for the others.
template <typename Make>
auto kernel_of_experts(FormatSet formats, Make&& make) {
  constexpr FormatSet kBf16 = set_of(UnitFormat::kBf16);
  constexpr FormatSet kFp8 = set_of(UnitFormat::kFp8);
  constexpr FormatSet kNvfp4 = set_of(UnitFormat::kNvfp4);
  constexpr FormatSet kInt4 = set_of(UnitFormat::kInt4);
  return kernel_for<kBf16, kFp8, kNvfp4, kInt4, kFp8 | kNvfp4, kBf16 | kNvfp4>(formats, make);
}

}  // namespace levin::runtime::cuda
