// A phase of the model that is a stream of weights: y = W x for up to kMaxRows tokens. What differs
// between phases is where x comes from (linear.cu) and what happens to y (Output).
#pragma once

#include "runtime/cuda/operand.cuh"
#include "runtime/cuda/pass.h"
#include "runtime/cuda/stream.cuh"

namespace levin::runtime::cuda {

// A kernel with its parameter struct, as a host function hands it out.
template <typename Params>
using Kernel = void (*)(Params);

// The kernel for the formats of a phase: `make.operator()<set>()` of the one of kSets that they
// are, else of all formats.
template <FormatSet... kSets, typename Make>
auto kernel_for(FormatSet formats, Make&& make) {
  auto kernel = make.template operator()<kAnyFormat>();
  ((formats == kSets ? void(kernel = make.template operator()<kSets>()) : void()), ...);
  return kernel;
}

enum class OutputKind : uint8_t {
  kStore,  // data[token][row] = y
  kAdd,    // data[token][row] += y: the residual stream
  kRelu2,  // data[token][row] = max(y, 0)^2
  kKey,    // into the key cache at the token's position
  kValue,  // into the value cache
  kLogits  // data[logits_row of the token][row] = y, and the block's largest
};

// One layer's cache of keys or values, as the tensor cores read them: keys are
// [slot][head][position][dim], values [slot][head][position / kCacheTile][dim][kCacheTile], so that
// a tile of positions is one piece of memory in both; `dim` is padded.
inline constexpr int kCacheTile = 64;  // positions

struct KvView {
  void* data = nullptr;
  int64_t slot_stride = 0;  // elements
  int capacity = 0;         // positions, a multiple of kCacheTile
  int heads = 0;
  int head_dim = 0;
  int padded_dim = 0;
  bool fp8 = false;
  float scale = 1.0F;  // of FP8: stored = e4m3(x / scale)
};

struct Output {
  OutputKind kind = OutputKind::kStore;
  float* data = nullptr;
  int stride = 0;  // floats from token to token
  KvView cache;
  int position_offset = 0;  // added to the token's position
};

// One linear of a phase.
struct Part {
  PackedMatrix matrix;
  float factor = 1.0F;  // of format and operand
  int operand = 0;
  Share share;          // of the tiles
  int rotation = 0;     // of the blocks; spreads small linears over them
  int chunk_units = 1;  // of one copy
  Output output;
};

inline constexpr int kMaxParts = 3;

// Where things are in a block's dynamic shared memory, in bytes. The warps' rings come first.
struct SharedLayout {
  int slots = 0;  // of a ring
  int slot_bytes = 0;
  int ahead = 1;      // copies of a warp in flight until the phase before is over
  bool late = false;  // there is no room for the block until then
  int items = 0;
  int barriers = 0;  // of the rings' slots
  int operands = 0;
  int partials = 0;
  int scratch = 0;     // scratch_floats(rows)
  int row_scales = 0;  // kRowScales floats, then what the kernel wants
  int total = 0;
  int rows = 0;  // tokens there is space for
};

// For the sums over a block of one row at a time, or twice of two numbers of four rows.
__host__ __device__ constexpr int scratch_floats(int rows) {
  return (rows == 1 ? 4 : 16) * kWarps;
}
inline constexpr int kRowScales = 2 * kMaxRows;  // of two operand spaces

// Best token of a block among the rows it computed.
struct Candidate {
  float value;
  int32_t index;
};

// Per-phase time stamps of one block, for the table of phases.
struct Trace {
  enum Stamp : int { kStart, kReady, kEnd, kMarks };  // nanoseconds
  // Cycles of the multiprocessor, behind the stamps.
  enum Mark : int { kReadyMark, kInputs, kRouting, kOwnItems, kAllItems, kEndMark, kMarkCount };
  static constexpr int kCount = static_cast<int>(kMarks) + static_cast<int>(kMarkCount);

