// How a block reads its share of the weights. The work is a list of items, each a tile of a matrix
// or one segment of it; the warps take items in turn. Every warp has a ring of its own in shared
// memory and keeps it filled with asynchronous copies of what it will multiply next, so that warps
// never wait for each other. The rings are filled before the kernel waits for its predecessor,
// since weights do not depend on it.
#pragma once

#include "runtime/cuda/decode.cuh"

namespace levin::runtime::cuda {

struct alignas(16) Item {
  const uint8_t* data;
  int32_t bytes;
  int32_t chunk_bytes;  // of one copy, whole units
  uint16_t units;
  uint16_t first_unit;  // of the tile
  uint16_t unit_bytes;
  uint16_t chunk_units;
  uint16_t tile;
  uint16_t part;  // for the kernel: what the item is of
  UnitFormat format;
  uint8_t unit_scales;
};

// `chunk_units`: units of one copy.
__host__ __device__ inline Item item_of(const PackedMatrix& m, int tile, int segment, int part,
                                        int chunk_units) {
  Item item;
  const int begin = m.segment_begin(segment);
  const int units = m.segment_begin(segment + 1) - begin;
  item.data = m.data + m.offset(tile, begin);
  item.bytes = units * m.unit_bytes;
  item.chunk_bytes = chunk_units * m.unit_bytes;
  item.units = static_cast<uint16_t>(units);
  item.first_unit = static_cast<uint16_t>(begin);
  item.unit_bytes = static_cast<uint16_t>(m.unit_bytes);
  item.chunk_units = static_cast<uint16_t>(chunk_units);
  item.tile = static_cast<uint16_t>(tile);
  item.part = static_cast<uint16_t>(part);
  item.format = m.format;
  item.unit_scales = m.unit_scales;
  return item;
}

// A warp's ring has from kFewestSlots to kMostSlots slots, or one where memory is scarce. The usual
// slot holds eight units of NVFP4, four of FP8 or two of BF16: enough that what a chunk costs
// besides its units matters little.
inline constexpr int kFewestSlots = 2;
inline constexpr int kMostSlots = 4;
inline constexpr int kSmallestSlot = 1024;  // bytes: the largest unit
inline constexpr int kUsualSlot = 2304;

// A warp's ring, and its place in the list: all in registers, the same in every lane. One lane
// copies, or all where there are no bulk copies (ptx.cuh); a barrier for each slot knows what has
// come. Whenever the warp multiplies, its ring is full or the list exhausted: so what comes next
// goes where the oldest chunk was.
class WarpStream {
 public:
  // Nothing to read yet. `barriers`: 8 bytes of shared memory for each slot.
  __device__ WarpStream(uint32_t ring, uint32_t barriers, int slots, int slot_bytes,
                        const Item* items)
      : items_(items),
        policy_(ptx::evict_first_policy()),
        ring_(ring),
        barriers_(barriers),
        slots_(slots),
        slot_bytes_(slot_bytes) {
    if (threadIdx.x % 32 == 0) {
#pragma unroll
      for (int slot = 0; slot < kMostSlots; ++slot) {
        ptx::barrier_init(barriers + 8 * slot, ptx::kCopyingLanes);
      }
      ptx::fence_barriers();
    }
    __syncwarp();
  }

  // From now on the warp reads items first, first + step, ... below `end`. All that it read before
  // is on its way.
  __device__ void read(int first, int end, int step) {
    next_ = first;
    end_ = end;
    step_ = step;
    fill();
  }
  // The same, but at most `ahead` copies at a time, before anything else is read: this is for the
  // time when the phase before has just begun and loads its input, which must not queue behind
  // much. `late`: the phase before is over, so that waiting would delay this one's own input; what
  // is left comes with fill().
  __device__ void read_gently(int first, int end, int step, int ahead, bool late) {
    next_ = first;
    end_ = end;
    step_ = step;
#pragma unroll 1
    while (in_flight_ < slots_ && !exhausted()) {
      if (in_flight_ >= ahead) {
        if (late) return;
        ptx::barrier_wait(barriers_ + 8 * (in_flight_ - ahead), 0);
      }
      add_chunk();
    }
  }
  // All that there is to copy is on its way.
  __device__ bool exhausted() const {
    return left_ == 0 && next_ >= end_;
  }

