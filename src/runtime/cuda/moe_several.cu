// The mixture-of-experts layer for several tokens (moe.h).
#include "runtime/cuda/moe_parts.cuh"

namespace levin::runtime::cuda {
namespace {

// The tiles of the distinct experts that are this block's, as items behind the first `before`; how
// many there are then. By the scouts.
__device__ inline int make_up_items(const MoeUp& p, const Routing& routing, const Scouts& scouts,
                                    Item* items, int before) {
  const PackedMatrix& first = p.experts.first;
  const int all = routing.count() * first.tiles;
  const int begin = p.blocks.divide(static_cast<int>(blockIdx.x) * all);
  const int count = p.blocks.divide(static_cast<int>(blockIdx.x + 1) * all) - begin;
  const int segments = first.segments.value;
#pragma unroll 1
  for (int i = scouts.thread(); i < count * segments; i += scouts.threads()) {
    const int of_block = first.segments.divide(i);
    const int tile = begin + of_block;
    const int d = p.tiles.divide(tile);
    Item item = item_of(first, tile - d * first.tiles, i - of_block * segments, 1 + d,
                        p.experts.chunk_units);
    item.data += routing.distinct()[d] * p.experts.stride;
    items[before + i] = item;
  }
  return before + count * segments;
}

}  // namespace

// For more than two tokens one block on a multiprocessor: its rings take the whole memory, so it
// may have all registers.
template <int kRows, FormatSet kFormats>
__global__ void __launch_bounds__(kThreads, kRows <= 2 ? 2 : 1)
    moe_up(const __grid_constant__ MoeUp p) {
  p.trace.stamp(Trace::kStart);
  const Announcement known = {shared_memory + p.barrier};
  const Routing routing = {shared_memory + p.routing_offset, p.shared.rows * p.router.chosen};
  Item* items = items_of(p.shared);
  constexpr int kTokenGroups = groups_of(kRows);
  const int tokens = p.pass->rows;
  if (tokens == 0) return ptx::wait_for_previous();
  const Scouts scouts(tokens);
  NormWeights weights;
  weights.load(p.input.weight, p.width);
  RouterTap tap = make_tap(p, static_cast<int>(blockIdx.x));
  const OperandSpace space = normed_space(p);
  Shift shift(stream_of(p.shared), known, scouts);
  if (threadIdx.x == 0) ptx::barrier_init(known.barrier(), 1);
  const int free_items = make_items(&p.shared_part, p.shared_parts, items);
  space.pad(tokens, p.width / 4, p.units);
  __syncthreads();
  shift.begin(free_items, p.shared);
  const RowOperands operands(space);
  const bool per_token = space.per_token();
  const NormedOutput normed = {p.normed, p.width, false};
  ptx::wait_for_previous();
  p.trace.stamp(Trace::kReady);
  tap.epoch = epoch_of(p.router);
  if (per_token) {
    tap.unpack();
    normalize_input<kRows, true>(p.input, *p.pass, tokens, p.width, p.eps, weights, space, normed,
                                 tap);
  } else {
    normalize_several<kRows, true>(p.input, *p.pass, tokens, p.width, p.eps, weights, operands,
                                   space.scratch, normed, tap);
  }
  if (p.router.experts > static_cast<int>(gridDim.x)) {
    sync_computing();
    more_logits(p, tokens, tap.epoch, space.scratch);
  }
  if (p.latent != nullptr) {
    sync_computing();  // the norm's sums have been read
    load_latent(p, tokens);
  }
  sync_computing();
  if (threadIdx.x == 0) p.trace.mark(Trace::kInputs);

  const PackedMatrix& m = p.experts.first;
  const ExpertFactors factors(p);
  if (scouts.include_me()) {
    route(p.router, tap.epoch, 0, tokens, routing, scouts);
    const int count = make_up_items(p, routing, scouts, items, free_items);
    // Without segments warps need them at once, otherwise only when all are done.
    if (m.segments.value == 1) factors.load(p, routing, scouts);
    known.make(scouts, count);
    if (scouts.thread() == 0) p.trace.mark(Trace::kRouting);
    if (m.segments.value > 1) factors.load(p, routing, scouts);
    if (p.router.choice != nullptr && blockIdx.x == 0) {
      publish_choice(p.router, tap.epoch, routing, scouts);
    }
    if (blockIdx.x == 0 && scouts.thread() == 0) atomicAdd(p.router.touched, routing.count());
    if (p.observed_experts != nullptr && blockIdx.x == 0) {
      for (int i = scouts.thread(); i < tokens * p.router.chosen; i += scouts.threads()) {
        p.observed_experts[i] = routing.expert()[i];
      }
    }
    // Not earlier: the next phase takes the router's logits before it waits for this one, and must
    // not find the number of the pass before; nor should its weights delay the logits.
    ptx::launch_dependents();
  }

  const Partials partials = partials_of(p.shared);
  const PackedMatrix& shared_matrix = p.shared_part.matrix;
  const OperandSpace routed_in = routed_space(p);
  const int operand = routed_operand(p);
  const bool has_scale = routed_in.operands[operand].kind == OperandKind::kFp8Token;
  const auto finish = [&](const Item& item, int row_of_tile, int token, float sum) {
    finish_routed(p, routing, factors, item.part - 1, item.tile * kTileRows + row_of_tile, token,
                  has_scale ? routed_in.row_scales[token] : 1.0F, sum);
  };
  const auto multiply_one = [&](int i) {
    const Item& item = items[i];
    const bool routed = item.part > 0;
    uint32_t activations[kTokenGroups];
    lane_activations(item, tokens, activations, [&](int token) {
      return routed ? routed_in.row(operand, token) : space.row(p.shared_part.operand, token);
    });
    TileSums<kTokenGroups> sums;
    multiply_item<kFormats>(sums, item, shift.stream, activations, [&] { shift.replace(); });
    if (!routed || m.segments.value > 1) return partials.store(i, sums);
    for_each_total(sums, [&](int r, int token, float sum) {
      if (token < tokens) finish(item, r, token, sum);
    });
  };
  shift.refill();
  shift.work(multiply_one);
  if (threadIdx.x == 0) p.trace.mark(Trace::kOwnItems);
  sync_computing();
  if (threadIdx.x == 0) p.trace.mark(Trace::kAllItems);

  const FinishThread mine_is(tokens);
  if (mine_is.token < tokens) {
    const int token = mine_is.token;
    const PartItems mine = p.shared_parts > 0 ? items_of_part(p.shared_part, 0) : PartItems{};
    for (int i = mine_is.first; i < mine.tiles * kTileRows; i += mine_is.per_token) {
      const int row = mine.first_tile * kTileRows + i;
      if (row >= shared_matrix.rows) break;
      const int segments = shared_matrix.segments.value;
      const float sum = partials.sum(i / kTileRows * segments, segments, i % kTileRows, token);
      store_activation(p.shared_out, token, row, p.shared_out.inverse,
                       scaled(p.shared_part, space, row, token, sum), p.observed_shared,
                       shared_matrix.rows);
    }
    const int segments = m.segments.value;
    const int tiles = segments == 1 ? 0 : m.segments.divide(shift.end - free_items);
    // From the last thread on: the first ones have had the shared expert's rows.
    for (int i = mine_is.per_token - 1 - mine_is.first; i < tiles * kTileRows;
         i += mine_is.per_token) {
      const int first = free_items + i / kTileRows * segments;
      finish(items[first], i % kTileRows, token,
             partials.sum(first, segments, i % kTileRows, token));
    }
  }
  p.trace.stamp(Trace::kEnd);
}

namespace {

// Rows of activations into shared memory, which `barrier` counts; by one warp. Every block begins
// with another row: they would all want the same piece of the L2 cache at once.
__device__ inline void copy_rows(const Activations& from, int first_row, int rows, int units,
                                 int to, uint32_t barrier) {
  const int bytes = units * 2 * kUnitColumns;
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (lane == 0) ptx::expect_bytes(barrier, rows * bytes);
  __syncwarp();
  // A lane for each row or, where it takes all of them, one row after the other.
  constexpr int kAtOnce = 32 / ptx::kCopyingLanes;
#pragma unroll 1
  for (int i = lane % kAtOnce; i < rows; i += kAtOnce) {
    const int row = (i + static_cast<int>(blockIdx.x)) % rows;
    const uint32_t at = ptx::shared_address(shared_memory) + to + row * operand_stride(units);
    if constexpr (ptx::kBulkCopies) {
      ptx::bulk_copy(at, from.row(first_row + row), bytes, barrier);
    } else {
      ptx::copy_pieces(at, from.row(first_row + row), bytes);
    }
  }
  if constexpr (!ptx::kBulkCopies) ptx::arrive_when_copied(barrier);
}

// The inputs of `tokens` tokens: the shared expert's, then those of each choice. By one warp.
__device__ inline void fetch_inputs(const MoeDown& p, int tokens, uint32_t shared,
                                    uint32_t routed) {
  ptx::fence_stores_before_bulk_copies();
  if (p.shared_parts > 0) {
    copy_rows(p.shared_in, p.first_token, tokens, p.shared_part.matrix.units, p.shared_rows,
              shared);
  }
  if (p.routed) {
    copy_rows(p.routed_in, p.first_token * p.router.chosen, tokens * p.router.chosen,
              p.experts.first.units, p.routed_rows, routed);
  }
}

// This block's tiles of every distinct expert as items; how many there are then. By the scouts.
__device__ inline int make_down_items(const MoeDown& p, const Routing& routing,
                                      const Scouts& scouts, Item* items, int before, int first_tile,
                                      int tiles) {
  const PackedMatrix& first = p.experts.first;
  const int of_expert = tiles * first.segments.value;
  const int count = routing.count() * of_expert;
#pragma unroll 1
  for (int i = scouts.thread(); i < count; i += scouts.threads()) {
    const int d = i / of_expert;
    const int of_tiles = first.segments.divide(i);
    Item item = item_of(first, first_tile + of_tiles - d * tiles,
                        i - of_tiles * first.segments.value, 1 + d, p.experts.chunk_units);
    item.data += routing.distinct()[d] * p.experts.stride;
    items[before + i] = item;
  }
  return before + count;
}

// What each expert's sums count for each token: 0, when it does not go there. By the scouts.
__device__ inline void make_factors(const MoeDown& p, int tokens, const Routing& routing,
                                    const Scouts& scouts) {
  auto* factors = reinterpret_cast<float*>(shared_memory + p.factors);
#pragma unroll 1
  for (int i = scouts.thread(); i < routing.count() * kDownRows; i += scouts.threads()) {
    const int d = i / kDownRows;
    const int token = i % kDownRows;
    const int choice = token < tokens ? routing.choice(d, token) : -1;
    const float weight = choice < 0 ? 0.0F : routing.weight()[token * p.router.chosen + choice];
    factors[i] = weight * p.experts.factor[routing.distinct()[d]];
  }
}

}  // namespace

template <FormatSet kFormats>
__global__ void __launch_bounds__(kThreads, 2) moe_down(const __grid_constant__ MoeDown p) {
  p.trace.stamp(Trace::kStart);
  const Announcement known = {shared_memory + p.barrier};
  const Routing routing = {shared_memory + p.routing_offset, p.shared.rows * p.router.chosen};
  Item* items = items_of(p.shared);
  const int first_tile = p.share.begin(static_cast<int>(blockIdx.x));
  const int tiles = p.share.begin(static_cast<int>(blockIdx.x) + 1) - first_tile;
  const int tokens = max(0, min(p.pass->rows - p.first_token, p.most_tokens));
  const Scouts scouts(tokens);
  const int free_items = make_items(&p.shared_part, p.shared_parts, items);
  const uint32_t shared_inputs = known.barrier() + 16;
  const uint32_t routed_inputs = known.barrier() + 24;
  if (threadIdx.x == 0) {
    ptx::barrier_init(known.barrier(), 1);
    ptx::barrier_init(shared_inputs, ptx::kCopyingLanes);
    ptx::barrier_init(routed_inputs, ptx::kCopyingLanes);
    ptx::fence_barriers();
  }
  __syncthreads();
  ptx::launch_dependents();
  if (tokens == 0) return ptx::wait_for_previous();
  Shift shift(stream_of(p.shared), known, scouts);
  shift.begin(free_items, p.shared);
  // One warp has nothing else to do than to wait for the inputs.
  if (threadIdx.x < 32) {
    ptx::wait_for_previous();
    p.trace.stamp(Trace::kReady);
    fetch_inputs(p, tokens, shared_inputs, routed_inputs);
  }
  if (scouts.include_me()) {
    int count = free_items;
    if (p.routed) {
      if (p.router.choice != nullptr) {
        take_choice(p.router, epoch_of(p.router), routing, scouts);
      } else {
        route(p.router, epoch_of(p.router), p.first_token, tokens, routing, scouts);
      }
      count = make_down_items(p, routing, scouts, items, free_items, first_tile, tiles);
    }
    known.make(scouts, count);
    if (scouts.thread() == 0) p.trace.mark(Trace::kRouting);
    if (p.routed) make_factors(p, tokens, routing, scouts);
  }
  ptx::barrier_wait(known.barrier(), 0);
  shift.refill();
  const Partials partials = partials_of(p.shared);
  const auto multiply_one = [&](int i) {
    const Item& item = items[i];
    ptx::barrier_wait(item.part == 0 ? shared_inputs : routed_inputs, 0);
    uint32_t activations[1];
    lane_activations(item, tokens, activations, [&](int token) {
      if (item.part == 0) {
        return shared_memory + p.shared_rows + token * operand_stride(p.shared_part.matrix.units);
      }
      // Tokens that do not go to this expert multiply something else; nobody looks at the result.
      const int choice = max(routing.choice(item.part - 1, token), 0);
      return shared_memory + p.routed_rows +
             (token * p.router.chosen + choice) * operand_stride(p.experts.first.units);
    });
    TileSums<1> sums;
    multiply_item<kFormats>(sums, item, shift.stream, activations, [&] { shift.replace(); });
    partials.store(i, sums);
  };
  ptx::wait_for_previous();
  if (p.trace.stamps != nullptr && threadIdx.x == 0) {
    ptx::barrier_wait(p.routed ? routed_inputs : shared_inputs, 0);
    p.trace.mark(Trace::kInputs);
  }
  shift.work(multiply_one);
  if (threadIdx.x == 0) p.trace.mark(Trace::kOwnItems);
  sync_computing();
  if (threadIdx.x == 0) p.trace.mark(Trace::kAllItems);

  write_down<false>(p, routing, partials, free_items, first_tile, tiles,
                    p.routed ? routing.count() : 0, tokens);
  p.trace.stamp(Trace::kEnd);
}

Kernel<MoeUp> moe_up_several_kernel(int rows, FormatSet formats) {
  return kernel_of_experts(formats, [&]<FormatSet kFormats>() -> Kernel<MoeUp> {
    return rows <= 2 ? moe_up<2, kFormats> : rows <= 4 ? moe_up<4, kFormats> : moe_up<8, kFormats>;
  });
}
Kernel<MoeDown> moe_down_several_kernel(FormatSet formats) {
  return kernel_of_experts(
      formats, [&]<FormatSet kFormats>() -> Kernel<MoeDown> { return moe_down<kFormats>; });
}

}  // namespace levin::runtime::cuda
