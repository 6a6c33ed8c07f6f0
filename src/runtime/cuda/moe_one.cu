// The mixture-of-experts layer for one token (moe.h). Everything before the input is there takes
// its time from the phase before, and everything that runs once is fetched for that: so this is as
// short as can be, and what few models want is not inlined.
#include "runtime/cuda/moe_parts.cuh"

namespace levin::runtime::cuda {
namespace {

// Barriers behind the announcement: of the list of items, then of each input.
__device__ inline uint32_t list_barrier(const Announcement& known) {
  return known.barrier() + 24;
}
__device__ inline uint32_t input_barrier(const Announcement& known, int part) {
  return known.barrier() + 32 + 8 * part;
}

// A block's list in shared memory.
struct List {
  BlockItems* head;

  __device__ explicit List(const SharedLayout& layout)
      : head(reinterpret_cast<BlockItems*>(shared_memory + layout.items)) {}
  __device__ Item* items() const { return reinterpret_cast<Item*>(head + 1); }
  // Makes the barriers, also those of `inputs` inputs, and has the list copied. By the block's
  // first ptx::kCopyingLanes threads.
  __device__ void open(const ItemLists& lists, const Announcement& known, int inputs) const {
    const uint32_t barrier = list_barrier(known);
    if (ptx::kBulkCopies || threadIdx.x == 0) {
      ptx::barrier_init(known.barrier(), 1);
      ptx::barrier_init(barrier, ptx::kCopyingLanes);
#pragma unroll 1
      for (int part = 0; part < inputs; ++part) {
        ptx::barrier_init(input_barrier(known, part), ptx::kCopyingLanes);
      }
      ptx::fence_barriers();
    }
    if constexpr (!ptx::kBulkCopies) __syncwarp();
    ptx::expect_bytes(barrier, lists.bytes);
    ptx::warp_copy(ptx::shared_address(head),
                   lists.data + static_cast<int64_t>(blockIdx.x) * lists.bytes, lists.bytes,
                   barrier);
  }
  // When it is there: how much one copy brings. By all threads; ends with a barrier.
  __device__ void set_copies(int shared_units, int routed_units) const {
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < head->all_items; i += kThreads) {
      Item& item = items()[i];
      const int units = item.part > 0 ? routed_units : shared_units;
      item.chunk_units = static_cast<uint16_t>(units);
      item.chunk_bytes = units * item.unit_bytes;
    }
    __syncthreads();
  }
  // When the routing is known: whose the experts' items are. By the scouts.
  __device__ void set_experts(const Routing& routing, int64_t stride, const Scouts& scouts) const {
#pragma unroll 1
    for (int i = head->shared_items + scouts.thread(); i < head->all_items; i += scouts.threads()) {
      Item& item = items()[i];
      item.data += routing.distinct()[item.part - 1] * stride;
    }
  }
};

// The input of inputs that have a scale of their own, and the router's logit. Not inlined: few
// checkpoints want it.
__device__ __noinline__ void normalize_with_scale(const MoeUp& p) {
  NormWeights weights;
  weights.load(p.input.weight, p.width);
  RouterTap tap = make_tap(p, static_cast<int>(blockIdx.x));
  tap.epoch = epoch_of(p.router);
  tap.unpack();
  normalize_input<1, true>(p.input, *p.pass, 1, p.width, p.eps, weights, normed_space(p),
                           {p.normed, p.width, false}, tap);
}

}  // namespace

