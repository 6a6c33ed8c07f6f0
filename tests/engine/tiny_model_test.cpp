// The engine on the bundled model: loading, and speculation with its real draft head.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/error.h"
#include "core/files.h"
#include "engine/engine.h"
#include "engine/generate.h"
#include "engine/self_test.h"

namespace levin::engine {
namespace {

namespace fs = std::filesystem;
const fs::path kSource = LEVIN_SOURCE_DIR;

LoadOptions reference_options() {
  LoadOptions options;
  options.runtime_kind = RuntimeKind::kReference;
  options.runtime.max_model_len = 512;
  options.runtime.max_num_seqs = 4;
  options.runtime.max_extend_tokens = 256;
  options.runtime.threads = 1;
  return options;
}

Engine& tiny() {
  static const auto engine = load_engine(kSource / "models/tiny", reference_options());
  return *engine;
}

// The first `count` prompts of every task, rendered with the chat template, if short enough.
std::vector<std::vector<int32_t>> task_prompts(int count, std::size_t longest) {
  std::vector<std::vector<int32_t>> prompts;
  for (const char* task : {"add", "compare", "copy", "count", "json", "recall", "reverse", "sort",
                           "subtract", "tool_call"}) {
    std::ifstream file(kSource / "evals/tiny/tasks" / fmt::format("{}.jsonl", task));
    std::string line;
    for (int i = 0; i < count && std::getline(file, line); ++i) {
      const auto item = nlohmann::ordered_json::parse(line);
      nlohmann::ordered_json variables = {{"messages", item["messages"]},
                                          {"tools", item["tools"]},
                                          {"enable_thinking", item["enable_thinking"]},
                                          {"add_generation_prompt", true}};
      auto ids = tiny().tokenizer->encode(tiny().chat_template->render(variables));
      if (ids.size() <= longest) prompts.push_back(std::move(ids));
    }
  }
  return prompts;
}

std::vector<Result> generate_all(const std::vector<std::vector<int32_t>>& prompts,
                                 const SamplingParams& sampling, int k) {
  std::vector<Request> requests;
  for (const auto& prompt : prompts) {
    requests.push_back(
        {.prompt = prompt, .sampling = sampling, .speculation = {.num_speculative_tokens = k}});
    if (sampling.seed) *requests.back().sampling.seed += requests.size();
  }
  return generate(tiny(), requests);
}

TEST(TinyModel, LoadsWithEverythingAround) {
  const Engine& engine = tiny();
  EXPECT_EQ(engine.model->config.vocab_size, 4096);
  ASSERT_TRUE(engine.tokenizer);
  ASSERT_TRUE(engine.chat_template);
  // config.json says 2, generation_config.json 2 and 11, <|im_end|> is 11.
  EXPECT_EQ(engine.stop_token_ids, (std::vector<int32_t>{2, 11}));
  EXPECT_EQ(engine.default_sampling.temperature, 0);  // do_sample is false
  EXPECT_TRUE(engine.runtime->options().mtp);
  EXPECT_EQ(engine.runtime->options().kv_cache_dtype, runtime::KvCacheDType::kF32);
  EXPECT_EQ(engine.runtime->options().ssm_cache_dtype, runtime::SsmCacheDType::kF32);
}

TEST(TinyModel, GreedyTextIsTheSameForAllK) {
  auto prompts = task_prompts(6, 48);
  ASSERT_GE(prompts.size(), 32U);
  prompts.resize(32);
  const SamplingParams greedy = {.temperature = 0, .max_tokens = 32};
  const auto plain = generate_all(prompts, greedy, 0);
  double acceptance = 0;
  for (int k = 1; k <= 7; ++k) {
    const auto speculated = generate_all(prompts, greedy, k);
    SpeculationStats stats;
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      ASSERT_EQ(speculated[i].tokens, plain[i].tokens) << "prompt " << i << ", k = " << k;
      ASSERT_EQ(speculated[i].text, plain[i].text);
      ASSERT_EQ(speculated[i].finish_reason, plain[i].finish_reason);
      stats.add(speculated[i].speculation);
    }
    acceptance = stats.mean_acceptance_length();
    fmt::print("  k = {}: {} prompts, mean acceptance length {:.2f}\n", k, prompts.size(),
               acceptance);
    EXPECT_GT(acceptance, 1 + 0.6 * k * (k < 4));
  }
  EXPECT_GT(acceptance, 4);
}

TEST(TinyModel, SampledTextIsTheSameForAllK) {
  const auto prompts = task_prompts(1, 100);
  const SamplingParams sampling = {
      .temperature = 1, .top_p = 0.95, .presence_penalty = 0.3, .seed = 5, .max_tokens = 24};
  const auto plain = generate_all(prompts, sampling, 0);
  for (const int k : {1, 3, 7}) {
    const auto speculated = generate_all(prompts, sampling, k);
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      ASSERT_EQ(speculated[i].tokens, plain[i].tokens) << "prompt " << i << ", k = " << k;
    }
  }
}

