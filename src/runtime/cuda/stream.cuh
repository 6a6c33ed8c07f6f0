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
  uint32_t bytes;
  uint32_t chunk_bytes;  // of one copy, whole units
  uint16_t units;
  uint16_t first_unit;  // of the tile
  uint16_t unit_bytes;
  uint16_t chunk_units;
  uint16_t tile;
  uint16_t part;  // for the kernel: what the item is of
  UnitFormat format;
  uint8_t unit_scales;
};

__device__ inline Item item_of(const PackedMatrix& m, int tile, int segment, int part,
                               int slot_bytes) {
  Item item;
  const int begin = m.segment_begin(segment);
  const int units = m.segment_begin(segment + 1) - begin;
  const int chunk = slot_bytes / m.unit_bytes;
  item.data = m.data + m.offset(tile, begin);
  item.bytes = units * m.unit_bytes;
  item.chunk_bytes = chunk * m.unit_bytes;
  item.units = static_cast<uint16_t>(units);
  item.first_unit = static_cast<uint16_t>(begin);
  item.unit_bytes = static_cast<uint16_t>(m.unit_bytes);
  item.chunk_units = static_cast<uint16_t>(chunk);
  item.tile = static_cast<uint16_t>(tile);
  item.part = static_cast<uint16_t>(part);
  item.format = m.format;
  item.unit_scales = m.unit_scales;
  return item;
}

inline constexpr int kRingSlots = 4;        // of a warp
inline constexpr int kSmallestSlot = 1024;  // bytes: the largest unit

// A warp's ring, and its place in the list: all in registers, the same in every lane.
class WarpStream {
 public:
  // Nothing to read yet.
  __device__ WarpStream(uint32_t ring, int slot_bytes, const Item* items)
      : items_(items), policy_(ptx::evict_first_policy()), ring_(ring), slot_bytes_(slot_bytes) {}

  // From now on the warp reads items first, first + step, ... below `end`. What it read before is
  // finished, or at least on its way.
  __device__ void read(int first, int end, int step) {
    next_ = first;
    end_ = end;
    step_ = step;
    fill();
  }
  // All that there is to copy is on its way.
  __device__ bool exhausted() const { return left_ == 0 && next_ >= end_; }

  // Copies as many chunks as there is room for.
  __device__ void fill() {
    while (in_flight_ < kRingSlots) {
      if (left_ == 0) {
        if (next_ >= end_) return;
        const Item& item = items_[next_];
        from_ = item.data;
        left_ = item.bytes;
        chunk_ = item.chunk_bytes;
        next_ += step_;
      }
      const uint32_t bytes = min(left_, chunk_);
      const uint32_t to = ring_ + write_ * slot_bytes_;
      for (uint32_t at = threadIdx.x % 32 * 16; at < bytes; at += 512) {
        ptx::copy_16(to + at, from_ + at, policy_);
      }
      ptx::commit_copies();
      from_ += bytes;
      left_ -= bytes;
      write_ = write_ + 1 == kRingSlots ? 0 : write_ + 1;
      ++in_flight_;
    }
  }

  // Waits for the oldest chunk; its shared address.
  __device__ uint32_t wait() const {
    if (in_flight_ >= kRingSlots) {
      ptx::wait_for_copies<kRingSlots - 1>();
    } else if (in_flight_ == 3) {
      ptx::wait_for_copies<2>();
    } else if (in_flight_ == 2) {
      ptx::wait_for_copies<1>();
    } else {
      ptx::wait_for_copies<0>();
    }
    __syncwarp();
    return ring_ + read_ * slot_bytes_;
  }
  // Done with the oldest chunk.
  __device__ void release() {
    __syncwarp();
    read_ = read_ + 1 == kRingSlots ? 0 : read_ + 1;
    --in_flight_;
  }

 private:
  const Item* items_;
  const uint8_t* from_ = nullptr;
  uint64_t policy_;
  uint32_t left_ = 0;  // bytes of the item that are not on their way
  uint32_t chunk_ = 0;
  uint32_t ring_;
  int slot_bytes_;
  int next_ = 0;
  int end_ = 0;
  int step_ = 1;
  int write_ = 0;
  int read_ = 0;
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

// Multiplies `units` units from shared address `unit` on. `activations`: for each token group, the
// shared address of this lane's 8 activations in the first of them; those of the next unit are 128
// bytes on.
template <UnitFormat kFormat, int kTokenGroups>
__device__ inline void multiply_units(TileSums<kTokenGroups>& sums, uint32_t unit, int size,
                                      int unit_scales, int units,
                                      const uint32_t (&activations)[kTokenGroups],
                                      uint32_t offset) {
  constexpr uint32_t kStep = 2 * kUnitColumns;
#pragma unroll 1
  for (; units >= 2; units -= 2) {
    UnitInputs<kFormat, kTokenGroups> first, second;
    first.load(unit, unit_scales, activations, offset);
    second.load(unit + size, unit_scales, activations, offset + kStep);
    multiply<kFormat>(sums, first.weights, first.activations);
    multiply<kFormat>(sums, second.weights, second.activations);
    unit += 2 * size;
    offset += 2 * kStep;
  }
  if (units > 0) {
    UnitInputs<kFormat, kTokenGroups> last;
    last.load(unit, unit_scales, activations, offset);
    multiply<kFormat>(sums, last.weights, last.activations);
  }
}

template <UnitFormat kFormat, int kTokenGroups, typename Refill>
__device__ inline void multiply_item_as(TileSums<kTokenGroups>& sums, const Item& item,
                                        WarpStream& stream,
                                        const uint32_t (&activations)[kTokenGroups],
                                        Refill&& refill) {
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
    stream.release();
    refill();
    offset += units * (2 * kUnitColumns);
    left -= units;
  }
}

// The warp's next item. `activations`: of the item's first unit. `refill`: called whenever there is
// room in the ring.
template <int kTokenGroups, typename Refill>
__device__ inline void multiply_item(TileSums<kTokenGroups>& sums, const Item& item,
                                     WarpStream& stream,
                                     const uint32_t (&activations)[kTokenGroups], Refill&& refill) {
  switch (item.format) {
    case UnitFormat::kBf16:
      return multiply_item_as<UnitFormat::kBf16>(sums, item, stream, activations, refill);
    case UnitFormat::kF16:
      return multiply_item_as<UnitFormat::kF16>(sums, item, stream, activations, refill);
    case UnitFormat::kFp8:
      return multiply_item_as<UnitFormat::kFp8>(sums, item, stream, activations, refill);
    case UnitFormat::kNvfp4:
      return multiply_item_as<UnitFormat::kNvfp4>(sums, item, stream, activations, refill);
    case UnitFormat::kInt4:
      return multiply_item_as<UnitFormat::kInt4>(sums, item, stream, activations, refill);
  }
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