template <FormatSet kFormats>
__global__ void __launch_bounds__(kThreads, 2) moe_up_one(const __grid_constant__ MoeUp p) {
  p.trace.stamp(Trace::kStart);
  const Announcement known = {shared_memory + p.barrier};
  const Routing routing = {shared_memory + p.routing_offset, p.router.chosen};
  const List list(p.shared);
  if (threadIdx.x < ptx::kCopyingLanes) list.open(p.items, known, 0);
  const int tokens_now = p.pass->rows;
  NormWeights weights;
  weights.load(p.input.weight, p.width);
  RouterTap tap = make_tap(p, static_cast<int>(blockIdx.x));
  const OperandSpace space = normed_space(p);
  __syncthreads();
  ptx::barrier_wait(list_barrier(known), 0);
  list.set_copies(p.shared_part.chunk_units, p.experts.chunk_units);
  if (tokens_now == 0) return ptx::wait_for_previous();
  const Scouts scouts(1);
  const int shared_items = list.head->shared_items;
  Shift shift(stream_of(p.shared, list.items()), known, scouts);
  shift.begin(shared_items, p.shared);
  const RowOperands operands(space);
  const float inverse_width = 1.0F / static_cast<float>(p.width);
  const bool per_token = space.per_token();
  space.pad(1, p.width / 4, p.units);
  ptx::wait_for_previous();
  p.trace.stamp(Trace::kReady);
  tap.epoch = epoch_of(p.router);
  if (per_token) {
    normalize_with_scale(p);
  } else {
    normalize_one<true>(p.input.x, p.width, inverse_width, p.eps, weights, operands, space.scratch,
                        {p.normed, p.width, false}, 0, tap);
  }
  if (p.router.experts > static_cast<int>(gridDim.x)) {
    sync_computing();
    more_logits(p, 1, tap.epoch, space.scratch);
  }
  if (p.latent != nullptr) {
    sync_computing();  // the norm's sums have been read
    load_latent(p, 1);
  }
  sync_computing();
  if (threadIdx.x == 0) p.trace.mark(Trace::kInputs);

  const PackedMatrix& m = p.experts.first;
  const ExpertFactors factors(p);
  if (scouts.include_me()) {
    route(p.router, tap.epoch, 0, 1, routing, scouts);
    list.set_experts(routing, p.experts.stride, scouts);
    known.make(scouts, list.head->all_items);
    if (scouts.thread() == 0) p.trace.mark(Trace::kRouting);
    // Not earlier: the next phase takes the router's logits before it waits for this one, and must
    // not find the number of the pass before; nor should its weights delay the logits.
    ptx::launch_dependents();
    factors.load(p, routing, scouts);
    if (blockIdx.x == 0 && scouts.thread() == 0) atomicAdd(p.router.touched, p.router.chosen);
    if (p.observed_experts != nullptr && blockIdx.x == 0) {
      for (int i = scouts.thread(); i < p.router.chosen; i += scouts.threads()) {
        p.observed_experts[i] = routing.expert()[i];
      }
    }
  }
  const Partials partials = partials_of(p.shared);
  const uint8_t* shared_row = space.row(p.shared_part.operand, 0);
  const uint8_t* routed_row = routed_space(p).row(routed_operand(p), 0);
  if (p.shared.late) shift.refill();
  shift.work([&](int i) {
    const Item& item = list.items()[i];
    const uint32_t activations[1] = {ptx::shared_address(item.part > 0 ? routed_row : shared_row) +
                                     lane_offset(item.first_unit)};
    TileSums<1> sums;
    multiply_item<kFormats>(sums, item, shift.stream, activations, [&] { shift.replace(); });
    partials.store(i, sums);
  });
  if (threadIdx.x == 0) p.trace.mark(Trace::kOwnItems);
  sync_computing();
  if (threadIdx.x == 0) p.trace.mark(Trace::kAllItems);

  const PartItems mine = p.shared_parts > 0 ? items_of_part(p.shared_part, 0) : PartItems{};
  const int thread = static_cast<int>(threadIdx.x);
#pragma unroll 1
  for (int i = thread; i < mine.tiles * kTileRows; i += kThreads) {
    const int row = mine.first_tile * kTileRows + i;
    const int of_tile = p.shared_part.matrix.segments.value;
    if (row >= p.shared_part.matrix.rows) break;
    const float sum = partials.sum(i / kTileRows * of_tile, of_tile, i % kTileRows, 0);
    store_activation(p.shared_out, 0, row, p.shared_out.inverse,
                     scaled(p.shared_part, space, row, 0, sum), p.observed_shared,
                     p.shared_part.matrix.rows);
  }
  const OperandSpace routed_in = routed_space(p);
  const float scale = routed_in.operands[routed_operand(p)].kind == OperandKind::kFp8Token
                          ? routed_in.row_scales[0]
                          : 1.0F;
  const int segments = m.segments.value;
  // From the last thread on: the first ones have had the shared expert's rows.
#pragma unroll 1
  for (int i = kThreads - 1 - thread; i < list.head->tiles * kTileRows; i += kThreads) {
    const int tile = list.head->first_tile + i / kTileRows;
    const int d = p.tiles.divide(tile);
    const int row = (tile - d * m.tiles) * kTileRows + i % kTileRows;
    finish_routed(
        p, routing, factors, d, row, 0, scale,
        partials.sum(shared_items + i / kTileRows * segments, segments, i % kTileRows, 0));
  }
  p.trace.stamp(Trace::kEnd);
}

