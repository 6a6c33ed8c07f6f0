// The CUDA runtime keeps the contract of runtime.h.
#include <filesystem>

#include "conformance.h"
#include "cuda_device.h"

namespace levin::runtime {
namespace {

using conformance::Check;

conformance::Subject subject() {
  static const auto model =
      model::load_model(std::filesystem::path(LEVIN_SOURCE_DIR) / "models/tiny");
  const auto make = [](std::shared_ptr<const model::Model> m, const Options& options) {
    return make_cuda_runtime(std::move(m), options);
  };
  return {model, make, {KvCacheDType::kBf16, KvCacheDType::kFp8}, 0, 8};
}

class CudaConformance : public ::testing::TestWithParam<Check> {};

TEST_P(CudaConformance, Holds) {
  LEVIN_NEEDS_CUDA();
  GetParam().run(subject());
}

INSTANTIATE_TEST_SUITE_P(All, CudaConformance,
                         ::testing::ValuesIn(conformance::conformance_checks()),
                         conformance::check_name);

}  // namespace
}  // namespace levin::runtime
