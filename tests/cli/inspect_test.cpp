#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "support/dummy_tensors.h"

namespace levin::cli {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

struct Result {
  ExitCode code = ExitCode::kDone;
  std::string text;
};

Result inspect(std::vector<std::string> arguments) {
  CLI::App app;
  Action action;
  add_inspect(app, action);
  arguments.insert(arguments.begin(), "inspect");
  std::reverse(arguments.begin(), arguments.end());
  app.parse(arguments);
  ::testing::internal::CaptureStdout();
  Result result;
  try {
    result.code = action();
  } catch (...) {
    ::testing::internal::GetCapturedStdout();
    throw;
  }
  result.text = ::testing::internal::GetCapturedStdout();
  return result;
}

const std::string kSource = LEVIN_SOURCE_DIR;

TEST(Inspect, Lightning) {
  const Result text =
      inspect({kSource + "/configs/nemotron-3.5-lightning-30b-a3b", "--load-format", "dummy"});
  EXPECT_EQ(text.code, ExitCode::kDone);
  for (const char* part : {"MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME", "32,913,266,240",
                           "6,513", "6,144 B/token", "49,082,368 B/sequence"}) {
    EXPECT_THAT(text.text, HasSubstr(part));
  }
  const Result result = inspect(
      {kSource + "/configs/nemotron-3.5-lightning-30b-a3b", "--load-format", "dummy", "--json"});
  const json out = json::parse(result.text);
  EXPECT_EQ(out["tensors"], 6513);
  EXPECT_EQ(out["parameters"], 32913266240);
  EXPECT_EQ(out["bytes"], 2 * 32913266240 + 24 * 128 * 2);  // router biases are F32
  EXPECT_EQ(out["memory"]["kv_bytes_per_token"], 6144);
  EXPECT_EQ(out["memory"]["recurrent_bytes_per_sequence"], 49082368);
  EXPECT_EQ(out["good"], true);
}

// The same shape in four bits, from its metadata: what bench times with random weights.
TEST(Inspect, LightningInNvfp4) {
  const Result result = inspect({kSource + "/configs/nemotron-3.5-lightning-30b-a3b-nvfp4",
                                 "--load-format", "dummy", "--json"});
  ASSERT_EQ(result.code, ExitCode::kDone);
  const json out = json::parse(result.text);
  EXPECT_EQ(out["parameters"], 32913266240);
  EXPECT_EQ(out["bytes"], 19268887552) << "4.5 bits each but embeddings, routers and attention";
}

// The plan without quantizing, and the sums of the checkpoint that it would make.
TEST(Inspect, RecipeShowsThePlanAndItsCosts) {
  const std::vector<std::string> lightning = {kSource + "/configs/nemotron-3.5-lightning-30b-a3b",
                                              "--load-format", "dummy", "--recipe"};
  const auto planned = [&](const std::string& recipe, bool as_json) {
    std::vector<std::string> arguments = lightning;
    arguments.push_back(recipe);
    if (as_json) arguments.emplace_back("--json");
    return inspect(arguments).text;
  };
  const std::string text = planned("w4a4-full", false);
  for (const char* part : {"as planned by w4a4-full", "NVFP4 W4A4          5888",
                           "'*mixer.experts.*weight_quantizer'", "19.909 GB"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  const json int4 = json::parse(planned("int4-g64", true));
  EXPECT_EQ(int4["plan"]["recipe"], "int4-g64");
  EXPECT_NEAR(int4["bytes"], 20.49e9, 0.005e9);
  EXPECT_LT(int4["decode_step"]["bytes"], 3e9);
  EXPECT_EQ(int4["memory"]["kv_bytes_per_token"], 6144);
  const json aggressive = json::parse(planned("nvfp4-aggressive-mse", true));
  EXPECT_EQ(aggressive["memory"]["kv_bytes_per_token"], 3072);
}

// Parts of the plan, as docs/recipes.md shows them.
TEST(Inspect, RecipeReproducesThePublishedSizes) {
  const auto sizes = [](const std::string& recipe) {
    const json out = json::parse(inspect({kSource + "/configs/nemotron-3.5-lightning-30b-a3b",
                                          "--load-format", "dummy", "--recipe", recipe, "--json"})
                                     .text);
    std::map<std::string, double> gigabytes;
    for (const json& part : out["parts"]) {
      const std::string name = part["part"];
      gigabytes[name.starts_with("mtp") ? "mtp" : name] += part["bytes"].get<double>() / 1e9;
      gigabytes["all"] += part["bytes"].get<double>() / 1e9;
    }
    return gigabytes;
  };
  constexpr double kHalf = 0.0051;  // the published figures have two digits
  auto int4 = sizes("int4-g64");
  EXPECT_NEAR(int4["routed experts"], 15.61, kHalf);
  EXPECT_NEAR(int4["mamba"] + int4["attention"], 0.55, kHalf);
  EXPECT_NEAR(int4["shared experts"], 0.24, kHalf);
  EXPECT_NEAR(int4["mtp"], 2.67, kHalf);
  EXPECT_NEAR(int4["embeddings"] + int4["lm_head"], 1.41, kHalf);
  EXPECT_NEAR(int4["router"], 0.02, kHalf);
  EXPECT_NEAR(int4["all"], 20.49, kHalf);
  EXPECT_NEAR(sizes("w4a4-full")["all"], 19.9, 0.051);
}

TEST(Inspect, RecipeOnTheTinyModelSaysWhatQuantizingWrites) {
  const json plan =
      json::parse(inspect({kSource + "/models/tiny", "--recipe", "fp8", "--json"}).text);
  const json plain = json::parse(inspect({kSource + "/models/tiny", "--json"}).text);
  EXPECT_EQ(plain["tensors"], 335);
  EXPECT_GT(plan["tensors"], 335);  // scales
  EXPECT_LT(plan["bytes"], plain["bytes"]);
  EXPECT_LT(plan["decode_step"]["bytes"], plain["decode_step"]["bytes"]);
  EXPECT_THROW(inspect({kSource + "/models/tiny", "--recipe", "no-such"}), Error);
  // Scales are what the checkpoint that is not there yet will have.
  EXPECT_THAT(inspect({kSource + "/models/tiny", "--recipe", "fp8"}).text,
              testing::AllOf(HasSubstr("values        all finite\n"),
                             testing::Not(HasSubstr("all scales"))));
}

TEST(Inspect, DeviceShowsHowLinearsAreExecuted) {
  const std::string text = inspect({kSource + "/models/tiny", "--device", "cpu"}).text;
  for (const char* part :
       {"executed as", "fast CPU runtime", "mtp routed experts", "bf16 x bf16"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  const json out =
      json::parse(inspect({kSource + "/models/tiny", "--device", "cpu", "--json"}).text);
  std::map<std::string, int64_t> shown;
  for (const json& line : out["device"]["lines"]) {
    shown[line["part"]] += line["linears"].get<int64_t>();
  }
  EXPECT_EQ(shown["routed experts"], 2 * shown["router"] * 16);
  EXPECT_EQ(shown["lm_head"], 1);
  EXPECT_FALSE(json::parse(inspect({kSource + "/models/tiny", "--json"}).text).contains("device"));
}

TEST(Inspect, FlagsChangeTheStep) {
  const auto step = [](std::vector<std::string> flags) {
    flags.insert(flags.begin(), {kSource + "/models/tiny", "--json"});
    return json::parse(inspect(flags).text);
  };
  const json plain = step({});
  EXPECT_EQ(plain["decode_step"]["context"], 2048);  // as long as the model allows
  const json batch = step({"--context", "100", "--max-num-seqs", "4"});
  EXPECT_EQ(batch["decode_step"]["sequences"], 4);
  EXPECT_EQ(batch["decode_step"]["kv_bytes"], 4 * 101 * 1024);
  EXPECT_EQ(batch["decode_step"]["state_bytes"], 4 * 2 * 814080);
  const json small = step({"--kv-cache-dtype", "fp8", "--mamba-ssm-cache-dtype", "float16"});
  EXPECT_EQ(small["memory"]["kv_bytes_per_token"], 512);
  EXPECT_EQ(small["memory"]["ssm_bytes_per_sequence"], 786432 / 2);
}

TEST(Inspect, TinyModelIsGood) {
  const Result result = inspect({kSource + "/models/tiny"});
  EXPECT_EQ(result.code, ExitCode::kDone);
  EXPECT_THAT(result.text, HasSubstr("values        all finite\n"));
}

TEST(Inspect, ContradictionsAndProblemsGiveExitCodeOne) {
  json config = test::small_config();
  config["quantization_config"] = {
      {"quant_method", "modelopt"},
      {"quant_algo", "MIXED_PRECISION"},
      {"ignore", {"lm_*"}},
      {"quantized_layers", {{"lm_head", {{"quant_algo", "W4A16_NVFP4"}}}}}};
  auto tensors = test::dummy_tensors(config);
  test::erase_tensor(tensors, "backbone.norm_f.weight");
  const test::TempFolder folder;
  test::write_checkpoint(folder.path(), config, tensors);
  const Result text = inspect({folder.path().string()});
  EXPECT_EQ(text.code, ExitCode::kNo);
  EXPECT_THAT(text.text, HasSubstr("CONTRADICTS ITSELF"));
  EXPECT_THAT(text.text, HasSubstr("ignores \"lm_*\""));
  EXPECT_THAT(text.text, HasSubstr("1 PROBLEM\n"));
  EXPECT_THAT(text.text, HasSubstr("backbone.norm_f.weight"));
  const json out = json::parse(inspect({folder.path().string(), "--json"}).text);
  EXPECT_EQ(out["good"], false);
  EXPECT_EQ(out["problems"].size(), 1U);
  EXPECT_EQ(out["contradictions"].size(), 1U);
}

TEST(Inspect, DamagedValuesGiveExitCodeOne) {
  auto tensors = test::dummy_tensors(test::small_config());
  auto& head = test::tensor_named(tensors, "lm_head.weight");
  head.bytes.assign(head.bytes.size(), '\xff');
  const test::TempFolder folder;
  test::write_checkpoint(folder.path(), test::small_config(), tensors);
  const Result result = inspect({folder.path().string()});
  EXPECT_EQ(result.code, ExitCode::kNo);
  EXPECT_THAT(result.text, HasSubstr("not finite"));
}

TEST(Inspect, DamagedFilesAreErrors) {
  const test::TempFolder folder;
  test::write_file(folder / "config.json", test::small_config().dump());
  test::write_file(folder / "model.safetensors", "nonsense");
  EXPECT_THROW(inspect({folder.path().string()}), Error);
  EXPECT_THROW(inspect({"/no/such/folder"}), Error);
}

TEST(Inspect, NotesAreNotContradictions) {
  json config = test::small_config();
  config["quantization_config"] = {
      {"quant_method", "modelopt"}, {"quant_algo", "FP8"}, {"ignore", {"vision*", "lm_head"}}};
  auto tensors = test::dummy_tensors(config);
  std::erase_if(tensors, [](const auto& tensor) { return tensor.name.starts_with("mtp."); });
  const test::TempFolder folder;
  test::write_checkpoint(folder.path(), config, tensors);
  const Result result = inspect({folder.path().string()});
  EXPECT_EQ(result.code, ExitCode::kDone);
  EXPECT_THAT(result.text, HasSubstr("matches no module"));
  EXPECT_THAT(result.text, HasSubstr("announces an MTP head"));
}

}  // namespace
}  // namespace levin::cli
