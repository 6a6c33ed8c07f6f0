// The products of one weight format (prefill_gemm.cuh).
#include "runtime/cuda/prefill_gemm.cuh"

namespace levin::runtime::cuda {

GemmInstance gemm_fp8(GemmShape shape) {
  return gemm_instance_of<UnitFormat::kFp8>(shape);
}

}  // namespace levin::runtime::cuda
