// Weights on their way into kernel layouts (packed.cuh): from the mapped file through pinned
// staging memory to the device, rearranged there. Or made there, when there are no bytes to upload.
#pragma once

#include <memory>

#include "core/progress.h"
#include "model/linear.h"
#include "runtime/cuda/device.h"
#include "runtime/cuda/packed.cuh"

namespace levin::runtime::cuda {

// The shape of `linear` as the kernels see it, without pointers. Throws Error when there is no unit
// format for it. Rows are cut into `segments`, a power of two, or
// fewer when there are fewer units.
PackedMatrix packed_shape(const model::Linear& linear, int segments);
int tiles_of(const model::Linear& linear);

class Uploader {
 public:
  // Device memory that it takes while it lives.
  static constexpr std::size_t kStagingBytes = std::size_t{128} << 20;

  Uploader(cudaStream_t stream, int64_t total_bytes);
  ~Uploader();

  // Copies `bytes` to the device.
  void copy(const void* from, void* to, std::size_t bytes);
  // Fills matrix.data (and row scales of INT4 and FP8 per channel) from the linear's bytes; random
  // weights of the usual size when it has none.
  void repack(const model::Linear& linear, const PackedMatrix& matrix, float* row_scale);
  // A matrix as it is; random when it has no bytes.
  void table(const model::Linear& linear, void* to);
  // Waits until everything is in place.
  void finish();

 private:
  struct Stage {
    Memory pinned;
    Memory device;
    Event free;
    std::size_t used = 0;
  };

  // Room for `bytes` in a stage that no copy uses any more; starts over when the current is full.
  Stage& room(std::size_t bytes);
  void flush();
  // Copies `bytes` into the current stage; where they will be on the device.
  const std::byte* stage(const std::byte* from, std::size_t bytes);

  cudaStream_t stream_;
  Stage stages_[2];
  int current_ = 0;
  Progress progress_;
};

}  // namespace levin::runtime::cuda
