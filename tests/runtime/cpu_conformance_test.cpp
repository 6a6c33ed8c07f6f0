// The fast CPU runtime keeps the contract of runtime.h. (Every instruction set does, on smaller
// models: cpu_runtime_test.cpp.)
#include <filesystem>

#include "conformance.h"
#include "runtime/cpu/cpu_runtime.h"

namespace levin::runtime {
namespace {

using conformance::Check;

conformance::Subject subject() {
  static const auto model =
      model::load_model(std::filesystem::path(LEVIN_SOURCE_DIR) / "models/tiny");
  return {model, make_cpu_runtime, {KvCacheDType::kBf16, KvCacheDType::kFp8, KvCacheDType::kF32}};
}

class CpuConformance : public ::testing::TestWithParam<Check> {};

TEST_P(CpuConformance, Holds) {
  GetParam().run(subject());
}

INSTANTIATE_TEST_SUITE_P(All, CpuConformance,
                         ::testing::ValuesIn(conformance::conformance_checks()),
                         conformance::check_name);

}  // namespace
}  // namespace levin::runtime
