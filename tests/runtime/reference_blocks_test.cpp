// Block kinds and options that the bundled model does not have, against float32 results of Hugging
// Face transformers on small random checkpoints (tools/make_block_goldens.py).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "runtime/runtime.h"
#include "test_files.h"

namespace levin::runtime {
namespace {

constexpr float kTolerance = 1e-4F;

class ReferenceBlocks : public ::testing::TestWithParam<const char*> {
 protected:
  std::filesystem::path folder() const {
    return std::filesystem::path(LEVIN_SOURCE_DIR) / "tests/data/blocks" / GetParam();
  }
  std::filesystem::path golden_file() const { return folder().string() + ".golden.safetensors"; }
};

float max_difference(std::span<const float> a, std::span<const float> b) {
  EXPECT_EQ(a.size(), b.size());
  float maximum = 0.0F;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const float difference = std::abs(a[i] - b[i]);
    if (!(difference <= maximum)) maximum = difference;
  }
  return maximum;
}

TEST_P(ReferenceBlocks, HiddenStatesAndLogits) {
  const auto model = model::load_model(folder());
  const testing::TensorFile golden(golden_file());
  const std::vector<int32_t> ids = golden.ids("input_ids");
  const auto runtime =
      make_reference_runtime(model, {.kv_cache_dtype = KvCacheDType::kF32, .threads = 2});
  std::vector<float> hidden;
  runtime->set_observer(
      {.hidden = [&](int, std::span<const float> rows,
                     int) { hidden.insert(hidden.end(), rows.begin(), rows.end()); },
       .linear_input = {}});
  runtime->extend(
      std::vector<Extend>{{.tokens = ids, .logits_rows = static_cast<int>(ids.size())}});

  const float hidden_difference = max_difference(hidden, golden.floats("hidden"));
  std::vector<float> logits;
  for (int row = 0; row < static_cast<int>(ids.size()); ++row) {
    const auto values = runtime->logits(0, row);
    logits.insert(logits.end(), values.begin(), values.end());
  }
  const float difference = max_difference(logits, golden.floats("logits"));
  fmt::print("  hidden states {:.3g}, logits {:.3g}\n", hidden_difference, difference);
  EXPECT_LE(hidden_difference, kTolerance);
  EXPECT_LE(difference, kTolerance);
}

// One token at a time, and a rewind after each.
TEST_P(ReferenceBlocks, DecodeEqualsPrefill) {
  const auto model = model::load_model(folder());
  const testing::TensorFile golden(golden_file());
  const std::vector<int32_t> ids = golden.ids("input_ids");
  const auto runtime = make_reference_runtime(model, {.max_num_seqs = 2, .threads = 1});
  const auto rows = static_cast<int>(ids.size());
  runtime->extend(std::vector<Extend>{{.slot = 0, .tokens = ids, .logits_rows = rows}});
  std::vector<std::vector<float>> expected;
  for (int row = 0; row < rows; ++row) {
    const auto values = runtime->logits(0, row);
    expected.emplace_back(values.begin(), values.end());
  }
  const std::vector<int32_t> wrong = {1, 2, 3};
  for (int row = 0; row < rows; ++row) {
    runtime->extend(std::vector<Extend>{{.slot = 1, .tokens = wrong}});
    runtime->rewind(1, row);
    const std::span<const int32_t> token = std::span(ids).subspan(static_cast<std::size_t>(row), 1);
    runtime->extend(std::vector<Extend>{{.slot = 1, .tokens = token}});
    const auto values = runtime->logits(0, 0);
    EXPECT_EQ(std::vector<float>(values.begin(), values.end()),
              expected[static_cast<std::size_t>(row)])
        << "row " << row;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, ReferenceBlocks,
                         ::testing::Values("dense_bias", "latent_groups", "tied_clamped"),
                         [](const auto& name) { return std::string(name.param); });

}  // namespace
}  // namespace levin::runtime
