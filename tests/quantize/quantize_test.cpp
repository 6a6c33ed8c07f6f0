// The whole command: what may go wrong before, during and after a conversion.
#include "quantize/quantize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <thread>

#include "core/progress.h"
#include "core/small_floats.h"
#include "quantize/progress_file.h"
#include "quantize/report.h"
#include "quantize/run.h"

namespace levin::quantize {
namespace {

namespace fs = std::filesystem;
using test::files_of;
using test::quantize_options;
using test::TempFolder;
using testing::HasSubstr;

const std::string kTiny = LEVIN_SOURCE_DIR "/models/tiny";

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

class Quantize : public testing::Test {
 protected:
  void SetUp() override { Progress::set_enabled(false); }

  TempFolder folder_;
  fs::path model_ = folder_ / "model";
  fs::path out_ = folder_ / "out";
};

// Runs `work` in a child process; returns its wait status. The child's failure is its exit code.
int in_child(const std::function<void()>& work) {
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      work();
    } catch (const Error& error) {
      ::_exit(static_cast<int>(error.exit_code()));
    } catch (...) {
      ::_exit(99);
    }
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

TEST_F(Quantize, ThreadsAndMemoryDoNotChangeTheBytes) {
  test::write_small_model(model_);
  Options options = quantize_options(model_, "w4a16", out_);
  options.threads = 1;
  quantize(options);
  options.output = folder_ / "other";
  options.threads = 3;
  options.memory_bytes = kMinMemory;
  quantize(options);
  EXPECT_EQ(files_of(out_), files_of(options.output));
  EXPECT_TRUE(files_of(out_).contains("generation_config.json"));
  EXPECT_FALSE(fs::exists(out_ / ".levin-partial"));
}

TEST_F(Quantize, NamesTheFolderOfATensorThatDoesNotFit) {
  test::write_small_model(model_);
  nlohmann::json config = read_json(model_ / "config.json");
  config["n_routed_experts"] = 3;  // of four
  std::ofstream(model_ / "config.json") << config;
  EXPECT_THAT(test::error_of([&] { quantize(quantize_options(model_, "w4a16", out_)); }).what(),
              testing::AllOf(HasSubstr("wrong shape"), HasSubstr(model_.string())));
}

TEST_F(Quantize, ReportsErrorsAndSizesByClass) {
  test::write_small_model(model_);
  const Result result = quantize(quantize_options(model_, "w4a16", out_));
  const nlohmann::ordered_json json = result_json(result);
  EXPECT_GT(json["errors"].size(), 4U);
  for (const auto& entry : json["errors"]) {
    EXPECT_NEAR(entry["relative_rms_error"].get<double>(), 0.087, 0.012) << entry;
    EXPECT_NEAR(entry["bits_per_weight"].get<double>(), 4.5, 0.04) << entry;
  }
  EXPECT_LT(json["bytes_after"], json["bytes_before"]);
  EXPECT_THAT(result_text(result, "out"), HasSubstr("routed experts, NVFP4 W4A16"));
}

TEST_F(Quantize, RefusesFoldersThatAreNotItsOwn) {
  test::write_small_model(model_);
  EXPECT_THAT(test::error_of([&] { quantize(quantize_options(model_, "w4a16", model_)); }).what(),
              HasSubstr("model's own folder"));
  fs::create_directories(out_);
  test::write_file(out_ / "letter.txt", "dear");
  EXPECT_THAT(test::error_of([&] { quantize(quantize_options(model_, "w4a16", out_)); }).what(),
              HasSubstr("not empty"));
  EXPECT_EQ(files_of(out_).size(), 1U);
  test::write_file(folder_ / "file", "x");
  EXPECT_THAT(
      test::error_of([&] { quantize(quantize_options(model_, "w4a16", folder_ / "file")); }).what(),
      HasSubstr("not a folder"));
}

TEST_F(Quantize, OverwriteReplacesTheCheckpointAndKeepsOtherFiles) {
  test::write_small_model(model_, 3);
  quantize(quantize_options(model_, "w4a16", out_));
  test::write_file(out_ / "letter.txt", "dear");
  fs::remove_all(model_);
  test::write_small_model(model_, 2);  // other shard names
  Options options = quantize_options(model_, "w4a16", out_);
  EXPECT_THROW(quantize(options), Error);
  options.overwrite = true;
  quantize(options);
  auto files = files_of(out_);
  EXPECT_EQ(files.erase("letter.txt"), 1U);
  quantize(quantize_options(model_, "w4a16", folder_ / "fresh"));
  EXPECT_EQ(files, files_of(folder_ / "fresh"));
}

TEST_F(Quantize, RefusesAQuantizedSource) {
  test::write_small_model(model_);
  quantize(quantize_options(model_, "w4a16", out_));
  const Error error =
      test::error_of([&] { quantize(quantize_options(out_, "w4a16", folder_ / "again")); });
  EXPECT_THAT(error.what(), HasSubstr("quantized already"));
  EXPECT_FALSE(fs::exists(folder_ / "again"));
}

TEST_F(Quantize, RefusesAnIncompleteSource) {
  auto tensors = test::dummy_tensors(test::small_config());
  test::erase_tensor(tensors, "backbone.layers.1.mixer.experts.2.up_proj.weight");
  fs::create_directories(model_);
  test::write_checkpoint(model_, test::small_config(), tensors);
  const Error error = test::error_of([&] { quantize(quantize_options(model_, "w4a16", out_)); });
  EXPECT_THAT(error.what(), HasSubstr("experts.2.up_proj"));
  EXPECT_FALSE(fs::exists(out_));
}

TEST_F(Quantize, CalibratedRecipesNeedText) {
  const Error error = test::error_of([&] { quantize(quantize_options(kTiny, "w4a4", out_)); });
  EXPECT_THAT(error.what(), HasSubstr("--calibration"));
  EXPECT_FALSE(fs::exists(out_));
}

TEST_F(Quantize, ImpossibleMemoryBoundsAreRefused) {
  test::write_small_model(model_);
  Options options = quantize_options(model_, "w4a16", out_);
  options.memory_bytes = kMinMemory - 1;
  EXPECT_THAT(test::error_of([&] { quantize(options); }).what(), HasSubstr("at least 128 MB"));
}

TEST_F(Quantize, CalibrationOfAModelThatDoesNotFitIsRefused) {
  nlohmann::json config = test::small_config();
  config["vocab_size"] = 300'000;
  fs::create_directories(model_);
  auto tensors = test::dummy_tensors(test::small_config());
  for (const char* name : {"backbone.embeddings.weight", "lm_head.weight"}) {
    test::tensor_named(tensors, name) =
        test::filled_tensor(name, DType::kBF16, {300'000, 64}, '\x3d');
  }
  test::write_checkpoint(model_, config, tensors);
  Options options = quantize_options(model_, "w4a4", out_);
  options.calibration.emplace();
  options.calibration->text = LEVIN_SOURCE_DIR "/evals/tiny/text/prose.jsonl";
  options.memory_bytes = kMinMemory;
  const Error error = test::error_of([&] { quantize(options); });
  EXPECT_THAT(error.what(), HasSubstr("calibration runs the model"));
  EXPECT_EQ(error.exit_code(), ExitCode::kMachine);
}

TEST_F(Quantize, UnfinishedConversionOfSomethingElseIsNotContinued) {
  test::write_small_model(model_);
  // A conversion that stops: the second shard's weights are not numbers.
  auto tensors = test::dummy_tensors(test::small_config());
  auto& head = test::tensor_named(tensors, "lm_head.weight");
  const std::string good = head.bytes;
  const uint16_t nan = 0x7fc0;
  std::memcpy(head.bytes.data(), &nan, sizeof(nan));
  test::write_checkpoint(model_, test::small_config(), tensors, 3);
  EXPECT_THROW(quantize(quantize_options(model_, "w4a16", out_)), Error);
  EXPECT_TRUE(fs::exists(out_ / ".levin-partial"));
  EXPECT_FALSE(fs::exists(out_ / "config.json"));

  const Error recipe = test::error_of([&] { quantize(quantize_options(model_, "fp8", out_)); });
  EXPECT_THAT(recipe.what(), HasSubstr("calibration"));
  const Error other = test::error_of([&] { quantize(quantize_options(model_, "int4-g64", out_)); });
  EXPECT_THAT(other.what(), testing::AnyOf(HasSubstr("different: recipe"), HasSubstr("group")));

  // The repaired source has another time stamp: what was converted before cannot be trusted.
  head.bytes = good;
  test::write_checkpoint(model_, test::small_config(), tensors, 3);
  const Error source = test::error_of([&] { quantize(quantize_options(model_, "w4a16", out_)); });
  EXPECT_THAT(source.what(), HasSubstr("different: source"));
  Options options = quantize_options(model_, "w4a16", out_);
  options.overwrite = true;
  EXPECT_FALSE(quantize(options).resumed);
  EXPECT_TRUE(fs::exists(out_ / "config.json"));
}

TEST_F(Quantize, DamagedProgressRecordIsAnErrorUnlessOverwritten) {
  test::write_small_model(model_);
  for (const char* record : {"", "{", "{\"identity\": 1}", "[]"}) {
    fs::create_directories(out_ / ".levin-partial");
    test::write_file(out_ / ".levin-partial/progress.json", record);
    Options options = quantize_options(model_, "w4a16", out_);
    EXPECT_THROW(quantize(options), Error) << record;
    options.overwrite = true;
    EXPECT_NO_THROW(quantize(options)) << record;
    fs::remove_all(out_);
  }
}

TEST_F(Quantize, LostFilesOfAnUnfinishedConversionAreNotSuccess) {
  test::write_small_model(model_, 3);
  for (const char* stage : {"retire", "publish"}) {
    const int status = in_child([&] {
      std::signal(SIGXFSZ, SIG_IGN);
      ::rlimit limit{20'000, 20'000};
      ::setrlimit(RLIMIT_FSIZE, &limit);
      quantize(quantize_options(model_, "w4a16", out_));
    });
    ASSERT_NE(WEXITSTATUS(status), 0);
    const fs::path record = out_ / ".levin-partial/progress.json";
    if (!fs::exists(record)) GTEST_SKIP() << "no shard is that small";
    nlohmann::json json = read_json(record);
    json["stage"] = stage;
    test::write_file(record, json.dump());
    EXPECT_THAT(test::error_of([&] { quantize(quantize_options(model_, "w4a16", out_)); }).what(),
                HasSubstr("are gone"));
    fs::remove_all(out_);
  }
}

TEST_F(Quantize, InputErrorsLeaveNothing) {
  test::write_small_model(model_, 3);
  fs::remove(model_ / "generation_config.json");
  fs::create_symlink("/nonexistent", model_ / "generation_config.json");
  EXPECT_THAT(test::error_of([&] { quantize(quantize_options(model_, "w4a16", out_)); }).what(),
              HasSubstr("symbolic link leads nowhere"));
  EXPECT_FALSE(fs::exists(out_));
}

TEST_F(Quantize, LinksAndFoldersInTheWayAreRefused) {
  test::write_small_model(model_);
  fs::create_directories(folder_ / "user/files");
  fs::create_directories(out_);
  fs::create_symlink(folder_ / "user", out_ / ".levin-partial");
  Options options = quantize_options(model_, "w4a16", out_);
  EXPECT_THAT(test::error_of([&] { quantize(options); }).what(), HasSubstr("symbolic link"));
  EXPECT_TRUE(fs::exists(folder_ / "user/files"));
  fs::remove(out_ / ".levin-partial");
  quantize(options);
  fs::create_directories(out_ / "x.safetensors/mine");
  options.overwrite = true;
  EXPECT_THAT(test::error_of([&] { quantize(options); }).what(), HasSubstr("in the way"));
  EXPECT_TRUE(fs::exists(out_ / "config.json"));
  fs::create_symlink("nowhere", folder_ / "dangling");
  EXPECT_THAT(test::error_of([&] {
                quantize(quantize_options(model_, "w4a16", folder_ / "dangling"));
              }).what(),
              HasSubstr("leads nowhere"));
}

TEST_F(Quantize, NamesOfFilesNeedNotBeUtf8) {
  test::write_small_model(model_);
  test::write_file(model_ / "notes\xff.txt", "x");
  quantize(quantize_options(model_, "w4a16", out_));
  EXPECT_TRUE(fs::exists(out_ / "notes\xff.txt"));
}

TEST_F(Quantize, RunThatWasKilledBeforeItsFirstRecordIsStartedAgain) {
  test::write_small_model(model_);
  fs::create_directories(out_ / ".levin-partial");
  EXPECT_FALSE(quantize(quantize_options(model_, "w4a16", out_)).resumed);
  EXPECT_TRUE(fs::exists(out_ / "config.json"));
}

TEST_F(Quantize, TwoProcessesDoNotWriteToOneFolder) {
  test::write_small_model(model_);
  const ProgressFile other(out_, "identity", false);
  const Error error = test::error_of([&] { quantize(quantize_options(model_, "w4a16", out_)); });
  EXPECT_THAT(error.what(), HasSubstr("another process"));
  EXPECT_EQ(error.exit_code(), ExitCode::kMachine);
}

// kill -9 at many moments; afterwards the same command finishes the work, and the bytes are those
// of an undisturbed run. At no moment does the folder look finished without being so.
TEST_F(Quantize, KilledAnywhereItResumesToTheSameBytes) {
  test::write_small_model(model_, 8);
  const Options clean = quantize_options(model_, "w4a16", folder_ / "clean");
  const auto start = std::chrono::steady_clock::now();
  quantize(clean);
  const auto whole = std::chrono::steady_clock::now() - start;
  const auto expected = files_of(clean.output);

  constexpr int kKills = 12;
  int killed = 0;
  for (int i = 0; i < kKills; ++i) {
    const Options options =
        quantize_options(model_, "w4a16", folder_ / ("out" + std::to_string(i)));
    const pid_t child = ::fork();
    if (child == 0) {
      quantize(options);
      ::_exit(0);
    }
    std::this_thread::sleep_for(whole * (2 * i + 1) / (2 * kKills));
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    if (WIFSIGNALED(status)) ++killed;
    if (fs::exists(options.output / "config.json")) {
      for (const auto& [name, bytes] : expected) {
        ASSERT_TRUE(fs::exists(options.output / name)) << name << " after kill " << i;
      }
    }
    if (!WIFSIGNALED(status)) continue;
    // Killed behind its last step it is finished, and is not begun again; a lock may be left.
    const bool finished =
        fs::exists(options.output / "config.json") && !ProgressFile::exists(options.output);
    if (!finished) quantize(options);
    auto found = files_of(options.output);
    if (finished) found.erase(".levin-partial/lock");
    EXPECT_EQ(found, expected) << "killed at " << i << "/" << kKills;
    fs::remove_all(options.output);
  }
  EXPECT_GT(killed, 2);
}

// Every step of publishing, interrupted right after it.
TEST_F(Quantize, InterruptedPublishingIsCompleted) {
  test::write_small_model(model_);
  quantize(quantize_options(model_, "w4a16", folder_ / "clean"));
  const auto expected = files_of(folder_ / "clean");
  for (std::size_t moved = 0; moved <= expected.size(); ++moved) {
    // The state of a conversion that has moved this many files: take a finished folder apart again.
    Options options = quantize_options(model_, "w4a16", out_);
    Source source = open_source(model_, "w4a16", model::LoadFormat::kAuto);
    fs::remove_all(out_);
    quantize(options);
    std::vector<std::string> names;
    for (const auto& [name, bytes] : expected) {
      if (name != "config.json") names.push_back(name);
    }
    names.emplace_back("config.json");
    fs::create_directories(out_ / ".levin-partial/files");
    for (std::size_t i = moved; i < names.size(); ++i) {
      fs::rename(out_ / names[i], out_ / ".levin-partial/files" / names[i]);
    }
    // The record of that moment, from a run that stops before it publishes.
    const TempFolder elsewhere;
    options.output = elsewhere.path();
    const int status = in_child([&] {
      ::rlimit limit{1000, 1000};
      std::signal(SIGXFSZ, SIG_IGN);
      ::setrlimit(RLIMIT_FSIZE, &limit);
      quantize(options);
    });
    ASSERT_NE(status, 0);
    nlohmann::json record =
        nlohmann::json::parse(files_of(elsewhere.path()).at(".levin-partial/progress.json"));
    record["stage"] = "publish";
    test::write_file(out_ / ".levin-partial/progress.json", record.dump());

    options.output = out_;
    quantize(options);
    EXPECT_EQ(files_of(out_), expected) << moved;
  }
}

// A limit on the size of files stands in for a full disk: the same code path, without root.
TEST_F(Quantize, DiskFullIsAnErrorAndTheRunCanBeContinued) {
  const Options options = quantize_options(kTiny, "w4a16", out_);
  const int status = in_child([&] {
    std::signal(SIGXFSZ, SIG_IGN);
    // Enough for the smallest shard only.
    ::rlimit limit{4'050'000, 4'050'000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    quantize(options);
  });
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), static_cast<int>(ExitCode::kMachine));
  EXPECT_FALSE(fs::exists(out_ / "config.json"));
  EXPECT_TRUE(fs::exists(out_ / ".levin-partial/progress.json"));

  EXPECT_TRUE(quantize(options).resumed);
  quantize(quantize_options(kTiny, "w4a16", folder_ / "clean"));
  EXPECT_EQ(files_of(out_), files_of(folder_ / "clean"));
}

int64_t peak_resident_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6)) * 1024;
  }
  return -1;
}