  uint64_t* stamps = nullptr;  // [grid][kCount], null: off
  __device__ void stamp(Stamp which) const {
    if (stamps == nullptr || threadIdx.x != 0) return;
    stamps[(blockIdx.y * gridDim.x + blockIdx.x) * kCount + which] = ptx::global_timer();
    if (which == kReady) mark(kReadyMark);
    if (which == kEnd) mark(kEndMark);
  }
  // By one thread.
  __device__ void mark(Mark which) const {
    if (stamps == nullptr) return;
    stamps[(blockIdx.y * gridDim.x + blockIdx.x) * kCount + kMarks + which] = clock64();
  }
};

// A block's tiles of one part of a phase, as items: every tile's segments side by side.
struct PartItems {
  int first_item;
  int first_tile;
  int tiles;
};

__device__ inline PartItems items_of_part(const Part& part, int first_item) {
  const int grid = static_cast<int>(gridDim.x);
  int block = static_cast<int>(blockIdx.x) + part.rotation;
  if (block >= grid) block -= grid;
  const int begin = part.share.begin(block);
  return {first_item, begin, part.share.begin(block + 1) - begin};
}

// Makes the list of all parts' items, by all threads; how many there are. `first_rows`: of how many
// rows of the last part, shared out over all blocks; 0: of all.
__device__ inline int make_items(const Part* parts, int part_count, Item* items,
                                 int first_rows = 0) {
  int count = 0;
#pragma unroll 1
  for (int p = 0; p < part_count; ++p) {
    const PackedMatrix& m = parts[p].matrix;
    PartItems mine = items_of_part(parts[p], count);
    if (first_rows > 0 && p + 1 == part_count) {
      const Share share((first_rows + kTileRows - 1) / kTileRows, static_cast<int>(gridDim.x));
      mine.first_tile = share.begin(static_cast<int>(blockIdx.x));
      mine.tiles = share.begin(static_cast<int>(blockIdx.x) + 1) - mine.first_tile;
    }
    const int of_part = mine.tiles * m.segments.value;
#pragma unroll 1
    for (int i = threadIdx.x; i < of_part; i += kThreads) {
      const int tile = m.segments.divide(i);
      const int segment = i - tile * m.segments.value;
      items[count + i] = item_of(m, mine.first_tile + tile, segment, p, parts[p].chunk_units);
    }
    count += of_part;
  }
  return count;
}

// Who adds up what at the end of a phase: each token's rows are shared out over as many threads as
// there are.
struct FinishThread {
  int per_token;
  int token;
  int first;
  __device__ explicit FinishThread(int tokens) {
    const int shift = tokens == 1 ? 9 : tokens == 2 ? 8 : tokens <= 4 ? 7 : 6;
    static_assert(kThreads == 1 << 9);
    per_token = 1 << shift;
    token = static_cast<int>(threadIdx.x) >> shift;
    first = static_cast<int>(threadIdx.x) & (per_token - 1);
  }
};

__device__ inline void store_kv(const KvView& cache, bool value, int slot, int position, int row,
                                float x) {
  if (position < 0) return;
  const int head = row / cache.head_dim;
  const int dim = row % cache.head_dim;
  const int64_t base =
      slot * cache.slot_stride + static_cast<int64_t>(head) * cache.capacity * cache.padded_dim;
  const int in_tile = position % kCacheTile;
  const int64_t at = value ? base + static_cast<int64_t>(position - in_tile) * cache.padded_dim +
                                 dim * kCacheTile + in_tile
                           : base + static_cast<int64_t>(position) * cache.padded_dim + dim;
  if (cache.fp8) {
    static_cast<uint8_t*>(cache.data)[at] =
        static_cast<uint8_t>(ptx::floats_to_e4m3x2(x / cache.scale, 0.0F));
  } else {
    static_cast<__nv_bfloat16*>(cache.data)[at] = __float2bfloat16_rn(x);
  }
}

// What happens to y = `value` of weight row `row` and token `token`.
__device__ inline void emit(const Output& out, const Pass& pass, int token, int row, float value,
                            Candidate& best) {
  switch (out.kind) {
    case OutputKind::kStore:
      out.data[static_cast<int64_t>(token) * out.stride + row] = value;
      return;
    case OutputKind::kAdd:
      // One addition to each element: atomic only so that nobody waits for the old value.
      atomicAdd(out.data + static_cast<int64_t>(token) * out.stride + row, value);
      return;
    case OutputKind::kRelu2: {
      const float positive = fmaxf(value, 0.0F);
      out.data[static_cast<int64_t>(token) * out.stride + row] = positive * positive;
      return;
    }
    case OutputKind::kKey:
    case OutputKind::kValue:
      store_kv(out.cache, out.kind == OutputKind::kValue, pass.slot[token],
               pass.position[token] + out.position_offset, row, value);
      return;
    case OutputKind::kLogits: {
      const int among = pass.vocab[token];
      if (among > 0 && row >= among) return;
      const int to = pass.logits_row[token];
      if (to >= 0) out.data[static_cast<int64_t>(to) * out.stride + row] = value;
      if (value > best.value) best = {value, row};  // rows ascend: of equals the first stays
      return;
    }
  }
}

// Of each token that a lane hands over (for_each_total), the best so far.
template <int kTokenGroups>
struct Best {
  Candidate of[kTokenGroups][2];
};

inline constexpr Candidate kNoCandidate = {-3.402823466e38F, 0x7fffffff};

__device__ inline bool better(const Candidate& a, const Candidate& b) {
  return a.value > b.value || (a.value == b.value && a.index < b.index);
}

// y of a part's linear from the sum of products.
__device__ inline float scaled(const Part& part, const OperandSpace& space, int row, int token,
                               float sum) {
  const bool per_token = space.operands[part.operand].kind == OperandKind::kFp8Token;
  float y = sum * (per_token ? part.factor * space.row_scales[token] : part.factor);
  if (part.matrix.row_scale != nullptr) y *= part.matrix.row_scale[row];
  if (part.matrix.bias != nullptr) y += part.matrix.bias[row];
  return y;
}

// Shared addresses of this lane's activations for the item's first unit: operand_row(token) of its
// tokens. Columns of tokens that do not exist hold copies of the last one.
template <int kTokenGroups, typename Row>
__device__ inline void lane_activations(const Item& item, int tokens,
                                        uint32_t (&activations)[kTokenGroups], Row&& operand_row) {
#pragma unroll
  for (int g = 0; g < kTokenGroups; ++g) {
    activations[g] = ptx::shared_address(operand_row(min(4 * g + lane_token(), tokens - 1))) +
                     lane_offset(item.first_unit);
  }
}

// All linears of a phase: what this warp's items make, and at the end what the block adds up.
template <FormatSet kFormats, int kTokenGroups>
__device__ inline void multiply_parts(const Part* parts, int part_count, const Item* items,
                                      int count, WarpStream& stream, const OperandSpace& space,
                                      const Partials& partials, const Pass& pass, int tokens,
                                      const Trace& trace, Best<kTokenGroups>& best) {
  stream.fill();
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x / 32); i < count; i += kWarps) {
    const Item& item = items[i];
    const Part& part = parts[item.part];
    uint32_t activations[kTokenGroups];
    lane_activations(item, tokens, activations,
                     [&](int token) { return space.row(part.operand, token); });
    TileSums<kTokenGroups> sums;
    multiply_item<kFormats>(sums, item, stream, activations, [&] { stream.replace(); });
    if (part.matrix.segments.value > 1) {
      partials.store(i, sums);
      continue;
    }
    const int first_row = item.tile * kTileRows;
#pragma unroll
    for (int group = 0; group < kTokenGroups; ++group) {
      const float2 total = sums.total(group);
      const int lane = threadIdx.x % 32;
      const int row = first_row + lane / 4;
      if (lane % 4 >= 2 || row >= part.matrix.rows) continue;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int token = 4 * group + lane % 4 * 2 + j;
        if (token >= tokens) continue;
        const float y = scaled(part, space, row, token, j == 0 ? total.x : total.y);
        emit(part.output, pass, token, row, y, best.of[group][j]);
      }
    }
  }
  if (threadIdx.x == 0) trace.mark(Trace::kOwnItems);
  sync_computing();
  if (threadIdx.x == 0) trace.mark(Trace::kAllItems);
  int first_item = 0;
  Candidate unused = kNoCandidate;  // lm_head has no segments (weights.cu)
#pragma unroll 1
  for (int p = 0; p < part_count; ++p) {
    const Part& part = parts[p];
    const PackedMatrix& m = part.matrix;
    const PartItems mine = items_of_part(part, first_item);
    first_item += mine.tiles * m.segments.value;
    if (m.segments.value == 1) continue;
    const FinishThread mine_is(tokens);
    if (mine_is.token >= tokens) continue;
    for (int i = mine_is.first; i < mine.tiles * kTileRows; i += mine_is.per_token) {
      const int row = mine.first_tile * kTileRows + i;
      if (row >= m.rows) break;
      const int item = mine.first_item + i / kTileRows * m.segments.value;
      const float sum = partials.sum(item, m.segments.value, i % kTileRows, mine_is.token);
      emit(part.output, pass, mine_is.token, row, scaled(part, space, row, mine_is.token, sum),
           unused);
    }
  }
}

}  // namespace levin::runtime::cuda
