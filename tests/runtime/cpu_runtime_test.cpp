// Properties of the fast CPU runtime that the conformance suite does not see: goldens, shapes that
// fit no vector, allocation, refusals.
#include "runtime/cpu/cpu_runtime.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "conformance.h"
#include "core/files.h"
#include "runtime/cpu/arena.h"
#include "runtime/cpu/memory_plan.h"
#include "runtime/cpu_allocations.h"
#include "runtime/cpu_model_variants.h"
#include "runtime/test_files.h"

namespace levin::runtime::cpu {
namespace {

using ::testing::HasSubstr;

const std::filesystem::path kSource = LEVIN_SOURCE_DIR;

const testing::TensorFile& goldens() {
  static const testing::TensorFile file(kSource / "tests/data/goldens/model_goldens.safetensors");
  return file;
}

int32_t argmax(std::span<const float> x) {
  return static_cast<int32_t>(std::max_element(x.begin(), x.end()) - x.begin());
}

class CpuGoldens : public ::testing::TestWithParam<const char*> {
 protected:
  std::vector<int32_t> ids(const std::string& part) const {
    return goldens().ids(std::string(GetParam()) + "." + part);
  }
};

// The greedy continuation in float32, but for positions where the best two logits are closer than
// rounding to BF16 moves them (cpu_accuracy_test.cpp measures 0.02 rms).
TEST_P(CpuGoldens, GreedyContinuation) {
  constexpr float kTie = 0.1F;
  Options options;
  options.max_model_len = 1024;
  options.max_extend_tokens = 1024;
  const auto fast = make_cpu_runtime(tiny_model(), options);
  const auto reference = make_reference_runtime(tiny_model(), options);
  std::vector<int32_t> next = ids("input_ids");
  const auto expected = ids("fp32.greedy64");
  int ties = 0;
  for (const int32_t token : expected) {
    fast->extend(std::vector<Extend>{{.tokens = next}});
    const int32_t best = argmax(fast->logits(0, 0));
    // Teacher forcing: a tie decided otherwise does not end the comparison.
    if (best != token) {
      reference->reset(0);
      std::vector<int32_t> all = ids("input_ids");
      all.insert(all.end(), expected.begin(),
                 expected.begin() + (fast->length(0) - static_cast<int64_t>(all.size())));
      reference->extend(std::vector<Extend>{{.tokens = all}});
      const auto logits = reference->logits(0, 0);
      EXPECT_LT(logits[static_cast<std::size_t>(token)] - logits[static_cast<std::size_t>(best)],
                kTie)
          << "after " << fast->length(0) << " tokens";
      ++ties;
    }
    next = {token};
  }
  EXPECT_LE(ties, 2);
}

TEST_P(CpuGoldens, Drafts) {
  const auto fast =
      make_cpu_runtime(tiny_model(), {.max_model_len = 1024, .max_extend_tokens = 300});
  std::vector<int32_t> tokens = ids("input_ids");
  for (std::size_t i = 0; i < tokens.size(); i += 300) {
    fast->extend(std::vector<Extend>{
        {.tokens = std::span(tokens).subspan(i, std::min<std::size_t>(300, tokens.size() - i))}});
  }
  fast->draft(std::vector<Draft>{{.next_token = ids("mtp.next_token").front(), .k = 3}});
  const auto drafts = fast->drafts(0);
  EXPECT_EQ(std::vector<int32_t>(drafts.begin(), drafts.end()), ids("mtp.draft_tokens"));
}

INSTANTIATE_TEST_SUITE_P(Prompts, CpuGoldens,
                         ::testing::Values("prose", "chat_think", "tools", "context700",
                                           "hidden16"),
                         [](const auto& prompt) { return std::string(prompt.param); });

// --- shapes ---

// A model whose sizes are multiples of nothing, with every kind of block: latent experts in groups,
// a dense block, biases, a kernel of 3 taps.
std::shared_ptr<const model::Model> odd_model() {
  nlohmann::json config = read_json(kSource / "models/tiny/config.json");
  config.merge_patch({{"hidden_size", 72},
                      {"hybrid_override_pattern", "M-E*MEM"},
                      {"num_hidden_layers", 7},
                      {"head_dim", 20},
                      {"num_attention_heads", 6},
                      {"num_key_value_heads", 3},
                      {"attention_bias", true},
                      {"mamba_num_heads", 6},
                      {"mamba_head_dim", 20},
                      {"n_groups", 3},
                      {"ssm_state_size", 24},
                      {"conv_kernel", 3},
                      {"use_bias", true},
                      {"mamba_proj_bias", true},
                      {"mlp_bias", true},
                      {"intermediate_size", 88},
                      {"n_routed_experts", 10},
                      {"num_experts_per_tok", 3},
                      {"n_group", 5},
                      {"topk_group", 2},
                      {"moe_intermediate_size", 56},
                      {"moe_shared_expert_intermediate_size", 40},
                      {"moe_latent_size", 36},
                      {"vocab_size", 203},
                      {"max_position_embeddings", 256},
                      {"eos_token_id", 2}});
  const auto folder = std::filesystem::temp_directory_path() /
                      fmt::format("levin-odd-model-{}", static_cast<int>(getpid()));
  std::filesystem::create_directories(folder);
  write_text(folder / "config.json", config.dump());
  const auto model = model::load_model(folder, model::LoadFormat::kDummy);
  std::filesystem::remove_all(folder);
  return model;
}

conformance::Subject odd_subject(Isa isa) {
  static const auto model = odd_model();
  return {model,
          [isa](std::shared_ptr<const model::Model> m, const Options& options) {
            return make_runtime(std::move(m), options, isa);
          },
          {KvCacheDType::kBf16, KvCacheDType::kFp8, KvCacheDType::kF32}};
}

class CpuOddShapes : public ::testing::TestWithParam<Isa> {};

// With float32 weights that are no BF16 numbers and a float32 cache nothing is rounded, and the two
// runtimes differ by the order of their sums only.
TEST_P(CpuOddShapes, AgreeWithTheReference) {
  conformance::Subject subject = odd_subject(GetParam());
  const VariantModel exact = make_variant(*subject.model, {"f32", model::WeightFormat::kF32}, {});
  Options options = conformance::small_options(subject);
  options.kv_cache_dtype = KvCacheDType::kF32;
  std::mt19937 random(1);
  const auto tokens = conformance::random_tokens(subject, random, 40);
  const auto fast = subject.make(exact.model, options);
  const auto reference = make_reference_runtime(exact.model, options);
  for (const auto& runtime : {fast.get(), reference.get()}) {
    runtime->extend(std::vector<Extend>{{.tokens = tokens, .logits_rows = 40}});
    runtime->draft(std::vector<Draft>{{.next_token = 9, .k = 2}});
  }
  // Sums of 100 terms and 7 layers that amplify a little.
  constexpr float kTolerance = 1e-4F;
  const auto expect_near = [&](std::span<const float> a, std::span<const float> b) {
    ASSERT_EQ(a.size(), b.size());
    for (std::size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], kTolerance);
  };
  for (int row = 0; row < 40; ++row) expect_near(fast->logits(0, row), reference->logits(0, row));
  for (int step = 0; step < 2; ++step) {
    expect_near(fast->draft_logits(0, step), reference->draft_logits(0, step));
  }
}

TEST_P(CpuOddShapes, KeepTheContract) {
  conformance::Subject subject = odd_subject(GetParam());
  subject.kv_cache_dtypes.resize(1);
  conformance::split_invariance(subject);
  conformance::batch_invariance(subject);
  conformance::rewind_at_every_length(subject);
}

INSTANTIATE_TEST_SUITE_P(EveryIsa, CpuOddShapes, ::testing::ValuesIn(supported_isas()),
                         [](const auto& isa) {
                           std::string name(name_of(isa.param));
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// The same bits on one thread, on two, and on more than there are heads and groups.
TEST(CpuRuntime, ThreadsDoNotChangeTheBits) {
  conformance::Subject subject = odd_subject(best_isa());
  std::mt19937 random(2);
  const auto tokens = conformance::random_tokens(subject, random, 50);
  conformance::Bits one;
  for (const int threads : {1, 2, 3, 7}) {
    Options options = conformance::small_options(subject);
    options.threads = threads;
    const auto runtime = conformance::make(subject, options);
    conformance::Bits bits = conformance::extend_all(*runtime, 0, std::span(tokens).first(30));
    conformance::append(bits,
                        conformance::extend_all(*runtime, 0, std::span(tokens).subspan(30, 5)));
    conformance::append(bits, conformance::draft_bits(*runtime, 0, 4, 3));
    if (threads == 1) one = bits;
    conformance::expect_same(one, bits, fmt::format("{} threads", threads));
  }
}

// Many decode steps without a draft: the draft head's log fills up and is worked off.
TEST(CpuRuntime, DraftsAfterLongDecoding) {
  const conformance::Subject subject = odd_subject(best_isa());
  Options options = conformance::small_options(subject);
  options.max_model_len = 200;
  options.max_extend_tokens = 150;
  std::mt19937 random(3);
  const auto tokens = conformance::random_tokens(subject, random, 150);
  const auto runtime = conformance::make(subject, options);
  conformance::extend_all(*runtime, 0, tokens);
  for (const int32_t token : tokens) conformance::extend_all(*runtime, 1, std::span(&token, 1));
  conformance::expect_same(conformance::draft_bits(*runtime, 0, 7, 4),
                           conformance::draft_bits(*runtime, 1, 7, 4), "drafts");
}

// The draft head catches up in several passes when there is work space for few rows only.
TEST(CpuRuntime, DraftsInSmallPasses) {
  const conformance::Subject subject = odd_subject(best_isa());
  Options options = conformance::small_options(subject);
  std::mt19937 random(4);
  const auto tokens = conformance::random_tokens(subject, random, 30);
  const std::vector<Draft> batch = {{.slot = 2, .next_token = 5, .k = 3},
                                    {.slot = 0, .next_token = 6, .k = 1},
                                    {.slot = 1, .next_token = 7, .k = 2}};
  std::vector<conformance::Bits> results;
  for (const int rows : {64, 4}) {
    options.max_extend_tokens = rows;
    const auto runtime = conformance::make(subject, options);
    for (int slot = 0; slot < 3; ++slot) {
      for (int i = 0; i < 20 + 5 * slot; ++i) {
        conformance::extend_all(*runtime, slot,
                                std::span(tokens).subspan(static_cast<std::size_t>(i), 1));
      }
    }
    runtime->draft(batch);
    conformance::Bits bits;
    for (int entry = 0; entry < 3; ++entry) {
      for (int step = 0; step < batch[static_cast<std::size_t>(entry)].k; ++step) {
        conformance::append_bits(bits, runtime->draft_logits(entry, step));
        bits.push_back(
            static_cast<uint32_t>(runtime->drafts(entry)[static_cast<std::size_t>(step)]));
      }
    }
    results.push_back(bits);
  }
  conformance::expect_same(results[0], results[1], "drafts");
}

// Logs longer than the recurrence takes at a time, and so short that a small batch is kept at once.
TEST(CpuRuntime, AnyRewindLimit) {
  const conformance::Subject subject = odd_subject(best_isa());
  std::mt19937 random(5);
  const auto tokens = conformance::random_tokens(subject, random, 160);
  for (const auto dtype : {SsmCacheDType::kF32, SsmCacheDType::kF16}) {
    conformance::Bits expected;
    for (const int limit : {8, 1, 3, 100}) {
      Options options = conformance::small_options(subject);
      options.max_model_len = 200;
      options.max_extend_tokens = 100;
      options.max_rewind = limit;
      options.ssm_cache_dtype = dtype;
      const auto runtime = conformance::make(subject, options);
      std::span<const int32_t> rest = tokens;
      const auto take = [&](std::size_t count) {
        const auto part = rest.first(count);
        rest = rest.subspan(count);
        return conformance::extend_all(*runtime, 0, part);
      };
      conformance::Bits bits = take(90);
      if (limit == 100) {  // back and forth within the log
        runtime->rewind(0, 70);
        conformance::extend_all(*runtime, 0, std::span(tokens).subspan(70, 20));
      }
      for (const std::size_t count : {1, 4, 2, 1, 40, 1}) conformance::append(bits, take(count));
      conformance::append(bits, conformance::draft_bits(*runtime, 0, 3, 1));
      if (expected.empty()) expected = bits;
      conformance::expect_same(expected, bits, fmt::format("max_rewind {}", limit));
    }
  }
}

// --- the step path ---

TEST(CpuRuntime, StepsAllocateNothing) {
  Options options;
  options.max_model_len = 512;
  options.max_num_seqs = 2;
  const auto runtime = make_cpu_runtime(tiny_model(), options);
  std::vector<int32_t> tokens(100, 5);
  const std::vector<Extend> prompt = {{.slot = 0, .tokens = tokens}, {.slot = 1, .tokens = tokens}};
  const std::vector<Extend> decode = {{.slot = 0, .tokens = std::span(tokens).first(1)},
                                      {.slot = 1, .tokens = std::span(tokens).first(1)}};
  const std::vector<Extend> verify = {
      {.slot = 0, .tokens = std::span(tokens).first(4), .logits_rows = 4},
      {.slot = 1, .tokens = std::span(tokens).first(3), .logits_rows = 3}};
  const std::vector<Draft> draft = {{.slot = 0, .next_token = 3, .k = 3},
                                    {.slot = 1, .next_token = 3, .k = 2}};
  const int64_t before = allocations();
  runtime->extend(prompt);
  for (int i = 0; i < 40; ++i) {
    runtime->extend(decode);
    runtime->draft(draft);
    runtime->extend(verify);
    runtime->rewind(0, runtime->length(0) - 2);
  }
  runtime->reset(0);
  runtime->extend(prompt);
  EXPECT_EQ(allocations() - before, 0);
  EXPECT_GT(runtime->logits(0, 0).size(), 0u);
}

TEST(CpuRuntime, ObserverExceptionsReachTheCaller) {
  const auto runtime =
      make_cpu_runtime(tiny_model(), {.max_model_len = 64, .max_extend_tokens = 64});
  runtime->set_observer(
      {.hidden =
           [](int, std::span<const float>, int) {
             throw Error({.what = "enough", .where = {}, .expected = {}, .found = {}, .hint = {}});
           },
       .linear_input = {}});
  const std::vector<int32_t> tokens = {1, 2, 3};
  EXPECT_THROW(runtime->extend(std::vector<Extend>{{.tokens = tokens}}), Error);
  runtime->set_observer({});
  runtime->extend(std::vector<Extend>{{.tokens = tokens}});
  EXPECT_EQ(runtime->length(0), 6);
}

// --- plan and refusals ---

TEST(CpuRuntime, SaysWhatItRunsOn) {
  const auto runtime =
      make_cpu_runtime(tiny_model(), {.max_model_len = 64, .max_extend_tokens = 8, .threads = 2});
  EXPECT_THAT(runtime->description(), HasSubstr(std::string(name_of(best_isa()))));
  EXPECT_THAT(runtime->description(), HasSubstr("2 threads"));
  EXPECT_GT(runtime->memory_bytes(), 36'000'000);
  const auto plan = runtime->plan();
  const auto linears = tiny_model()->linears();
  ASSERT_EQ(plan.size(), linears.size());
  for (std::size_t i = 0; i < plan.size(); ++i) EXPECT_EQ(plan[i].linear, linears[i]->name);
}

TEST(CpuRuntime, PlansEveryFormat) {
  // Where 4-bit weights are multiplied as integers, their inputs are, too.
  const std::string wide =
      kernels(best_isa()).integer_products ? "int16 (16 under a scale)" : "bf16";
  const std::map<std::string, std::pair<std::string, std::string>> expected = {
      {"bf16", {"BF16", "bf16 x bf16 products, f32 sums"}},
      {"fp8", {"FP8, FP8 static inputs", "e4m3 x e4m3 products, f32 sums"}},
      {"nvfp4_w4a16", {"NVFP4 W4A16", "e2m1 x " + wide + " products, f32 sums"}},
      {"nvfp4_w4a4", {"NVFP4 W4A4", "e2m1 x e2m1 products, f32 sums"}},
      {"int4_g64", {"INT4 g64", "int4 x " + wide + " products, f32 sums"}},
      {"f32", {"F32", "f32 x f32 products, f32 sums"}}};
  for (const Variant& variant : all_variants()) {
    const auto found = expected.find(variant.name);
    if (found == expected.end()) continue;
    const VariantModel model = make_variant(*tiny_model(), variant, {});
    const auto runtime =
        make_cpu_runtime(model.model, {.max_model_len = 64, .max_extend_tokens = 8});
    for (const PlanEntry& entry : runtime->plan()) {
      if (entry.linear != "backbone.layers.0.mixer.in_proj") continue;
      EXPECT_EQ(entry.stored_as, found->second.first);
      EXPECT_EQ(entry.computed_as, found->second.second);
    }
  }
}

// Runs `change` on the first in_proj of a copy of the bundled model and expects a refusal.
template <typename Change>
void expect_no_kernel(const Change& change, const std::string& message) {
  auto model = std::make_shared<model::Model>(*tiny_model());
  change(std::get<model::MambaBlock>(model->layers[0].mixer).in_proj);
  try {
    make_cpu_runtime(model, {.max_model_len = 64, .max_extend_tokens = 8});
    FAIL() << "no error for " << message;
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr(message));
    EXPECT_THAT(error.what(), HasSubstr("backbone.layers.0.mixer.in_proj"));
    EXPECT_THAT(error.what(), HasSubstr("--runtime reference"));
  }
}

TEST(CpuRuntime, RefusesWhatItHasNoKernelFor) {
  expect_no_kernel(
      [](model::Linear& linear) {
        linear.format = model::WeightFormat::kF16;
        linear.activation = model::ActivationFormat::kNvfp4;
      },
      "no CPU kernel for this combination");
  expect_no_kernel(
      [](model::Linear& linear) {
        linear.format = model::WeightFormat::kInt4;
        linear.group_size = 24;
      },
      "no CPU kernel for this group size");
  expect_no_kernel(
      [](model::Linear& linear) {
        linear.format = model::WeightFormat::kNvfp4;
        linear.group_size = 32;
      },
      "no CPU kernel for this group size");
}

TEST(CpuRuntime, RefusesWhatTheMachineCannotHold) {
  announce({.weights = 2, .rest = 3, .available = 2});
  announce({.weights = int64_t{1} << 60, .rest = 0, .available = 0});
  try {
    announce({.weights = 3, .rest = 0, .available = 2});
    FAIL() << "no error for more than there is";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::kMachine);
    EXPECT_THAT(error.what(), HasSubstr("repacked weights"));
    EXPECT_THAT(error.what(), HasSubstr("available"));
  }
  EXPECT_THROW(Arena(int64_t{1} << 60), Error);
}

// --- linkage ---

// A function that the kernels' files shared with the rest of the program could be linked in with
// instructions that the CPU does not have: those files must define nothing weak.
TEST(CpuRuntime, KernelFilesShareNoFunctions) {
  const auto library = std::filesystem::path(LEVIN_BINARY).parent_path() / "src/liblevin_runtime.a";
  ASSERT_TRUE(std::filesystem::exists(library)) << library;
  const std::string command = fmt::format("nm -C '{}' 2>/dev/null", library.string());
  std::FILE* pipe = popen(command.c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::string object;
  std::string weak;
  int kernel_symbols = 0;
  char line[4096];
  while (std::fgets(line, sizeof(line), pipe) != nullptr) {
    const std::string text(line);
    if (text.ends_with(".o:\n")) object = text;
    const bool kernels =
        object.starts_with("avx2") || object.starts_with("avx512") || object.starts_with("amx");
    if (!kernels || text.size() < 20) continue;
    const char kind = text[17];
    kernel_symbols += kind == 't' || kind == 'T' ? 1 : 0;
    // W, V: weak; u: unique over the program. The sanitizers add data of theirs, and a pointer to
    // what unwinds.
    if ((kind == 'W' || kind == 'V' || kind == 'u') && text.find("__asan") == std::string::npos &&
        text.find("__odr") == std::string::npos && text.find(" DW.ref.") == std::string::npos) {
      weak += object + text;
    }
  }
  if (pclose(pipe) != 0 && kernel_symbols == 0) GTEST_SKIP() << "no nm on this machine";
#if defined(__x86_64__)
  EXPECT_GT(kernel_symbols, 100);
#endif
  EXPECT_EQ(weak, "");
}

}  // namespace
}  // namespace levin::runtime::cpu