// A 256 MB checkpoint through 128 MB of memory, source pages included.
TEST_F(Quantize, StaysWithinTheMemoryBound) {
  if (kSanitized) GTEST_SKIP() << "sanitizers need memory of their own";
  nlohmann::json config = test::small_config();
  config["vocab_size"] = 1'000'000;
  fs::create_directories(model_);
  std::vector<test::TestTensor> tensors = test::dummy_tensors(test::small_config());
  std::string big(std::size_t{1'000'000} * 64 * 2, '\0');
  for (std::size_t i = 0; i + 1 < big.size(); i += 2) {
    const uint16_t bits =
        float_to_bf16(static_cast<float>(static_cast<int>(i * 2654435761U % 2001) - 1000) / 1e4F);
    std::memcpy(big.data() + i, &bits, sizeof(bits));
  }
  for (const char* name : {"backbone.embeddings.weight", "lm_head.weight"}) {
    auto& tensor = test::tensor_named(tensors, name);
    tensor.shape = {1'000'000, 64};
    tensor.bytes = big;
  }
  test::write_checkpoint(model_, config, tensors);
  big.clear();
  big.shrink_to_fit();
  tensors.clear();
  test::write_file(folder_ / "r.yaml", R"(
quantize:
  quant_cfg:
    - quantizer_name: '*'
      enable: false
    - quantizer_name: '*weight_quantizer'
      cfg: {num_bits: e2m1, block_sizes: {-1: 16, type: dynamic, scale_bits: e4m3}}
)");
  Options options = quantize_options(model_, folder_ / "r.yaml", out_);
  options.memory_bytes = kMinMemory;
  const int status = in_child([&] {
    std::ofstream("/proc/self/clear_refs") << "5";  // forget the peak so far
    const int64_t before = peak_resident_bytes();
    quantize(options);
    // What the parent had in memory at the fork does not count.
    const int64_t used = peak_resident_bytes() - std::max<int64_t>(0, before - (int64_t{24} << 20));
    if (used > options.memory_bytes) {
      throw Error(
          {.what = "too much memory", .where = {}, .expected = {}, .found = {}, .hint = {}});
    }
  });
  EXPECT_EQ(status, 0);
  EXPECT_GT(fs::file_size(model_ / "model.safetensors"), 250'000'000U);
}

}  // namespace
}  // namespace levin::quantize