  // Copies as many chunks as there is room for.
  __device__ void fill() {
#pragma unroll 1
    while (in_flight_ < slots_ && !exhausted()) add_chunk();
  }

  // Waits for the oldest chunk; its shared address.
  __device__ uint32_t wait() const {
    ptx::barrier_wait(barriers_ + 8 * read_, lap_);
    return ring_ + read_ * slot_bytes_;
  }
  // Done with the oldest chunk, of a ring that was full unless the list is exhausted: the next one
  // takes its place. False: there is none.
  __device__ bool replace() {
    __syncwarp();
    const int slot = read_;
    if (++read_ == slots_) {
      read_ = 0;
      lap_ ^= 1;
    }
    if (exhausted()) {
      --in_flight_;
      return false;
    }
    copy_chunk(slot);
    return true;
  }

 private:
  __device__ void add_chunk() {
    const int slot = read_ + in_flight_;
    copy_chunk(slot < slots_ ? slot : slot - slots_);
    ++in_flight_;
  }
  __device__ void copy_chunk(int slot) {
    if (left_ == 0) {
      const Item& item = items_[next_];
      from_ = item.data;
      left_ = item.bytes;
      chunk_ = item.chunk_bytes;
      next_ += step_;
    }
    const int bytes = min(left_, chunk_);
    ptx::elected_bulk_copy(ring_ + slot * slot_bytes_, from_, bytes, barriers_ + 8 * slot, policy_);
    from_ += bytes;
    left_ -= bytes;
  }

  const Item* items_;
  const uint8_t* from_ = nullptr;
  uint64_t policy_;
  int left_ = 0;  // bytes of the item that are not on their way
  int chunk_ = 0;
  uint32_t ring_;
  uint32_t barriers_;
  int slots_;
  int slot_bytes_;
  int read_ = 0;      // the oldest chunk's slot
  uint32_t lap_ = 0;  // parity of its barrier
  int next_ = 0;
  int end_ = 0;
  int step_ = 1;
  int in_flight_ = 0;
};

// What a lane has loaded of a unit.
template <UnitFormat kFormat, int kTokenGroups>
struct UnitInputs {
  LaneWeights<kFormat> weights;
  uint4 activations[kTokenGroups];

