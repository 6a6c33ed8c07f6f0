// The products of one weight format (prefill_gemm.cuh).
#include "runtime/cuda/prefill_gemm.cuh"

namespace levin::runtime::cuda {

GemmInstance gemm_bf16(GemmShape shape) {
  return gemm_instance_of<UnitFormat::kBf16>(shape);
}

}  // namespace levin::runtime::cuda