TEST(TinyModel, AnswersAsTheBaselineFlagsSay) {
  // The expected answer is proposed as a draft: the result is the model's own either way.
  const auto flags = read_json(kSource / "tests/data/baseline_exact_flags.json");
  std::vector<Request> requests;
  std::vector<std::vector<int32_t>> expected;
  std::vector<bool> should_match;
  for (const char* task : {"add", "json", "reverse", "subtract"}) {
    std::ifstream file(kSource / "evals/tiny/tasks" / fmt::format("{}.jsonl", task));
    std::string line;
    for (int i = 0; i < 12 && std::getline(file, line); ++i) {
      const auto item = nlohmann::ordered_json::parse(line);
      const std::string prompt =
          tiny().chat_template->render({{"messages", item["messages"]},
                                        {"tools", item["tools"]},
                                        {"enable_thinking", item["enable_thinking"]},
                                        {"add_generation_prompt", true}});
      expected.push_back(tiny().tokenizer->encode(item["expected_completion"].get<std::string>()));
      should_match.push_back(flags[item["id"].get<std::string>()].get<bool>());
      requests.push_back({.prompt = tiny().tokenizer->encode(prompt),
                          .sampling = {.temperature = 0, .max_tokens = 200},
                          .given_drafts = expected.back()});
    }
  }
  const auto results = generate(tiny(), requests);
  int matches = 0;
  for (std::size_t i = 0; i < results.size(); ++i) {
    EXPECT_EQ(results[i].tokens == expected[i], should_match[i]) << "item " << i;
    matches += should_match[i] ? 1 : 0;
  }
  EXPECT_GT(matches, 20);
  EXPECT_LT(matches, 48);
}

TEST(TinyModel, DrafterSelfTestIsContent) {
  const DrafterReport report = drafter_self_test(tiny());
  fmt::print("  {}\n", report.message());
  EXPECT_FALSE(report.quantized);
  EXPECT_FALSE(report.near_floor);
  EXPECT_GT(report.mean_acceptance_length, 2);
}

// --- folders ---

class Folder : public ::testing::Test {
 protected:
  Folder() {
    fs::remove_all(path_);
    fs::create_directories(path_);
    for (const auto& entry : fs::directory_iterator(kSource / "models/tiny")) {
      if (entry.path().extension() != ".safetensors") {
        fs::copy(entry.path(), path_ / entry.path().filename());
      }
    }
  }
  ~Folder() override { fs::remove_all(path_); }

  // Random weights: only the configuration is read.
  std::unique_ptr<Engine> load() const {
    LoadOptions options = reference_options();
    options.load_format = model::LoadFormat::kDummy;
    options.kv_cache_dtype = kv_cache_dtype_;
    return load_engine(path_, options);
  }
  void write(const std::string& file, const std::string& text) const {
    write_text(path_ / file, text);
  }

  fs::path path_ = fs::temp_directory_path() / fmt::format("levin_engine_{}", ::getpid());
  std::optional<runtime::KvCacheDType> kv_cache_dtype_;
};

TEST_F(Folder, WithoutTokenizerAndTemplateIsUsable) {
  for (const char* file : {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
                           "generation_config.json"}) {
    fs::remove(path_ / file);
  }
  const auto engine = load();
  EXPECT_FALSE(engine->tokenizer);
  EXPECT_FALSE(engine->chat_template);
  EXPECT_EQ(engine->stop_token_ids, (std::vector<int32_t>{2}));
  EXPECT_EQ(engine->default_sampling.temperature, 1);
  const Request request = {.prompt = {1, 2, 3}, .sampling = {.temperature = 0, .max_tokens = 3}};
  const auto results = generate(*engine, {&request, 1});
  EXPECT_FALSE(results.front().tokens.empty());
  EXPECT_EQ(results.front().text, "");
}

TEST_F(Folder, SelfTestReportsARandomDrafter) {
  fs::remove(path_ / "tokenizer.json");
  const auto engine = load();
  const DrafterReport report = drafter_self_test(*engine);
  EXPECT_TRUE(report.near_floor) << report.mean_acceptance_length;
  EXPECT_NE(report.message().find("HARDLY EVER"), std::string::npos);
}

// A draft head whose bytes are broken, in an otherwise good model.
TEST_F(Folder, SelfTestRefusesADrafterOfNoNumbers) {
  const auto engine = load();
  auto model = std::make_shared<model::Model>(*engine->model);
  std::fill(model->mtp->final_layernorm.begin(), model->mtp->final_layernorm.end(), 1e38F);
  engine->model = model;
  engine->runtime = runtime::make_reference_runtime(model, engine->runtime->options());
  try {
    drafter_self_test(*engine);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("are not numbers"), std::string::npos);
  }
}

