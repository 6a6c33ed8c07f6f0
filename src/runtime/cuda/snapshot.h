// Snapshots of a slot (runtime.h) in the device's memory: its pieces of the caches, copied out and
// in. Logged tokens stay logged, so that nothing has to be computed. A sequence of the 30B-A3B
// shape is 50 MB and 6 KB for each token.
#pragma once

#include <memory>
#include <span>

#include "runtime/cuda/device.h"
#include "runtime/cuda/round.h"
#include "runtime/cuda/state.h"

namespace levin::runtime::cuda {

// Memory of snapshots: kept by all of them, so that it outlives the runtime if they do. What is
// freed is used again without the driver.
class SnapshotPool {
 public:
  explicit SnapshotPool(int device);
  ~SnapshotPool();
  SnapshotPool(const SnapshotPool&) = delete;
  SnapshotPool& operator=(const SnapshotPool&) = delete;

  // Everything about snapshots happens on this stream, in order.
  cudaStream_t stream() const { return stream_.get(); }
  void synchronize() const { stream_.synchronize(); }
  // Throws Error when there is not that much.
  std::byte* take(std::size_t bytes);
  void give_back(std::byte* memory) noexcept;

 private:
  CudaStream stream_;
  cudaMemPool_t pool_ = nullptr;
};

class Snapshots {
 public:
  Snapshots(const model::Config& config, const Options& options, const State& state, int device);

  SnapshotBytes bytes(int64_t parent, int64_t length) const;
  // The device must have nothing to do for the slot. All of them return when it is done.
  Snapshot save(int slot, const SlotState& numbers, int64_t parent) const;
  // Sets all numbers but the generation. The chain has been checked (validate.h).
  void restore(int slot, SlotState& numbers, std::span<const Snapshot> chain) const;
  // Fills everything that belongs to the slot with NaN.
  void poison(int slot) const;

 private:
  // A piece of a slot's memory: `rows` stretches of `width` bytes, `pitch` apart.
  struct Piece {
    void* memory;
    std::size_t width;
    std::size_t rows;
    std::size_t pitch;
    std::size_t bytes() const { return width * rows; }
  };
  template <typename Visit>
  void for_each_state_piece(int slot, int parity, Visit&& visit) const;
  template <typename Visit>
  void for_each_cache_piece(int slot, int64_t parent, int64_t length, Visit&& visit) const;
  template <typename Visit>
  void visit_cache(const KvCaches& caches, int slot, int64_t begin, int64_t end,
                   Visit&& visit) const;

  const model::Config& c_;
  const Options& options_;
  const State& state_;
  std::shared_ptr<SnapshotPool> pool_;
};

}  // namespace levin::runtime::cuda
