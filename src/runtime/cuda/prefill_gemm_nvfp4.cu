// The products of one weight format (prefill_gemm.cuh).
#include "runtime/cuda/prefill_gemm.cuh"

namespace levin::runtime::cuda {

GemmInstance gemm_nvfp4(GemmShape shape) {
  return gemm_instance_of<UnitFormat::kNvfp4>(shape);
}

}  // namespace levin::runtime::cuda