TEST_F(Folder, GenerationConfigSetsTheDefaults) {
  write("generation_config.json",
        R"({"do_sample": true, "temperature": 0.7, "top_p": 0.9, "top_k": 40, "min_p": 0.1,
            "repetition_penalty": 1.1, "eos_token_id": 7})");
  const auto engine = load();
  EXPECT_EQ(engine->default_sampling.temperature, 0.7);
  EXPECT_EQ(engine->default_sampling.top_p, 0.9);
  EXPECT_EQ(engine->default_sampling.top_k, 40);
  EXPECT_EQ(engine->default_sampling.min_p, 0.1);
  EXPECT_EQ(engine->default_sampling.repetition_penalty, 1.1);
  EXPECT_EQ(engine->stop_token_ids, (std::vector<int32_t>{2, 7, 11}));
}

TEST_F(Folder, WarnsOfWhatGenerationConfigAsksForInVain) {
  std::ostringstream log;
  const auto before = spdlog::default_logger();
  spdlog::set_default_logger(std::make_shared<spdlog::logger>(
      "test", std::make_shared<spdlog::sinks::ostream_sink_mt>(log)));
  write("generation_config.json",
        R"({"do_sample": true, "epsilon_cutoff": 0.1, "eta_cutoff": 0, "max_new_tokens": 64})");
  load();
  spdlog::set_default_logger(before);
  EXPECT_NE(log.str().find("epsilon_cutoff is not honoured"), std::string::npos);
  EXPECT_NE(log.str().find("max_new_tokens is not honoured"), std::string::npos);
  EXPECT_EQ(log.str().find("eta_cutoff"), std::string::npos);  // 0 asks for nothing
}

TEST_F(Folder, SaysWhenNoFileDecidesHowToSample) {
  EXPECT_EQ(load()->undeclared_sampling, "");  // do_sample is false
  write("generation_config.json", R"({"do_sample": true})");
  EXPECT_EQ(load()->undeclared_sampling, "");
  write("generation_config.json", R"({"temperature": 0.6})");
  EXPECT_NE(load()->undeclared_sampling.find("says nothing on do_sample"), std::string::npos);
  fs::remove(path_ / "generation_config.json");
  EXPECT_EQ(load()->undeclared_sampling, "no generation_config.json");
}

TEST_F(Folder, InputCanBeRefusedBeforeTheRuntimeIsMade) {
  LoadOptions options = reference_options();
  options.load_format = model::LoadFormat::kDummy;
  bool made = false;
  options.make_runtime = [&](std::shared_ptr<const model::Model> model,
                             const runtime::Options& runtime_options) {
    made = true;
    return runtime::make_reference_runtime(std::move(model), runtime_options);
  };
  options.before_runtime = [&](const Engine& engine) {
    EXPECT_TRUE(engine.tokenizer);
    EXPECT_TRUE(engine.chat_template);
    EXPECT_EQ(engine.default_sampling.temperature, 0);
    EXPECT_FALSE(made);
    require_fit(5, 5, "prompt.txt");
  };
  EXPECT_THROW(load_engine(path_, options), Error);
  EXPECT_FALSE(made);
}

TEST_F(Folder, EndTokenOfTheTokenizerStops) {
  const std::string name(load()->tokenizer->bytes_of(300));
  write("tokenizer_config.json", R"({"eos_token": {"content": ")" + name + R"("}})");
  EXPECT_EQ(load()->stop_token_ids, (std::vector<int32_t>{2, 11, 300}));
  for (const char* bad : {R"({"eos_token": "no such token"})", R"({"eos_token": ["a"]})",
                          R"({"eos_token": {"content": 5}})"}) {
    write("tokenizer_config.json", bad);
    EXPECT_THROW(load(), Error) << bad;
  }
}

TEST_F(Folder, BadGenerationConfigIsRefused) {
  for (const char* text :
       {"[]", "{", R"({"temperature": "hot"})", R"({"temperature": -1})", R"({"top_p": 0})",
        R"({"do_sample": 1})", R"({"eos_token_id": "x"})", R"({"eos_token_id": 4096})",
        R"({"eos_token_id": [2, -1]})", R"({"eos_token_id": 99999999999})"}) {
    write("generation_config.json", text);
    try {
      load();
      FAIL() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), ExitCode::kBadInput) << text;
      EXPECT_NE(std::string(error.what()).find("generation_config.json"), std::string::npos)
          << text;
    }
  }
}

TEST_F(Folder, CacheTypesFollowTheCheckpointUnlessTold) {
  auto config = read_json(path_ / "config.json");
  config["mamba_ssm_cache_dtype"] = "float16";
  write("config.json", config.dump());
  EXPECT_EQ(load()->runtime->options().ssm_cache_dtype, runtime::SsmCacheDType::kF16);
  kv_cache_dtype_ = runtime::KvCacheDType::kFp8;
  EXPECT_EQ(load()->runtime->options().kv_cache_dtype, runtime::KvCacheDType::kFp8);
  config["mamba_ssm_cache_dtype"] = "bfloat16";
  write("config.json", config.dump());
  EXPECT_THROW(load(), Error);
}

}  // namespace
}  // namespace levin::engine
