// The CUDA runtime keeps the contract of runtime.h.
#include <algorithm>
#include <filesystem>
#include <set>

#include "conformance.h"
#include "cuda_device.h"

namespace levin::runtime {
namespace {

using conformance::Check;

std::shared_ptr<const model::Model> tiny_model() {
  static const auto model =
      model::load_model(std::filesystem::path(LEVIN_SOURCE_DIR) / "models/tiny");
  return model;
}

conformance::Subject subject(const CudaLimits& limits) {
  const auto make = [limits](std::shared_ptr<const model::Model> m, const Options& options) {
    return make_cuda_runtime(std::move(m), options, 0, limits);
  };
  return {tiny_model(), make, {KvCacheDType::kBf16, KvCacheDType::kFp8}, 0, 8};
}

class CudaConformance : public ::testing::TestWithParam<Check> {};

TEST_P(CudaConformance, Holds) {
  LEVIN_NEEDS_CUDA();
  GetParam().run(subject({}));
}
TEST_P(CudaConformance, HoldsInLittleSharedMemory) {
  LEVIN_NEEDS_CUDA();
  GetParam().run(subject(kCudaLimits120));
}

// Logits of the same tokens in extends of one to most tokens.
std::vector<float> logits_of(Runtime& runtime, int most) {
  std::vector<float> logits;
  int32_t next = 5;
  runtime.reset(0);
  for (int total = 0; total < 30;) {
    std::vector<int32_t> tokens;
    for (int i = 0; i < 1 + total % most; ++i) tokens.push_back(next = (next * 131 + 7) % 1000);
    const Extend extend = {
        .slot = 0, .tokens = tokens, .logits_rows = static_cast<int>(tokens.size())};
    runtime.extend({&extend, 1});
    for (int row = 0; row < extend.logits_rows; ++row) {
      const auto of_row = runtime.logits(0, row);
      logits.insert(logits.end(), of_row.begin(), of_row.end());
    }
    total += static_cast<int>(tokens.size());
  }
  return logits;
}

// How a block divides its memory shows in no bit, and where the inputs of eight tokens do not fit,
// passes have fewer, down to a memory in which those of one do not.
TEST(CudaLayouts, DoNotShow) {
  LEVIN_NEEDS_CUDA();
  const Options options = {.max_model_len = 64, .max_extend_tokens = 8};
  const auto usual = make_cuda_runtime(tiny_model(), options);
  std::set<int> most_rows;
  bool refused = false;
  for (int bytes = kCudaLimits80.shared_per_block; bytes > 0 && !refused;
       bytes = std::min(bytes, 102 << 10) - (2 << 10)) {
    try {
      const CudaLimits limits = {bytes, bytes + 1024, 120};
      const auto little = make_cuda_runtime(tiny_model(), options, 0, limits);
      const int most = little->options().max_rewind;
      most_rows.insert(most);
      ASSERT_EQ(little->description().find("passes of at most") != std::string::npos, most < 8);
      ASSERT_EQ(logits_of(*little, most), logits_of(*usual, most)) << bytes;
    } catch (const Error& error) {
      refused = true;
      EXPECT_NE(std::string(error.what()).find("too wide"), std::string::npos) << error.what();
    }
  }
  EXPECT_TRUE(refused);
  EXPECT_TRUE(most_rows.contains(8) && most_rows.contains(1) && most_rows.size() > 2);
}

INSTANTIATE_TEST_SUITE_P(All, CudaConformance,
                         ::testing::ValuesIn(conformance::conformance_checks()),
                         conformance::check_name);

}  // namespace
}  // namespace levin::runtime