  __device__ void load(uint32_t unit, int unit_scales, const uint32_t (&from)[kTokenGroups],
                       uint32_t offset) {
    weights.load(unit, threadIdx.x % 32, unit_scales);
#pragma unroll
    for (int g = 0; g < kTokenGroups; ++g) activations[g] = ptx::load_shared_16(from[g] + offset);
  }
};

// Units that a warp loads before it multiplies them.
__host__ __device__ constexpr int units_at_once(UnitFormat format) {
  return format == UnitFormat::kNvfp4 || format == UnitFormat::kInt4 ? 4 : 2;
}

// Multiplies `units` units from shared address `unit` on. `activations`: for each token group, the
// shared address of this lane's 8 activations in the first of them; those of the next unit are 128
// bytes on.
template <UnitFormat kFormat, int kTokenGroups>
__device__ inline void multiply_units(TileSums<kTokenGroups>& sums, uint32_t unit, int size,
                                      int unit_scales, int units,
                                      const uint32_t (&activations)[kTokenGroups],
                                      uint32_t offset) {
  constexpr uint32_t kStep = 2 * kUnitColumns;
  constexpr int kAtOnce = units_at_once(kFormat) / kTokenGroups;
#pragma unroll 1
  for (; units >= kAtOnce; units -= kAtOnce) {
    UnitInputs<kFormat, kTokenGroups> inputs[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      inputs[i].load(unit + i * size, unit_scales, activations, offset + i * kStep);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      multiply<kFormat>(sums, inputs[i].weights, inputs[i].activations);
    }
    unit += kAtOnce * size;
    offset += kAtOnce * kStep;
  }
#pragma unroll 1
  for (; units > 0; --units) {
    UnitInputs<kFormat, kTokenGroups> inputs;
    inputs.load(unit, unit_scales, activations, offset);
    multiply<kFormat>(sums, inputs.weights, inputs.activations);
    unit += size;
    offset += kStep;
  }
}

template <UnitFormat kFormat, int kTokenGroups, typename Replace>
__device__ inline void multiply_item_as(TileSums<kTokenGroups>& sums, const Item& item,
                                        WarpStream& stream,
                                        const uint32_t (&activations)[kTokenGroups],
                                        Replace&& replace) {
  constexpr bool kFixed = kFormat != UnitFormat::kInt4;
  const int size = kFixed ? unit_bytes(kFormat, 0) : item.unit_bytes;
  const int chunk = item.chunk_units;
  int left = item.units;
  uint32_t offset = 0;
#pragma unroll 1
  while (left > 0) {
    const int units = min(left, chunk);
    multiply_units<kFormat>(sums, stream.wait(), size, item.unit_scales, units, activations,
                            offset);
    replace();
    offset += units * (2 * kUnitColumns);
    left -= units;
  }
}

// The warp's next item. `activations`: of the item's first unit. `replace`: called when a chunk has
// been multiplied; calls WarpStream::replace().
template <FormatSet kFormats, int kTokenGroups, typename Replace>
__device__ inline void multiply_item(TileSums<kTokenGroups>& sums, const Item& item,
                                     WarpStream& stream,
                                     const uint32_t (&activations)[kTokenGroups],
                                     Replace&& replace) {
  const auto multiply_if = [&]<UnitFormat kFormat>() {
    if constexpr ((kFormats & set_of(kFormat)) != 0) {
      if (kFormats == set_of(kFormat) || item.format == kFormat) {
        multiply_item_as<kFormat>(sums, item, stream, activations, replace);
      }
    }
  };
  multiply_if.template operator()<UnitFormat::kBf16>();
  multiply_if.template operator()<UnitFormat::kF16>();
  multiply_if.template operator()<UnitFormat::kFp8>();
  multiply_if.template operator()<UnitFormat::kNvfp4>();
  multiply_if.template operator()<UnitFormat::kInt4>();
}

// This lane's part of an operand row (operand.cuh) in unit `unit`, relative to the row.
__device__ inline uint32_t lane_offset(int unit) {
  const int lane = threadIdx.x % 32;
  return unit * 2 * kUnitColumns + lane % 4 * 32 + (lane >= 16 ? 16 : 0);
}
// The token of a group of four whose activations this lane loads.
__device__ inline int lane_token() {
  return threadIdx.x % 32 / 4 % 4;
}

// The sums of S segments of tiles, and of the tiles of several experts, which the block adds up at
// the end: [item][row][token].
struct Partials {
  float* data;
  int tokens;  // there is space for: 4 or 8

  static __host__ __device__ int tokens_of(int rows) { return rows <= 4 ? 4 : 8; }
  static __host__ __device__ int bytes(int items, int rows) {
    return items * kTileRows * tokens_of(rows) * static_cast<int>(sizeof(float));
  }
  template <int kTokenGroups>
  __device__ void store(int item, const TileSums<kTokenGroups>& sums) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int group = 0; group < kTokenGroups; ++group) {
      const float2 total = sums.total(group);
      if (lane % 4 < 2) {
        const int at = (item * kTileRows + lane / 4) * tokens + 4 * group + lane % 4 * 2;
        *reinterpret_cast<float2*>(data + at) = total;
      }
    }
  }
  __device__ float at(int item, int row, int token) const {
    return data[(item * kTileRows + row) * tokens + token];
  }
  // Of `count` items from `item` on, in their order.
  __device__ float sum(int item, int count, int row, int token) const {
    float total = at(item, row, token);
#pragma unroll 1
    for (int i = 1; i < count; ++i) total += at(item + i, row, token);
    return total;
  }
};

// Calls function(row of the tile, token, y) for the sums that this lane hands over.
template <int kTokenGroups, typename Function>
__device__ inline void for_each_total(const TileSums<kTokenGroups>& sums, Function&& function) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int group = 0; group < kTokenGroups; ++group) {
    const float2 total = sums.total(group);
    if (lane % 4 < 2) {
      function(lane / 4, 4 * group + lane % 4 * 2, total.x);
      function(lane / 4, 4 * group + lane % 4 * 2 + 1, total.y);
    }
  }
}

}  // namespace levin::runtime::cuda
