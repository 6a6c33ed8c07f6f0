// What a slot takes, against what the runtime really allocates.
#include "engine/admission.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "core/error.h"
#include "model/model.h"

namespace levin::engine {
namespace {

TEST(Admission, SaysWhatASlotTakes) {
  const auto model = model::load_model(std::filesystem::path(LEVIN_SOURCE_DIR) / "models/tiny");
  for (const auto kv : {runtime::KvCacheDType::kBf16, runtime::KvCacheDType::kFp8}) {
    for (const int64_t context : {512, 2048}) {
      runtime::Options options = {.max_model_len = context,
                                  .max_num_seqs = 1,
                                  .max_extend_tokens = 16,
                                  .kv_cache_dtype = kv,
                                  .threads = 1};
      const auto bytes_with = [&](int slots) {
        options.max_num_seqs = slots;
        return runtime::make_cpu_runtime(model, options)->memory_bytes();
      };
      // Of what a slot adds, logits of its drafts are work space, not state.
      const int64_t logits = int64_t{options.max_rewind} * model->config.vocab_size * 4;
      const double real = static_cast<double>((bytes_with(9) - bytes_with(1)) / 8 - logits);
      const auto said = static_cast<double>(slot_bytes(model->config, options).total());
      EXPECT_NEAR(said / real, 1, 0.06) << context;
    }
  }
}

TEST(Admission, ClampsToTheMemory) {
  const auto model = model::load_model(std::filesystem::path(LEVIN_SOURCE_DIR) / "models/tiny");
  const runtime::Options options = {.max_model_len = 1024, .max_num_seqs = 1024};
  const int64_t one = slot_bytes(model->config, options).total();
  EXPECT_EQ(fit_slots(model->config, options, 30 * one), 30);
  EXPECT_EQ(fit_slots(model->config, options, 5000 * one), 1024);
  try {
    fit_slots(model->config, options, one - 1);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::kMachine);
  }
}

TEST(Admission, NamesTheWeightsWhenTheyLeaveNothing) {
  EXPECT_EQ(memory_for_slots(4000, 10000), 3000);
  EXPECT_EQ(memory_for_slots(9999, 10000), 1);
  try {
    memory_for_slots(65'800'000'000, 24'700'000'000);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::kMachine);
    // No shorter context would help, so the hint must not be fit_slots'.
    EXPECT_THAT(error.what(), ::testing::AllOf(::testing::HasSubstr("65.80 GB"),
                                               ::testing::HasSubstr("24.70 GB available"),
                                               ::testing::HasSubstr("quantize the model")));
  }
}

}  // namespace
}  // namespace levin::engine
