// Climbs on the bundled model, killed and resumed.
#include "bench/ladder.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "bench/ladder_checkpoints.h"
#include "core/error.h"
#include "core/files.h"
#include "core/progress.h"

namespace levin::bench {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

class LadderTest : public testing::Test {
 protected:
  LadderTest()
      : out_(fs::path(testing::TempDir()) /
             ("levin_ladder_" + std::to_string(::getpid()) + "_" +
              testing::UnitTest::GetInstance()->current_test_info()->name())) {
    Progress::set_enabled(false);
    fs::remove_all(out_);
  }
  ~LadderTest() override { fs::remove_all(out_); }

  // One item per task, one short window, few short rounds; no recipe that needs calibration.
  LadderOptions options(const std::string& rungs) const {
    LadderOptions options;
    options.model = LEVIN_SOURCE_DIR "/models/tiny";
    options.out = out_;
    options.rungs = rungs;
    options.evaluation.texts = {LEVIN_SOURCE_DIR "/evals/tiny/text/prose.jsonl"};
    options.evaluation.tasks = {LEVIN_SOURCE_DIR "/evals/tiny/tasks"};
    options.evaluation.task_limit = 1;
    options.evaluation.text = {.window = 128, .max_windows = 2};
    options.evaluation.task.max_tokens = 64;
    options.gate = evaluate::load_gate(LEVIN_SOURCE_DIR "/recipes/gate.yaml");
    options.timing = {.output_tokens = 8, .rounds = 2, .warm_up = 0};
    options.prompt_tokens = 16;
    options.version = "test";
    return options;
  }

  // Result files and when they were written.
  std::map<std::string, fs::file_time_type> results() const {
    std::map<std::string, fs::file_time_type> times;
    for (const auto& entry : fs::directory_iterator(out_ / "results")) {
      times[entry.path().filename().string()] = fs::last_write_time(entry.path());
    }
    return times;
  }

  fs::path out_;
};

TEST_F(LadderTest, ClimbsAndResumes) {
  int told = 0;
  const LadderReport first = climb(options("int4-g64,7"), [&](const LadderReport& so_far) {
    EXPECT_EQ(static_cast<int>(so_far.rungs.size()), ++told);
  });
  EXPECT_EQ(told, 3);
  ASSERT_EQ(first.rungs.size(), 3u);
  const RungResult& baseline = first.rungs[0];
  const RungResult& int4 = first.rungs[1];
  EXPECT_EQ(median_recovery(baseline, baseline), 1);
  EXPECT_EQ(baseline.evaluation.texts[0].mean_kl(), 0);
  EXPECT_EQ(int4.evaluation.items.size(), 11u);
  EXPECT_GT(int4.evaluation.texts[0].mean_kl(), 0);
  EXPECT_LT(int4.checkpoint_bytes, baseline.checkpoint_bytes / 2);
  EXPECT_LT(int4.prediction.bytes_per_token, baseline.prediction.bytes_per_token);
  EXPECT_EQ(int4.timing.baseline.tpot.size(), 2u);
  EXPECT_TRUE(fs::exists(out_ / "checkpoints" / "int4-g64" / "config.json"));
  EXPECT_FALSE(first.rungs[2].climbed());

  const auto written = results();
  const LadderReport second = climb(options("int4-g64,7"));
  EXPECT_EQ(results(), written);  // everything was there
  EXPECT_EQ(second.rungs[1].timing.own.tpot, int4.timing.own.tpot);
  const auto before = to_json(first).at("rungs").at(1);
  const auto after = to_json(second).at("rungs").at(1);
  for (const char* part : {"timing", "texts", "tasks", "gate"}) {
    EXPECT_EQ(after.at(part).dump(), before.at(part).dump()) << part;
  }

  // Results of one checkpoint must not stand beside the size of another.
  write_text(out_ / "checkpoints/int4-g64/notes.txt", "edited");
  EXPECT_THROW(climb(options("int4-g64,7")), Error);
}

TEST_F(LadderTest, KnowsWhatTheDiskHasToTake) {
  const auto described = [&](const std::string& recipe) {
    return describe_checkpoint({.model = LEVIN_SOURCE_DIR "/models/tiny",
                                .recipe = recipe,
                                .out = out_ / recipe,
                                .calibration = {},
                                .calibration_tokens = 0,
                                .version = "test",
                                .threads = 0});
  };
  const std::vector<LadderCheckpoint> all = {described(""), described("int4-g64"),
                                             described("w4a16"), described("w4a16")};
  EXPECT_EQ(all[0].bytes, 0u);
  EXPECT_GT(all[1].bytes, uint64_t{10'000'000});
  EXPECT_LT(all[1].bytes, uint64_t{20'000'000});
  EXPECT_EQ(bytes_to_write(all), all[1].bytes + all[2].bytes);
  create_folder(out_ / "w4a16");
  write_text(out_ / "w4a16" / "part", "half");
  EXPECT_EQ(bytes_to_write(all), all[1].bytes + all[2].bytes - 4);
}

TEST_F(LadderTest, OtherSettingsAreEvaluatedAgain) {
  climb(options("0"));
  const auto written = results();
  LadderOptions longer = options("0");
  longer.evaluation.text.max_windows = 1;
  climb(longer);
  EXPECT_NE(results().at("evaluation-bf16.json"), written.at("evaluation-bf16.json"));
  EXPECT_EQ(results().at("timing-0.json"), written.at("timing-0.json"));
}

// Killed as soon as `file` exists, a climb goes on and keeps what was finished.
TEST_F(LadderTest, SurvivesBeingKilled) {
  const pid_t child = ::fork();
  if (child == 0) {
    climb(options("int4-g64"));
    ::_exit(0);
  }
  const fs::path finished = out_ / "results" / "evaluation-bf16.json";
  int status = 0;
  pid_t ended = 0;
  while (!fs::exists(finished) && ended == 0) {
    std::this_thread::sleep_for(10ms);
    ended = ::waitpid(child, &status, WNOHANG);
  }
  ::kill(child, SIGKILL);
  if (ended == 0) ::waitpid(child, &status, 0);
  ASSERT_TRUE(fs::exists(finished));
  const fs::file_time_type kept = fs::last_write_time(finished);

  const LadderReport report = climb(options("int4-g64"));
  EXPECT_EQ(report.rungs.size(), 2u);
  EXPECT_EQ(fs::last_write_time(finished), kept);
}

}  // namespace
}  // namespace levin::bench
