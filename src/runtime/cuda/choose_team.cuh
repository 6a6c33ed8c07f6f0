// The blocks that choose a token together (round_choose.cu), and how they see each other's memory.
// From compute capability 9.0 on they are a cluster and work in shared memory. Below, where there
// are no clusters, they work in device memory and meet at a counter, each phase in the same order:
// the result is the same. They have to be on the device at once, and are: no other kernel is, and
// blocks come in the order of their numbers, a row's after the other's.
#pragma once

#include <cooperative_groups.h>

#include "runtime/cuda/round_kernels.h"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define LEVIN_CHOOSE_TEAM __cluster_dims__(levin::runtime::cuda::kChooseBlocks, 1, 1)
#else
#define LEVIN_CHOOSE_TEAM
#endif

namespace levin::runtime::cuda {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

class ChooseTeam {
 public:
  __device__ ChooseTeam(const ChooseTokens&, int) : cluster_(cooperative_groups::this_cluster()) {}
  __device__ int rank() const { return static_cast<int>(cluster_.block_rank()); }
  // choose_memory_bytes() of this block.
  __device__ uint8_t* memory() const {
    extern __shared__ __align__(16) uint8_t choose_memory[];
    return choose_memory;
  }
  // Where another block has what lies at `mine` of this one.
  template <typename T>
  __device__ T* of(int rank, T* mine) const {
    return cluster_.map_shared_rank(mine, rank);
  }
  // All threads of all blocks.
  __device__ void sync() const { cluster_.sync(); }

 private:
  cooperative_groups::cluster_group cluster_;
};

#else

class ChooseTeam {
 public:
  __device__ ChooseTeam(const ChooseTokens& p, int row)
      : memory_(p.memory + static_cast<int64_t>(row) * kChooseBlocks * p.memory_stride),
        stride_(p.memory_stride),
        arrivals_(p.arrivals + row) {}
  __device__ int rank() const { return static_cast<int>(blockIdx.x); }
  __device__ uint8_t* memory() const { return memory_ + rank() * stride_; }
  template <typename T>
  __device__ T* of(int rank, T* mine) const {
    auto* bytes = reinterpret_cast<uint8_t*>(mine);
    return reinterpret_cast<T*>(bytes + (rank - this->rank()) * stride_);
  }
  // The counter only grows: every block arrives as often as the others, in every launch.
  __device__ void sync() const {
    __syncthreads();
    if (threadIdx.x == 0) {
      __threadfence();
      const uint32_t before = atomicAdd(arrivals_, 1u);
      const uint32_t all = before - before % kChooseBlocks + kChooseBlocks;
      while (static_cast<int32_t>(*static_cast<volatile uint32_t*>(arrivals_) - all) < 0) {
      }
      __threadfence();
    }
    __syncthreads();
  }

 private:
  uint8_t* memory_;
  int64_t stride_;
  uint32_t* arrivals_;
};

#endif

}  // namespace levin::runtime::cuda
