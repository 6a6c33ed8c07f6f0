// The mixture-of-experts layer (moe.h).
#include "runtime/cuda/block.cuh"
#include "runtime/cuda/moe.h"
#include "runtime/cuda/normalize.cuh"

namespace levin::runtime::cuda {
namespace {

__device__ inline float4 gate_vector(const MoeUp& p, int expert, int vector) {
  const int64_t at = static_cast<int64_t>(expert) * p.width + vector * 4;
  if (!p.gate.bf16) {
    return __ldg(reinterpret_cast<const float4*>(static_cast<const float*>(p.gate.weights) + at));
  }
  const uint2 bits =
      __ldg(reinterpret_cast<const uint2*>(static_cast<const uint16_t*>(p.gate.weights) + at));
  return make_float4(__uint_as_float(bits.x << 16), __uint_as_float(bits.x & 0xffff0000u),
                     __uint_as_float(bits.y << 16), __uint_as_float(bits.y & 0xffff0000u));
}

__device__ inline RouterTap make_tap(const MoeUp& p, int expert) {
  RouterTap tap;
  tap.words = p.router.words;
  tap.experts = p.router.experts;
  tap.expert = expert;
#pragma unroll
  for (int i = 0; i < kMaxVectors; ++i) {
    const int vector = threadIdx.x + i * kThreads;
    tap.gate[i] = make_float4(0, 0, 0, 0);
    if (expert < tap.experts && vector * 4 < p.width) tap.gate[i] = gate_vector(p, expert, vector);
  }
  return tap;
}

// The logits of experts beyond the number of blocks.
__device__ __noinline__ void more_logits(const MoeUp& p, int tokens, uint32_t epoch,
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
        const float4 g = gate_vector(p, expert, vector);
        sums[0] += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
        sums[1] += v.x * w.x * g.x + v.y * w.y * g.y + v.z * w.z * g.z + v.w * w.w * g.w;
      }
      block_sum(sums, scratch);
      if (threadIdx.x == 0) {
        const float scale = rsqrtf(sums[0] / static_cast<float>(p.width) + p.eps);
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
  int free_items;  // that do not depend on the routing
  int step;
  bool routed = false;
  int end = 0;

  __device__ Shift(const WarpStream& s, const Announcement& a, int count, const Scouts& scouts)
      : stream(s), known(a), free_items(count), step(scouts.others()) {
    if (!scouts.include_me()) stream.read(warp(), free_items, step);
  }
  __device__ static int warp() { return static_cast<int>(threadIdx.x / 32); }
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
  __device__ void await_routing() {
    if (routed) return;
    ptx::barrier_wait(known.barrier(), 0);
    start_routed();
  }
};

// relu(y)^2 as the down projection wants it.
__device__ inline void store_activation(const Activations& to, int row, int column, int expert,
                                        float y, float* observed, int width) {
  const float positive = fmaxf(y, 0.0F);
  const float x = positive * positive;
  const float inverse = to.expert_inverses != nullptr ? to.expert_inverses[expert] : to.inverse;
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

__device__ inline OperandSpace latent_space(const MoeUp& p, const OperandSpace& space) {
  OperandSpace latent = space;
  latent.data = shared_memory + p.latent_offset;
  latent.operands = &p.latent_operand;
  latent.count = 1;
  latent.row_scales = space.row_scales + kMaxRows;
  latent.stride = operand_stride(p.latent_units);
  return latent;
}

// The latent inputs of the experts into operands.
__device__ __noinline__ void load_latent(const MoeUp& p, int rows, const OperandSpace& latent) {
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

// The tiles of the distinct experts that are this block's, as items behind the first `before`; how
// many there are then. By the scouts.
__device__ inline int make_up_items(const MoeUp& p, const Routing& routing, const Scouts& scouts,
                                    Item* items, int before) {
  const PackedMatrix& first = p.experts.first;
  const int64_t all = static_cast<int64_t>(routing.count()) * first.tiles;
  const int begin = static_cast<int>(blockIdx.x * all / gridDim.x);
  const int count = static_cast<int>((blockIdx.x + 1) * all / gridDim.x) - begin;
  for (int i = scouts.thread(); i < count; i += scouts.threads()) {
    const int d = (begin + i) / first.tiles;
    Item item = item_of(first, (begin + i) % first.tiles, 0, 1 + d, p.shared.slot_bytes);
    item.data += routing.distinct()[d] * p.experts.stride;
    items[before + i] = item;
  }
  return before + count;
}

}  // namespace

template <int kTokenGroups>
__global__ void __launch_bounds__(kThreads, 2) moe_up(const __grid_constant__ MoeUp p) {
  p.trace.stamp(0);
  const Announcement known = {shared_memory + p.barrier};
  const Routing routing = {shared_memory + p.routing_offset, p.shared.rows * p.router.chosen};
  Item* items = items_of(p.shared);
  const int free_items = make_items(&p.shared_part, p.shared_parts, p.shared.slot_bytes, items);
  if (threadIdx.x == 0) ptx::barrier_init(known.barrier(), 1);
  const int tokens = p.pass->rows;
  const Scouts scouts(tokens);
  NormWeights weights;
  weights.load(p.input.weight, p.width);
  RouterTap tap = make_tap(p, static_cast<int>(blockIdx.x));
  const OperandSpace space = operand_space(p.shared, p.operands, p.operand_count, p.units);
  __syncthreads();
  Shift shift(stream_of(p.shared), known, free_items, scouts);
  ptx::wait_for_previous();
  // Not earlier: the next phase takes the router's logits before it waits for this one, and must
  // not find the number of the pass before.
  ptx::launch_dependents();
  p.trace.stamp(1);

  tap.epoch = *static_cast<const volatile uint32_t*>(p.router.epoch);
  normalize_input<true>(p.input, *p.pass, tokens, p.width, p.eps, weights, space,
                        {p.normed, p.width, false}, tap);
  if (p.router.experts > static_cast<int>(gridDim.x))
    more_logits(p, tokens, tap.epoch, space.scratch);
  space.pad(tokens, p.width / 4, p.units);
  const OperandSpace latent = latent_space(p, space);
  if (p.latent != nullptr) load_latent(p, tokens, latent);
  sync_computing();

  if (scouts.include_me()) {
    route(p.router, tokens, routing, scouts);
    if (p.observed_experts != nullptr && blockIdx.x == 0) {
      for (int i = scouts.thread(); i < tokens * p.router.chosen; i += scouts.threads()) {
        p.observed_experts[i] = routing.expert()[i];
      }
    }
    known.make(scouts, make_up_items(p, routing, scouts, items, free_items));
  }

  const Partials partials = partials_of(p.shared);
  const PackedMatrix& shared_matrix = p.shared_part.matrix;
  const auto refill = [&] { shift.refill(); };
  if (!scouts.include_me()) {
#pragma unroll 1
    for (int i = Shift::warp(); i < free_items; i += shift.step) {
      const Item& item = items[i];
      uint32_t activations[kTokenGroups];
      lane_activations(item, tokens, activations,
                       [&](int token) { return space.row(p.shared_part.operand, token); });
      TileSums<kTokenGroups> sums;
      multiply_item(sums, item, shift.stream, activations, refill);
      partials.store(i, sums);
    }
  }
  shift.await_routing();
  const OperandSpace& routed_space = p.latent != nullptr ? latent : space;
  const int routed_operand = p.latent != nullptr ? 0 : p.routed_operand;
  const bool per_token = routed_space.operands[routed_operand].kind == OperandKind::kFp8Token;
  const PackedMatrix& m = p.experts.first;
#pragma unroll 1
  for (int i = shift.first_routed(); i < shift.end; i += kWarps) {
    const Item& item = items[i];
    const int d = item.part - 1;
    const int first_row = item.tile * kTileRows;
    uint32_t activations[kTokenGroups];
    lane_activations(item, tokens, activations,
                     [&](int token) { return routed_space.row(routed_operand, token); });
    TileSums<kTokenGroups> sums;
    multiply_item(sums, item, shift.stream, activations, refill);
    const int expert = routing.distinct()[d];
    const float factor = p.experts.factor[expert];
    for_each_total(sums, [&](int r, int token, float sum) {
      const int row = first_row + r;
      if (token >= tokens || row >= m.rows) return;
      const int choice = routing.choice(d, token);
      if (choice < 0) return;
      const int64_t at = static_cast<int64_t>(expert) * p.experts.row_stride + row;
      float y = sum * (per_token ? factor * routed_space.row_scales[token] : factor);
      if (m.row_scale != nullptr) y *= m.row_scale[at];
      if (m.bias != nullptr) y += m.bias[at];
      store_activation(p.routed_out, token * p.router.chosen + choice, row, expert, y,
                       p.observed_routed, m.rows);
    });
  }
  sync_computing();

  if (p.shared_parts > 0) {
    const PartItems mine = items_of_part(p.shared_part, 0);
    const int rows = mine.tiles * kTileRows;
    for (int i = threadIdx.x; i < rows * tokens; i += kThreads) {
      const int token = i / rows;
      const int row = mine.first_tile * kTileRows + i % rows;
      if (row >= shared_matrix.rows) continue;
      const float sum = partials.sum(i % rows / kTileRows * shared_matrix.segments,
                                     shared_matrix.segments, i % kTileRows, token);
      store_activation(p.shared_out, token, row, 0, scaled(p.shared_part, space, row, token, sum),
                       p.observed_shared, shared_matrix.rows);
    }
  }
  p.trace.stamp(2);
}

namespace {

// All activations of the tokens into shared memory.
__device__ inline void copy_rows(const Activations& from, int first_row, int rows, int units,
                                 int to) {
  const int vectors = units * 2 * kUnitColumns / 16;
#pragma unroll 4
  for (int i = threadIdx.x; i < rows * vectors; i += kThreads) {
    const int row = i / vectors;
    const auto* line = reinterpret_cast<const uint4*>(from.row(first_row + row));
    auto* target = reinterpret_cast<uint4*>(shared_memory + to + row * operand_stride(units));
    target[i % vectors] = __ldcg(line + i % vectors);
  }
}

// This block's tiles of every distinct expert as items, and what each expert's sums count for each
// token: 0, when it does not go there. By the scouts.
__device__ inline int make_down_items(const MoeDown& p, int tokens, const Routing& routing,
                                      const Scouts& scouts, Item* items, int before, int first_tile,
                                      int tiles) {
  for (int i = scouts.thread(); i < routing.count() * tiles; i += scouts.threads()) {
    const int d = i / tiles;
    Item item = item_of(p.experts.first, first_tile + i % tiles, 0, 1 + d, p.shared.slot_bytes);
    item.data += routing.distinct()[d] * p.experts.stride;
    items[before + i] = item;
  }
  auto* factors = reinterpret_cast<float*>(shared_memory + p.factors);
  for (int i = scouts.thread(); i < routing.count() * kDownRows; i += scouts.threads()) {
    const int d = i / kDownRows;
    const int token = i % kDownRows;
    const int choice = token < tokens ? routing.choice(d, token) : -1;
    const float weight = choice < 0 ? 0.0F : routing.weight()[token * p.router.chosen + choice];
    factors[i] = weight * p.experts.factor[routing.distinct()[d]];
  }
  return before + routing.count() * tiles;
}

// y of one row and token: the shared expert's, then the experts' in ascending order.
__device__ inline float down_sum(const MoeDown& p, const Routing& routing, const Partials& partials,
                                 int free_items, int tiles, int tile, int in_tile, int row,
                                 int token) {
  float y = 0.0F;
  if (p.shared_parts > 0) {
    const PackedMatrix& m = p.shared_part.matrix;
    y = partials.sum(tile * m.segments, m.segments, in_tile, token) * p.shared_part.factor;
    if (m.row_scale != nullptr) y *= m.row_scale[row];
    if (m.bias != nullptr) y += m.bias[row];
  }
  if (!p.routed) return y;
  const auto* factors = reinterpret_cast<const float*>(shared_memory + p.factors);
  const PackedMatrix& m = p.experts.first;
  const int count = routing.count();
  for (int d = 0; d < count; ++d) {
    const int choice = routing.choice(d, token);
    if (choice < 0) continue;
    float x =
        partials.at(free_items + d * tiles + tile, in_tile, token) * factors[d * kDownRows + token];
    const int64_t at = static_cast<int64_t>(routing.distinct()[d]) * p.experts.row_stride + row;
    if (m.row_scale != nullptr) x *= m.row_scale[at];
    if (m.bias != nullptr) x += routing.weight()[token * p.router.chosen + choice] * m.bias[at];
    y += x;
  }
  return y;
}

}  // namespace

__global__ void __launch_bounds__(kThreads, 2) moe_down(const __grid_constant__ MoeDown p) {
  p.trace.stamp(0);
  const Announcement known = {shared_memory + p.barrier};
  const Routing routing = {shared_memory + p.routing_offset, kDownRows * p.router.chosen};
  Item* items = items_of(p.shared);
  const int grid = static_cast<int>(gridDim.x);
  const int block = static_cast<int>(blockIdx.x);
  const int first_tile = p.shape.tile_begin(block, grid);
  const int tiles = p.shape.tile_begin(block + 1, grid) - first_tile;
  const int tokens = max(0, min(p.pass->rows - p.first_token, kDownRows));
  const Scouts scouts(tokens);
  const int free_items = make_items(&p.shared_part, p.shared_parts, p.shared.slot_bytes, items);
  if (threadIdx.x == 0) ptx::barrier_init(known.barrier(), 1);
  __syncthreads();
  ptx::launch_dependents();
  if (tokens == 0) {
    ptx::wait_for_previous();
    return;
  }
  Shift shift(stream_of(p.shared), known, free_items, scouts);
  if (scouts.include_me()) {
    int count = free_items;
    if (p.routed) {
      Router router = p.router;
      router.words += p.first_token * router.experts;
      route(router, tokens, routing, scouts);
      count = make_down_items(p, tokens, routing, scouts, items, free_items, first_tile, tiles);
    }
    known.make(scouts, count);
  }
  ptx::barrier_wait(known.barrier(), 0);
  shift.refill();
  ptx::wait_for_previous();
  p.trace.stamp(1);
  if (p.shared_parts > 0) {
    copy_rows(p.shared_in, p.first_token, tokens, p.shared_part.matrix.units, p.shared_rows);
  }
  if (p.routed) {
    copy_rows(p.routed_in, p.first_token * p.router.chosen, tokens * p.router.chosen,
              p.experts.first.units, p.routed_rows);
  }
  sync_computing();

  const Partials partials = partials_of(p.shared);
  const auto refill = [&] { shift.refill(); };
  const auto multiply_one = [&](int i) {
    const Item& item = items[i];
    uint32_t activations[1];
    lane_activations(item, tokens, activations, [&](int token) {
      if (item.part == 0)
        return shared_memory + p.shared_rows + token * operand_stride(p.shared_part.matrix.units);
      // Tokens that do not go to this expert multiply something else; nobody looks at the result.
      const int choice = max(routing.choice(item.part - 1, token), 0);
      return shared_memory + p.routed_rows +
             (token * p.router.chosen + choice) * operand_stride(p.experts.first.units);
    });
    TileSums<1> sums;
    multiply_item(sums, item, shift.stream, activations, refill);
    partials.store(i, sums);
  };
  if (!scouts.include_me()) {
#pragma unroll 1
    for (int i = Shift::warp(); i < free_items; i += shift.step) multiply_one(i);
  }
  shift.await_routing();
#pragma unroll 1
  for (int i = shift.first_routed(); i < shift.end; i += kWarps) multiply_one(i);
  sync_computing();

  const int rows = tiles * kTileRows;
  for (int i = threadIdx.x; i < rows * tokens; i += kThreads) {
    const int token = i / rows;
    const int row = first_tile * kTileRows + i % rows;
    if (row >= p.shape.rows) continue;
    const float y = down_sum(p, routing, partials, free_items, tiles, i % rows / kTileRows,
                             i % kTileRows, row, token);
    float& to = p.out[static_cast<int64_t>(p.first_token + token) * p.out_stride + row];
    to = p.add ? to + y : y;
  }
  p.trace.stamp(2);
}

Kernel<MoeUp> moe_up_kernel(int rows) {
  return rows <= 4 ? moe_up<1> : moe_up<2>;
}
Kernel<MoeDown> moe_down_kernel() {
  return moe_down;
}

}  // namespace levin::runtime::cuda
