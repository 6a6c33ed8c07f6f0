// The CUDA runtime: what the rest of levin sees of it. Only programs built with LEVIN_CUDA may call
// these; there is no stub.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "model/inventory.h"
#include "runtime/runtime.h"

namespace levin::runtime {

// One line for each CUDA device: "NVIDIA H200, compute capability 9.0, 132 multiprocessors, 140
// GB". Empty when there is no device or no driver.
std::vector<std::string> cuda_devices();

// What a smaller device would have, to try its layouts and paths on a larger one. 0: what is there.
struct CudaLimits {
  int shared_per_block = 0;  // bytes
  int shared_per_multiprocessor = 0;
  int compute_capability = 0;  // 120 for 12.0; chooses paths, not instructions
};
// Of GPUs of compute capability 12.x: 99 KB a block of 100 KB.
inline constexpr CudaLimits kCudaLimits120 = {101376, 102400, 120};
// Of those of 8.6 and 8.9 as much; of those of 8.0, 163 KB of 164.
inline constexpr CudaLimits kCudaLimits86 = {101376, 102400, 86};
inline constexpr CudaLimits kCudaLimits80 = {166912, 167936, 80};

// The model on a CUDA device of compute capability 8.0 or above. Weights are uploaded and repacked;
// linears without bytes (make_shape_model) are filled with random ones on the device. Throws Error
// with exit code 3 when there is no such device or its memory is too small (the memory plan says by
// how much), with exit code 2 when a linear or an option has no kernel.
std::unique_ptr<Runtime> make_cuda_runtime(std::shared_ptr<const model::Model> model,
                                           const Options& options, int device = 0,
                                           const CudaLimits& limits = {});

// A model of the given configuration whose matrices have shapes and formats but no bytes: for
// timing shapes that no file is at hand for, without making the weights on the host. Small vectors
// are made as for LoadFormat::kDummy.
std::shared_ptr<const model::Model> make_shape_model(
    const model::Config& config,
    const std::function<checkpoint::ModuleQuant(const model::TensorPlan&)>& quant_of);
// With the configuration and quantization metadata of `folder`.
std::shared_ptr<const model::Model> make_shape_model(const std::filesystem::path& folder);

}  // namespace levin::runtime
