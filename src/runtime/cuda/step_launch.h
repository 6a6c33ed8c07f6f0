// How a Step puts a phase on the stream. Only for the files that implement Step.
#pragma once

#include <algorithm>

#include "runtime/cuda/step.h"

namespace levin::runtime::cuda {

inline int align(int bytes) {
  return (bytes + 127) / 128 * 128;
}

// Also asks for the same division of a multiprocessor's memory as all other kernels: changing it
// would wait until the multiprocessor is empty.
template <typename Kernel>
void allow_shared(Kernel kernel, int bytes) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                             cudaSharedmemCarveoutMaxShared));
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
}

template <typename Params>
void Step::launch(const char* name, Kernel<Params> kernel, dim3 grid, int threads, int shared,
                  Params& params, double bytes) {
  before_shared_ = shared;
  if (dry_) return;
  if constexpr (requires { params.trace; }) {
    const std::size_t wanted = std::size_t{Trace::kCount} * grid.x * grid.y;
    if (phases_ != nullptr && wanted <= stamps_left_) {
      params.trace.stamps = stamps_;
      phases_->push_back({name, static_cast<int>(grid.x * grid.y), stamps_, bytes});
      stamps_ += wanted;
      stamps_left_ -= wanted;
    }
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<std::size_t>(shared);
  config.stream = stream_;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = kernels_.overlap && !first_ && !observing() ? 1 : 0;
  check(cudaLaunchKernelEx(&config, kernel, params));
  first_ = false;
}

}  // namespace levin::runtime::cuda
