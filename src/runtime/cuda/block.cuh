// A streaming block's dynamic shared memory, opened by the parts of its layout.
#pragma once

#include "runtime/cuda/linear.cuh"

namespace levin::runtime::cuda {

extern __shared__ __align__(128) uint8_t shared_memory[];

__device__ inline WarpStream stream_of(const SharedLayout& layout, const Item* items) {
  const int warp = static_cast<int>(threadIdx.x / 32);
  return {ptx::shared_address(shared_memory) + warp * layout.slots * layout.slot_bytes,
          ptx::shared_address(shared_memory) + layout.barriers + 8 * kMostSlots * warp,
          layout.slots, layout.slot_bytes, items};
}
__device__ inline Item* items_of(const SharedLayout& layout) {
  return reinterpret_cast<Item*>(shared_memory + layout.items);
}
__device__ inline WarpStream stream_of(const SharedLayout& layout) {
  return stream_of(layout, items_of(layout));
}

__device__ inline OperandSpace operand_space(const SharedLayout& layout, const Operand* operands,
                                             int count, int units) {
  OperandSpace space;
  space.data = shared_memory + layout.operands;
  space.scratch = reinterpret_cast<float*>(shared_memory + layout.scratch);
  space.row_scales = reinterpret_cast<float*>(shared_memory + layout.row_scales);
  space.operands = operands;
  space.count = count;
  space.rows = layout.rows;
  space.stride = operand_stride(units);
  return space;
}

__device__ inline Partials partials_of(const SharedLayout& layout) {
  return {reinterpret_cast<float*>(shared_memory + layout.partials),
          Partials::tokens_of(layout.rows)};
}

}  // namespace levin::runtime::cuda
