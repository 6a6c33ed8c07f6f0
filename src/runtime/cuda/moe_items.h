// What each block multiplies in a MoE phase of one token, worked out when the model is loaded.
// Which tiles of an expert are a block's does not depend on which experts those are, so that when
// the routing is known nothing but the experts' addresses is missing.
#pragma once

#include <vector>

#include "runtime/cuda/packed.cuh"

namespace levin::runtime::cuda {

// Before a block's items: those of the shared expert come first.
struct alignas(32) BlockItems {
  int shared_items;
  int all_items;
  int first_tile;  // of the experts': of all chosen ones' tiles (up), or of each one's (down)
  int tiles;
};

// On the device: `bytes` for each block, a BlockItems and its items (Item in stream.cuh). Items of
// an expert are those of expert 0, and their part is 1 + the expert's place among the chosen ones.
struct ItemLists {
  const uint8_t* data = nullptr;
  int bytes = 0;
};

// For the host; `shared` has no tiles where there is no shared expert in the phase.
// Up: the tiles of the `chosen` experts one after the other, shared out evenly over `blocks`.
std::vector<uint8_t> up_items(const PackedMatrix& shared, const PackedMatrix& expert, int chosen,
                              int blocks, ItemLists& lists);
// Down: every block has the same tiles of all experts. `chosen` may be 0.
std::vector<uint8_t> down_items(const PackedMatrix& shared, const PackedMatrix& expert, int chosen,
                                int blocks, ItemLists& lists);

}  // namespace levin::runtime::cuda