namespace {

// The token's inputs: the shared expert's, then those of each expert in the order of the sums, each
// with a barrier. By one warp.
__device__ inline void fetch_inputs_of_one(const MoeDown& p, const Routing& routing,
                                           const Announcement& known) {
  ptx::fence_stores_before_bulk_copies();
  const int experts = p.routed ? p.router.chosen : 0;
  // A lane for each input or, where it takes all of them, one input after the other.
  constexpr int kAtOnce = 32 / ptx::kCopyingLanes;
#pragma unroll 1
  for (int part = static_cast<int>(threadIdx.x % kAtOnce); part <= experts; part += kAtOnce) {
    const bool shared = part == 0;
    if (shared && p.shared_parts == 0) continue;
    const int units = shared ? p.shared_part.matrix.units : p.experts.first.units;
    const int bytes = units * 2 * kUnitColumns;
    const uint8_t* from =
        shared ? p.shared_in.row(p.first_token)
               : p.routed_in.row(p.first_token * p.router.chosen + routing.choice(part - 1, 0));
    const int to = shared ? p.shared_rows : p.routed_rows + (part - 1) * operand_stride(units);
    ptx::expect_bytes(input_barrier(known, part), bytes);
    ptx::warp_copy(ptx::shared_address(shared_memory) + to, from, bytes,
                   input_barrier(known, part));
  }
}

}  // namespace

template <FormatSet kFormats>
__global__ void __launch_bounds__(kThreads, 2) moe_down_one(const __grid_constant__ MoeDown p) {
  p.trace.stamp(Trace::kStart);
  const Announcement known = {shared_memory + p.barrier};
  const Routing routing = {shared_memory + p.routing_offset, p.router.chosen};
  const List list(p.shared);
  const int experts = p.routed ? p.router.chosen : 0;
  if (threadIdx.x < ptx::kCopyingLanes) list.open(p.items, known, 1 + experts);
  const int tokens_now = p.pass->rows - p.first_token;
  __syncthreads();
  ptx::launch_dependents();
  ptx::barrier_wait(list_barrier(known), 0);
  list.set_copies(p.shared_part.chunk_units, p.experts.chunk_units);
  if (tokens_now <= 0) return ptx::wait_for_previous();
  const Scouts scouts(1);
  Shift shift(stream_of(p.shared, list.items()), known, scouts);
  shift.begin(list.head->shared_items, p.shared);
  if (scouts.include_me()) {
    if (p.routed) {
      route(p.router, epoch_of(p.router), p.first_token, 1, routing, scouts);
      list.set_experts(routing, p.experts.stride, scouts);
      auto* factors = reinterpret_cast<float*>(shared_memory + p.factors);
      for (int d = scouts.thread(); d < experts; d += scouts.threads()) {
        factors[d * kDownRows] =
            routing.weight()[routing.choice(d, 0)] * p.experts.factor[routing.distinct()[d]];
      }
    }
    known.make(scouts, list.head->all_items);
    if (scouts.thread() == 0) p.trace.mark(Trace::kRouting);
  }
  ptx::barrier_wait(known.barrier(), 0);
  shift.refill();
  ptx::wait_for_previous();
  p.trace.stamp(Trace::kReady);
  if (threadIdx.x < 32) fetch_inputs_of_one(p, routing, known);
  if (threadIdx.x == 0) p.trace.mark(Trace::kInputs);
  const Partials partials = partials_of(p.shared);
  const PackedMatrix& m = p.experts.first;
  shift.work([&](int i) {
    const Item& item = list.items()[i];
    const int part = item.part;
    ptx::barrier_wait(input_barrier(known, part), 0);
    const int row =
        part == 0 ? p.shared_rows : p.routed_rows + (part - 1) * operand_stride(m.units);
    const uint32_t activations[1] = {ptx::shared_address(shared_memory) + row +
                                     lane_offset(item.first_unit)};
    TileSums<1> sums;
    multiply_item<kFormats>(sums, item, shift.stream, activations, [&] { shift.replace(); });
    partials.store(i, sums);
  });
  if (threadIdx.x == 0) p.trace.mark(Trace::kOwnItems);
  sync_computing();
  if (threadIdx.x == 0) p.trace.mark(Trace::kAllItems);

  write_down<true>(p, routing, partials, list.head->shared_items, list.head->first_tile,
                   list.head->tiles, experts, 1);
  p.trace.stamp(Trace::kEnd);
}

Kernel<MoeUp> moe_up_one_kernel(FormatSet formats) {
  return kernel_of_experts(
      formats, [&]<FormatSet kFormats>() -> Kernel<MoeUp> { return moe_up_one<kFormats>; });
}
Kernel<MoeDown> moe_down_one_kernel(FormatSet formats) {
  return kernel_of_experts(
      formats, [&]<FormatSet kFormats>() -> Kernel<MoeDown> { return moe_down_one<kFormats>; });
}

}  // namespace levin::runtime::cuda
