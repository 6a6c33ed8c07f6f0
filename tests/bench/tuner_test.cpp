#include "bench/tuner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "bench/profile.h"
#include "core/error.h"
#include "support/tiny_checkpoint.h"

namespace levin::bench {
namespace {

// Every setting takes the time that a function says, with noise; k drafts are accepted ever more.
class FakeLab final : public TuneLab {
 public:
  FakeLab(std::function<double(const TuneSetting&)> seconds, double noise, unsigned seed = 11)
      : seconds_(std::move(seconds)), noise_(noise), random_(seed) {}

  std::optional<std::string> obstacle(const TuneSetting& setting,
                                      std::span<const TuneSetting> beside) override {
    if (impossible && impossible(setting)) return "it is impossible";
    if (beside.size() >= most_at_once) return "there is no room for it";
    return std::nullopt;
  }
  std::vector<TuneTiming> time(TuneWork work, std::span<const TuneSetting> settings) override {
    ++timed;
    EXPECT_LE(settings.size(), most_at_once);
    std::vector<TuneTiming> timings(settings.size());
    std::normal_distribution<double> normal(0, noise_);
    for (int round = 0; round < 7; ++round) {
      const double machine = 1 + std::abs(normal(random_));  // slows a whole round
      for (std::size_t i = 0; i < settings.size(); ++i) {
        const double own = 1 + normal(random_) / 3;
        if (work == TuneWork::kSharedPrefix) {
          timings[i].ttft.push_back(prefix_seconds(settings[i]) * machine * own);
          continue;
        }
        timings[i].tpot.push_back(seconds_(settings[i]) * machine * own);
        timings[i].ttft.push_back(0.1);
        timings[i].acceptance_length = 1 + 0.8 * settings[i].drafts;
      }
    }
    return timings;
  }
  TuneQuality quality(const TuneSetting& setting) override {
    asked.push_back(setting);
    if (flawed && flawed(setting)) return {.texts = {}, .flaw = "its output is wrong"};
    if (setting.kv == runtime::KvCacheDType::kBf16) return {};
    return {.texts = {{.text = "prose",
                       .value = 11.5,
                       .control = 11.4,
                       .ratio = {1.0088, 1.001, 1.02},
                       .predictions = 1016,
                       .mean_kl = 0.002,
                       .top1_agreement = 0.985}},
            .flaw = {}};
  }

  std::function<bool(const TuneSetting&)> impossible, flawed;
  std::function<double(const TuneSetting&)> prefix_seconds = [](const TuneSetting&) { return 0.2; };
  std::vector<TuneSetting> asked;
  int timed = 0;
  std::size_t most_at_once = 100;

