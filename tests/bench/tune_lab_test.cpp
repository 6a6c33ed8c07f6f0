#include "bench/tune_lab.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "core/error.h"
#include "core/progress.h"
#include "core/thread_team.h"
#include "engine/fake_device_rounds.h"
#include "runtime/cpu/cpu_runtime.h"
#include "support/tiny_checkpoint.h"

namespace levin::bench {
namespace {

TuneLabOptions tiny_options() {
  Progress::set_enabled(false);
  TuneLabOptions options;
  options.model = std::filesystem::path(LEVIN_SOURCE_DIR) / "models/tiny";
  options.load.runtime.threads = std::min(2, available_cores());
  options.timing = {.output_tokens = 16, .rounds = 5, .warm_up = 1};
  options.prompt_tokens = 192;
  return options;
}

const TuneDimension& dimension_of(const std::vector<TuneDimension>& all, std::string_view name) {
  return *std::find_if(all.begin(), all.end(), [&](const auto& one) { return one.name == name; });
}

TEST(ModelLab, KnowsWhatThisDeviceCanTry) {
  ModelLab lab(tiny_options());
  const std::vector<TuneDimension> dimensions = lab.dimensions();
  std::vector<std::string> names;
  for (const TuneDimension& dimension : dimensions) {
    names.push_back(dimension.name);
    EXPECT_NE(dimension.values.empty(), dimension.why_none.empty()) << dimension.name;
  }
  EXPECT_THAT(names, ::testing::ElementsAre("threads", "pinning", "rounds", "KV cache", "SSM state",
                                            "drafts", "draft vocabulary", "prefix cache"));
  EXPECT_TRUE(dimension_of(dimensions, "rounds").values.empty());
  EXPECT_FALSE(lab.control().device_rounds.has_value());
  EXPECT_EQ(lab.control().prefix_cache, false);
  EXPECT_FALSE(lab.control().pin_threads);
}

// A cache that does not find the prefix again is no faster, and one that does saves most of the
// second prompt.
TEST(ModelLab, ThePrefixCacheSavesTheSharedPart) {
  TuneLabOptions options = tiny_options();
  options.prompt_tokens = 768;
  ModelLab lab(options);
  TuneSetting on = lab.control();
  on.prefix_cache = true;
  const std::vector<TuneSetting> settings = {lab.control(), on};
  const auto timings = lab.time(TuneWork::kSharedPrefix, settings);
  ASSERT_EQ(timings[0].ttft.size(), 5U);
  ASSERT_EQ(timings[1].ttft.size(), 5U);
  const double gain = speed_over(TuneWork::kSharedPrefix, timings[1], timings[0], {}).value;
  EXPECT_GT(gain, 1.2);
}

// An FP8 cache gets the slowest kernels there are, which nobody who tunes may miss. On one thread,
// so that other programs slow both alike.
TEST(ModelLab, APlantedRegressionIsCaught) {
  using runtime::cpu::Isa;
  if (runtime::cpu::best_isa() == Isa::kScalar) GTEST_SKIP() << "there are no faster kernels";
  TuneLabOptions options = tiny_options();
  options.load.runtime.threads = 1;
  options.load.make_runtime = [](std::shared_ptr<const model::Model> model,
                                 const runtime::Options& set) {
    const bool planted = set.kv_cache_dtype == runtime::KvCacheDType::kFp8;
    const Isa isa = planted ? Isa::kScalar : runtime::cpu::best_isa();
    return runtime::cpu::make_runtime(std::move(model), set, isa);
  };
  ModelLab lab(options);
  const std::vector<TuneDimension> all = lab.dimensions();
  const std::vector<TuneDimension> cache = {dimension_of(all, "KV cache")};
  const TuneResult result = tune(lab, lab.control(), cache, {.confidence = 0.99});
  ASSERT_EQ(result.trials.size(), 1U);
  EXPECT_EQ(result.trials[0].verdict, TuneVerdict::kSlower) << result.trials[0].why;
  EXPECT_EQ(result.best, lab.control());
  EXPECT_THAT(to_text(result), ::testing::HasSubstr("slower"));
}

TEST(ModelLab, TriesRoundsOfADeviceThatHasThem) {
  using engine::testing::DeviceFakeRuntime;
  TuneLabOptions options = tiny_options();
  DeviceFakeRuntime* fake = nullptr;
  options.load.make_runtime = [&](std::shared_ptr<const model::Model> model,
                                  const runtime::Options& set) {
    runtime::Options resolved = set;
    resolved.max_model_len = 512;
    const auto logits = engine::testing::random_logits(3);
    auto made = std::make_unique<DeviceFakeRuntime>(std::move(model), resolved, logits, logits);
    fake = made.get();
    return made;
  };
  ModelLab lab(options);
  EXPECT_EQ(lab.control().device_rounds, false);
  const std::vector<TuneDimension> dimensions = lab.dimensions();
  ASSERT_EQ(dimension_of(dimensions, "rounds").values.size(), 1U);
  TuneSetting device = lab.control();
  lab.time(TuneWork::kGeneration, {&device, 1});
  EXPECT_EQ(fake->launches, 0);
  dimension_of(dimensions, "rounds").values[0](device);
  lab.time(TuneWork::kGeneration, {&device, 1});
  EXPECT_GT(fake->launches, 0);
}

TEST(ModelLab, OneThreadHasNoneToPin) {
  TuneLabOptions options = tiny_options();
  options.load.runtime.threads = 1;
  ModelLab lab(options);
  TuneSetting pinned = lab.control();
  pinned.pin_threads = true;
  EXPECT_TRUE(lab.obstacle(pinned, {}).has_value());
}

// Whether cache types are judged at all depends on their speed, minutes later.
TEST(ModelLab, RefusesPromptsThatPredictNothingAtOnce) {
  TuneLabOptions options = tiny_options();
  options.prompt_tokens = 1;
  EXPECT_THROW(ModelLab{options}, Error);
  options.prompt_tokens = 2;
  ModelLab{options};
}

TEST(ModelLab, RefusesATextThatNobodyReads) {
  const test::TempFolder folder;
  test::write_file(folder / "text.txt", "Once upon a time there was a harbour.");
  const auto tiny = tiny_options().model;
  std::filesystem::copy(tiny, folder / "model");
  for (const char* file : {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}) {
    std::filesystem::remove(folder.path() / "model" / file);
  }
  TuneLabOptions options = tiny_options();
  options.model = folder / "model";
  ModelLab{options};
  options.texts = {folder / "text.txt"};
  EXPECT_THROW(ModelLab{options}, Error);
}

TEST(ModelLab, JudgesOnWindowsThatFitShortSequences) {
  TuneLabOptions options = tiny_options();
  options.texts = {std::filesystem::path(LEVIN_SOURCE_DIR) / "README.md"};
  options.load.runtime.max_model_len = 96;
  options.prompt_tokens = 16;
  options.timing.output_tokens = 4;
  ModelLab lab(options);
  TuneSetting fp8 = lab.control();
  fp8.kv = runtime::KvCacheDType::kFp8;
  EXPECT_EQ(lab.quality(fp8).texts.size(), 1U);
}

// All that is timed together is loaded at once; drafts load nothing.
TEST(ModelLab, CountsTheMemoryOfAllThatIsTimedTogether) {
  ModelLab lab(tiny_options());
  lab.set_available_bytes(lab.control_engine().runtime->memory_bytes() * 3 / 2);
  TuneSetting fp8 = lab.control();
  fp8.kv = runtime::KvCacheDType::kFp8;
  TuneSetting other = lab.control();
  other.ssm = runtime::SsmCacheDType::kF16;
  TuneSetting drafts = fp8;
  drafts.drafts = 2;
  const std::vector<TuneSetting> control = {lab.control()};
  const std::vector<TuneSetting> with_other = {lab.control(), other};
  const std::vector<TuneSetting> with_fp8 = {lab.control(), fp8};
  EXPECT_FALSE(lab.obstacle(fp8, control).has_value());
  EXPECT_FALSE(lab.obstacle(drafts, with_fp8).has_value());
  EXPECT_FALSE(lab.obstacle(lab.control(), with_other).has_value());
  const auto obstacle = lab.obstacle(fp8, with_other);
  ASSERT_TRUE(obstacle.has_value());
  EXPECT_THAT(*obstacle, ::testing::HasSubstr("beside the control and the best so far"));
  lab.set_available_bytes(0);  // nobody tells
  EXPECT_FALSE(lab.obstacle(fp8, with_other).has_value());
}

TEST(ModelLab, PerplexityOfCacheTypesIsMeasured) {
  ModelLab lab(tiny_options());
  TuneSetting fp8 = lab.control();
  fp8.kv = runtime::KvCacheDType::kFp8;
  EXPECT_TRUE(lab.quality(lab.control()).texts.empty());
  const TuneQuality quality = lab.quality(fp8);
  ASSERT_FALSE(quality.texts.empty());
  for (const TunePerplexity& text : quality.texts) {
    EXPECT_NEAR(text.value / text.control, text.ratio.value, 1e-6) << text.text;
    EXPECT_GT(text.predictions, 0);
  }
}

}  // namespace
}  // namespace levin::bench