 private:
  std::function<double(const TuneSetting&)> seconds_;
  double noise_;
  std::mt19937_64 random_;
};

const TuneSetting kControl = {.threads = 2};
const evaluate::Bootstrap kBootstrap = {.confidence = 0.99, .resamples = 1000};

TuneDimension drafts(int most) {
  TuneDimension dimension{.name = "drafts", .values = {}};
  for (int k = 1; k <= most; ++k) {
    dimension.values.emplace_back([k](TuneSetting& s) { s.drafts = k; });
  }
  return dimension;
}
TuneDimension fp8_cache() {
  return {.name = "KV cache",
          .values = {[](TuneSetting& s) { s.kv = runtime::KvCacheDType::kFp8; }}};
}

TuneResult run(FakeLab& lab, std::vector<TuneDimension> dimensions) {
  return tune(lab, kControl, dimensions, kBootstrap);
}

const TuneTrial& trial_with(const TuneResult& result, int k) {
  for (const TuneTrial& trial : result.trials) {
    if (trial.setting.drafts == k) return trial;
  }
  throw std::runtime_error("no such trial");
}

// Where two fit beside the standards, five are timed in three goes, and the best of all is found.
TEST(Tuner, TimesInTurnsWhatDoesNotFitTogether) {
  FakeLab lab([](const TuneSetting& s) { return 1e-3 / (s.drafts == 4 ? 1.6 : 1.1); }, 0.01);
  lab.most_at_once = 3;
  const TuneResult result = run(lab, {drafts(5)});
  EXPECT_EQ(result.trials.size(), 5U);
  EXPECT_EQ(result.best.drafts, 4);
  EXPECT_EQ(lab.timed, 3 + 1);  // and once more to confirm it
}

// The best takes the place that was left.
TEST(Tuner, LeavesOutWhatDoesNotFitBesideTheBest) {
  FakeLab lab([](const TuneSetting& s) { return s.drafts == 1 ? 0.5e-3 : 1e-3; }, 0.01);
  lab.most_at_once = 2;
  const TuneResult result = run(lab, {drafts(1), fp8_cache()});
  ASSERT_EQ(result.trials.size(), 2U);
  EXPECT_EQ(result.trials[1].verdict, TuneVerdict::kImpossible);
  EXPECT_EQ(result.best.drafts, 1);
}

// One core, say, or a checkpoint that asks for the type of the SSM state itself.
TEST(Tuner, SaysThatTheControlHasTheOnlyValue) {
  FakeLab lab([](const TuneSetting&) { return 1e-3; }, 0.01);
  const TuneDimension threads{.name = "threads",
                              .values = {[](TuneSetting& s) { s.threads = kControl.threads; }}};
  const TuneResult result = run(lab, {threads, drafts(1)});
  ASSERT_EQ(result.untried.size(), 1U);
  EXPECT_THAT(
      to_text(result),
      ::testing::HasSubstr("not tried: threads: there is no other value than the control's"));
}

TEST(Tuner, KeepsTheFastest) {
  FakeLab lab(
      [](const TuneSetting& s) {
        return 1e-3 / (s.drafts == 2 ? 1.4 : s.drafts == 1 ? 1.2 : 1);
      },
      0.01);
  const TuneResult result = run(lab, {drafts(3)});
  EXPECT_EQ(result.best.drafts, 2);
  EXPECT_EQ(trial_with(result, 2).verdict, TuneVerdict::kKept);
  EXPECT_EQ(trial_with(result, 1).verdict, TuneVerdict::kBeaten);
  EXPECT_NE(trial_with(result, 3).verdict, TuneVerdict::kKept);
  EXPECT_NEAR(result.generation.speed.value, 1.4, 0.05);
  EXPECT_GT(result.generation.speed.low, 1.3);
}

TEST(Tuner, AcceptanceThatCostsSpeedLoses) {
  FakeLab lab([](const TuneSetting& s) { return 1e-3 * (1 + 0.05 * s.drafts); }, 0.01);
  const TuneResult result = run(lab, {drafts(3)});
  EXPECT_EQ(result.best, kControl);
  EXPECT_EQ(trial_with(result, 3).verdict, TuneVerdict::kSlower);
  EXPECT_GT(trial_with(result, 3).acceptance_length, 3);  // what it promised
  EXPECT_EQ(result.generation.speed.value, 1);
}

TEST(Tuner, NoiseIsNotKept) {
  int kept = 0;
  for (int i = 0; i < 20; ++i) {
    FakeLab lab([](const TuneSetting&) { return 1e-3; }, 0.03, static_cast<unsigned>(i));
    if (run(lab, {drafts(2), fp8_cache()}).best != kControl) ++kept;
  }
  EXPECT_LE(kept, 1);
}

TEST(Tuner, TinyGainsAreNotWorthASetting) {
  FakeLab lab([](const TuneSetting& s) { return s.drafts > 0 ? 0.998e-3 : 1e-3; }, 1e-6);
  EXPECT_EQ(run(lab, {drafts(1)}).best, kControl);
}

TEST(Tuner, TheGateIsAskedOfFasterOnesOnlyAndIsObeyed) {
  FakeLab lab(
      [](const TuneSetting& s) {
        return (s.kv == runtime::KvCacheDType::kFp8 ? 0.5e-3 : 1e-3) * (1 + s.drafts);
      },
      0.01);
  lab.flawed = [](const TuneSetting& s) { return s.kv == runtime::KvCacheDType::kFp8; };
  const TuneResult result = run(lab, {drafts(1), fp8_cache()});
  EXPECT_EQ(result.best, kControl);
  ASSERT_EQ(lab.asked.size(), 1U);
  EXPECT_EQ(lab.asked[0].kv, runtime::KvCacheDType::kFp8);
  const TuneTrial& trial = result.trials.back();
  EXPECT_EQ(trial.verdict, TuneVerdict::kFlawed);
  EXPECT_THAT(trial.why, ::testing::HasSubstr("its output is wrong"));
  EXPECT_THAT(to_text(result), ::testing::HasSubstr("its output is wrong"));
}

TEST(Tuner, AFlawedOneLeavesThePlaceToTheNext) {
  FakeLab lab([](const TuneSetting& s) { return 1e-3 / (1 + 0.2 * s.drafts); }, 0.005);
  lab.flawed = [](const TuneSetting& s) { return s.drafts == 3; };
  EXPECT_EQ(run(lab, {drafts(3)}).best.drafts, 2);
}

TEST(Tuner, LaterDimensionsBuildOnWhatWasKept) {
  FakeLab lab(
      [](const TuneSetting& s) {
        return 1e-3 / (1 + 0.3 * s.drafts) * (s.kv == runtime::KvCacheDType::kFp8 ? 0.9 : 1);
      },
      0.005);
  const TuneResult result = run(lab, {fp8_cache(), drafts(2)});
  EXPECT_EQ(result.best.kv, runtime::KvCacheDType::kFp8);
  EXPECT_EQ(result.best.drafts, 2);
  EXPECT_EQ(trial_with(result, 1).setting.kv, runtime::KvCacheDType::kFp8);
  EXPECT_NEAR(trial_with(result, 2).over_control->value, 1.6 / 0.9, 0.08);
}

TEST(Tuner, SaysWhatCannotBeTried) {
  FakeLab lab([](const TuneSetting&) { return 1e-3; }, 0.01);
  lab.impossible = [](const TuneSetting& s) { return s.drafts > 0; };
  const TuneResult result = run(lab, {drafts(2)});
  EXPECT_EQ(lab.timed, 0);
  ASSERT_EQ(result.trials.size(), 2U);
  EXPECT_EQ(result.trials[0].verdict, TuneVerdict::kImpossible);
  EXPECT_EQ(result.trials[0].why, "it is impossible");
}

// Faster while it is tried, and never again.
TEST(Tuner, WhatIsNotConfirmedIsNotChosen) {
  int calls = 0;
  FakeLab lab(
      [&](const TuneSetting& s) {
        ++calls;
        return s.drafts > 0 && calls <= 14 ? 0.5e-3 : 1e-3;  // 7 rounds of two settings
      },
      0.005);
  const TuneResult result = run(lab, {drafts(1)});
  EXPECT_EQ(result.trials[0].verdict, TuneVerdict::kKept);
  EXPECT_TRUE(result.generation.refuted);
  EXPECT_EQ(result.best, kControl);
  EXPECT_THAT(to_text(result), ::testing::HasSubstr("nothing"));
}

// Fewer threads win beside other work; who reads the profile should know.
TEST(Tuner, SaysOnceThatTheMachineWasBusy) {
  TuneResult result;
  result.control = result.best = kControl;
  result.disturbance = {.neighbours = {.others = 0.01}, .noise = 1.2};
  EXPECT_THAT(to_text(result), ::testing::Not(::testing::HasSubstr("BUSY")));
  result.disturbance = {.neighbours = {.others = 0.34}, .noise = 2};
  const std::string text = to_text(result);
  EXPECT_THAT(text, ::testing::HasSubstr("BUSY: other processes took 34 % of the cores, the host 0 "
                                         "%; the same work took up to 2.0 times as long"));
  EXPECT_EQ(text.find("BUSY"), text.rfind("BUSY"));
  EXPECT_TRUE(to_json(result).at("machine_was_busy").at("noticeable").get<bool>());
}

// Even when nothing is kept, and nothing confirmed.
TEST(Tuner, NoticesANoisyControl) {
  int calls = 0;
  FakeLab lab([&](const TuneSetting&) { return ++calls % 5 == 0 ? 3e-3 : 1e-3; }, 1e-6);
  const TuneResult result = run(lab, {drafts(1)});
  EXPECT_EQ(result.best, kControl);
  EXPECT_NEAR(result.disturbance.noise, 3, 0.1);
}

TEST(Tuner, ShowsThePerplexityOfWhatPassedTheGate) {
  FakeLab lab(
      [](const TuneSetting& s) { return s.kv == runtime::KvCacheDType::kFp8 ? 0.8e-3 : 1e-3; },
      0.005);
  const TuneResult result = run(lab, {fp8_cache()});
  EXPECT_EQ(result.best.kv, runtime::KvCacheDType::kFp8);
  EXPECT_THAT(to_text(result),
              ::testing::HasSubstr("perplexity on prose is 11.500, 1.0088 [1.0010, 1.0200] times "
                                   "the control's 11.400 (1016 predictions"));
  const auto json = to_json(result);
  const auto& perplexity = json.at("trials").at(0).at("perplexity").at(0);
  EXPECT_EQ(perplexity.at("text"), "prose");
  EXPECT_EQ(perplexity.at("perplexity"), 11.5);
  EXPECT_EQ(perplexity.at("ratio").at("value"), 1.0088);
}

TuneDimension prefix_cache() {
  return {.name = "prefix cache",
          .values = {[](TuneSetting& s) { s.prefix_cache = true; }},
          .work = TuneWork::kSharedPrefix};
}

// It does nothing for the time per token, and must not need to.
TEST(Tuner, KeepsThePrefixCacheByWorkOfItsOwn) {
  FakeLab lab([](const TuneSetting& s) { return 1e-3 / (1 + 0.2 * s.drafts); }, 0.005);
  lab.prefix_seconds = [](const TuneSetting& s) { return s.prefix_cache == true ? 0.1 : 0.2; };
  const TuneResult result = run(lab, {drafts(1), prefix_cache()});
  EXPECT_EQ(result.best.drafts, 1);
  EXPECT_EQ(result.best.prefix_cache, true);
  EXPECT_NEAR(result.shared_prefix.speed.value, 2, 0.05);
  EXPECT_NEAR(result.generation.speed.value, 1.2, 0.05);
  EXPECT_THAT(to_text(result), ::testing::HasSubstr("prefix cache: 2.0"));
  EXPECT_NEAR(to_json(result).at("prefix_cache").at("ttft_ms").get<double>(), 100, 10);
}

TEST(Tuner, APrefixCacheThatCostsTimeIsNotKept) {
  FakeLab lab([](const TuneSetting&) { return 1e-3; }, 0.005);
  lab.prefix_seconds = [](const TuneSetting& s) { return s.prefix_cache == true ? 0.23 : 0.2; };
  const TuneResult result = run(lab, {prefix_cache()});
  EXPECT_EQ(result.best, kControl);
  ASSERT_EQ(result.trials.size(), 1U);
  EXPECT_EQ(result.trials[0].verdict, TuneVerdict::kSlower);
}

// Short prompts hide what it saves; the profile must not take it from a server for that.
TEST(Tuner, AProfileSwitchesAPrefixCacheOffOnlyWhenItCosts) {
  const TuneSetting control = {.threads = 2, .prefix_cache = false};
  for (const auto& [seconds, expected] :
       {std::pair<double, std::optional<bool>>{0.1, true}, {0.2, {}}, {0.23, false}}) {
    FakeLab lab([](const TuneSetting&) { return 1e-3; }, 0.005);
    lab.prefix_seconds = [&](const TuneSetting& s) {
      return s.prefix_cache == true ? seconds : 0.2;
    };
    const std::vector<TuneDimension> dimensions = {prefix_cache()};
    EXPECT_EQ(for_profile(tune(lab, control, dimensions, kBootstrap)).prefix_cache, expected)
        << seconds;
  }
}

// Each of the two is dropped by itself.
TEST(Tuner, ARefutedPrefixCacheLeavesTheRest) {
  FakeLab lab([](const TuneSetting& s) { return 1e-3 / (1 + 0.2 * s.drafts); }, 0.005);
  int calls = 0;
  lab.prefix_seconds = [&](const TuneSetting& s) {
    return ++calls <= 21 && s.prefix_cache == true ? 0.1 : 0.2;  // 7 rounds of three settings
  };
  const TuneResult result = run(lab, {drafts(1), prefix_cache()});
  EXPECT_TRUE(result.shared_prefix.refuted);
  EXPECT_FALSE(result.generation.refuted);
  EXPECT_EQ(result.best.drafts, 1);
  EXPECT_NE(result.best.prefix_cache, true);
}

TEST(Tuner, SaysWhichDimensionsTheDeviceHasNot) {
  FakeLab lab([](const TuneSetting&) { return 1e-3; }, 0.01);
  const TuneResult result =
      run(lab, {{.name = "rounds", .values = {}, .why_none = "the host does them"}});
  EXPECT_THAT(to_text(result), ::testing::HasSubstr("not tried: rounds: the host does them"));
  EXPECT_EQ(to_json(result).at("not_tried").at(0).at("dimension"), "rounds");
}

TEST(Profile, ComesBackAsItWas) {
  const test::TempFolder folder;
  const TuneProfile profile = {.levin = "1.2.3",
                               .model = "0123456789abcdef",
                               .folder = "models/x",
                               .device = "some, 4 cores",
                               .setting = {.threads = 3,
                                           .pin_threads = true,
                                           .kv = runtime::KvCacheDType::kFp8,
                                           .ssm = runtime::SsmCacheDType::kF16,
                                           .drafts = 2,
                                           .draft_vocab = 512,
                                           .device_rounds = false,
                                           .prefix_cache = true}};
  const auto file = folder / "p.json";
  write_profile(profile, {{"tpot_ms", 1.5}}, file, Existing::kRefuse);
  const TuneProfile read = read_profile(file);
  EXPECT_EQ(read.setting, profile.setting);
  EXPECT_EQ(read.model, profile.model);
  EXPECT_EQ(read.device, profile.device);
  EXPECT_EQ(read.levin, profile.levin);
  EXPECT_THROW(write_profile(profile, {}, file, Existing::kRefuse), Error);
}

TEST(Profile, RefusesWhatIsNone) {
  const test::TempFolder folder;
  const auto file = folder / "p.json";
  const std::string good =
      R"({"levin_profile": 1, "levin": "1", "model": "m", "folder": "f", "device": "d", "settings":
          {"threads": 2, "kv_cache_dtype": "fp8", "mamba_ssm_cache_dtype": "float32",
           "num_speculative_tokens": 1}})";
  test::write_file(file, good);
  EXPECT_NO_THROW(read_profile(file));
  const std::pair<const char*, const char*> spoiled[] = {
      {R"("levin_profile": 1)", R"("levin_profile": 2)"},
      {R"("threads": 2)", R"("threads": "2")"},
      {R"("fp8")", R"("int4")"},
      {R"("float32")", R"(null)"},
      {R"("num_speculative_tokens": 1)", R"("num_speculative_tokens": 99)"},
      {R"("threads": 2)", R"("threads": 2, "pin_threads": 1)"},
      {R"("num_speculative_tokens": 1)", R"("num_speculative_tokens": 0, "draft_vocab_size": 256)"},
      {R"("threads": 2)", R"("threads": 2, "enable_prefix_caching": "on")"},
      {R"("model": "m",)", ""},
      {R"("settings":)", R"("set":)"}};
  for (const auto& [from, to] : spoiled) {
    std::string bad = good;
    bad.replace(bad.find(from), std::string(from).size(), to);
    test::write_file(file, bad);
    EXPECT_THROW(read_profile(file), Error) << to;
  }
}

TEST(Profile, RefusesUnknownKeysByName) {
  const test::TempFolder folder;
  const auto file = folder / "p.json";
  const std::string good =
      R"({"levin_profile": 1, "levin": "1", "model": "m", "folder": "f", "device": "d", "settings":
          {"threads": 2, "kv_cache_dtype": "fp8", "mamba_ssm_cache_dtype": "float32",
           "num_speculative_tokens": 1}})";
  const std::pair<const char*, const char*> added[] = {{R"("model": "m")", "modl"},
                                                       {R"("threads": 2)", "settings.modl"}};
  for (const auto& [behind, name] : added) {
    std::string bad = good;
    bad.insert(bad.find(behind), R"("modl": 1, )");
    test::write_file(file, bad);
    EXPECT_THAT(std::string(test::error_of([&] { read_profile(file); }).what()),
                testing::AllOf(testing::HasSubstr("unknown key in a profile"),
                               testing::HasSubstr(std::string("found:    ") + name + "\n"),
                               testing::HasSubstr("p.json")));
  }
}

TEST(Profile, TellsModelsApartByWhatTheyHold) {
  namespace fs = std::filesystem;
  const fs::path tiny = fs::path(LEVIN_SOURCE_DIR) / "models/tiny";
  const test::TempFolder folder;
  const auto copy = folder / "copy";
  fs::copy(tiny, copy);
  const std::string fingerprint = model_fingerprint(*checkpoint::Checkpoint::open(tiny));
  TuneProfile profile;
  profile.model = fingerprint;
  EXPECT_NO_THROW(require_made_for(profile, "p.json", copy));  // the same model elsewhere
  std::string config = read_text(copy / "config.json");
  const std::size_t at = config.find("\"norm_eps\"");
  ASSERT_NE(at, std::string::npos);
  config.insert(at, "\"levin_test\": 1, ");
  fs::remove(copy / "config.json");
  test::write_file(copy / "config.json", config);
  EXPECT_THROW(require_made_for(profile, "p.json", copy), Error);
}

}  // namespace
}  // namespace levin::bench
