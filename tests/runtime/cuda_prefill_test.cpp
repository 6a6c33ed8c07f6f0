// Chunks of prompts on tensor-core products against passes of at most 8 tokens of the same runtime,
// which the other tests hold against the reference: logits, and everything that later calls start
// from.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "cuda_device.h"

namespace levin::runtime {
namespace {

using Tokens = std::vector<int32_t>;
using Bits = std::vector<uint32_t>;

constexpr int kPass = 8;  // tokens: longer extends run in chunks

// Kernels for another compute capability than 9.0 have none, and say so.
#define LEVIN_NEEDS_CHUNKS(runtime)                                                           \
  if ((runtime).description().find("made for compute capability 9.0") != std::string::npos) { \
    GTEST_SKIP() << "NOT TESTED: there are no chunks: " << (runtime).description();           \
  }

std::shared_ptr<const model::Model> tiny_model() {
  static const auto model =
      model::load_model(std::filesystem::path(LEVIN_SOURCE_DIR) / "models/tiny");
  return model;
}

Tokens random_tokens(std::mt19937& random, std::size_t count) {
  const auto vocab = static_cast<int32_t>(tiny_model()->config.vocab_size);
  std::uniform_int_distribution<int32_t> token(0, vocab - 1);
  Tokens tokens(count);
  for (int32_t& t : tokens) t = token(random);
  return tokens;
}

std::vector<float> extend(Runtime& runtime, int slot, std::span<const int32_t> tokens) {
  const auto rows = static_cast<int>(tokens.size());
  runtime.extend(std::vector<Extend>{{.slot = slot, .tokens = tokens, .logits_rows = rows}});
  std::vector<float> logits;
  for (int row = 0; row < rows; ++row) {
    const auto values = runtime.logits(0, row);
    logits.insert(logits.end(), values.begin(), values.end());
  }
  return logits;
}

// The same in passes.
std::vector<float> extend_in_passes(Runtime& runtime, int slot, std::span<const int32_t> tokens) {
  std::vector<float> logits;
  for (std::size_t done = 0; done < tokens.size(); done += kPass) {
    const auto piece = tokens.subspan(done, std::min<std::size_t>(kPass, tokens.size() - done));
    const std::vector<float> of_piece = extend(runtime, slot, piece);
    logits.insert(logits.end(), of_piece.begin(), of_piece.end());
  }
  return logits;
}

std::vector<float> draft(Runtime& runtime, int slot, int32_t next) {
  constexpr int kSteps = 2;
  runtime.draft(std::vector<Draft>{{.slot = slot, .next_token = next, .k = kSteps}});
  std::vector<float> logits;
  for (int step = 0; step < kSteps; ++step) {
    const auto values = runtime.draft_logits(0, step);
    logits.insert(logits.end(), values.begin(), values.end());
  }
  return logits;
}

double relative_error(std::span<const float> a, std::span<const float> b) {
  double difference = 0;
  double norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += (double{a[i]} - double{b[i]}) * (double{a[i]} - double{b[i]});
    norm += double{b[i]} * double{b[i]};
  }
  return std::sqrt(difference / norm);
}

// One error for each row.
std::vector<double> errors_of(std::span<const float> a, std::span<const float> b) {
  EXPECT_EQ(a.size(), b.size());
  const auto vocab = static_cast<std::size_t>(tiny_model()->config.vocab_size);
  std::vector<double> errors;
  for (std::size_t i = 0; i < a.size(); i += vocab) {
    errors.push_back(relative_error(a.subspan(i, vocab), b.subspan(i, vocab)));
  }
  return errors;
}

// A token near a routing decision may take another expert, and a draft near a tie another token:
// what that does, to later tokens as well, has nothing to do with rounding. So the median of enough
// rows is held against `bound`, and single ones against what such a decision does at most.
void expect_close(std::vector<double> errors, double bound, const std::string& what) {
  constexpr double kLargest = 0.5;
  for (const double error : errors) ASSERT_LT(error, kLargest) << what;  // no NaN is
  std::sort(errors.begin(), errors.end());
  EXPECT_LT(errors[errors.size() / 2], bound) << what;
  fmt::print("  {}: {} rows, median {:.2e}, largest {:.2e}\n", what, errors.size(),
             errors[errors.size() / 2], errors.back());
}

Bits bits(std::span<const float> values) {
  Bits result;
  for (const float value : values) result.push_back(std::bit_cast<uint32_t>(value));
  return result;
}

// Both paths round activations to BF16 in every linear, in different places only where sums come
// out differently.
constexpr double kClose = 0.01;

struct Variant {
  std::string name;
  KvCacheDType kv = KvCacheDType::kBf16;
  SsmCacheDType ssm = SsmCacheDType::kF32;
  bool stochastic = false;
  double bound = kClose;
};

Options options_of(const Variant& variant) {
  return {.max_model_len = 1024,
          .max_num_seqs = 4,
          .max_extend_tokens = 640,
          .kv_cache_dtype = variant.kv,
          .ssm_cache_dtype = variant.ssm,
          .stochastic_rounding = variant.stochastic,
          .seed = 7};
}

class CudaPrefill : public ::testing::TestWithParam<Variant> {};

TEST_P(CudaPrefill, AgreesWithPassesAtEveryLength) {
  LEVIN_NEEDS_CUDA();
  const auto runtime = make_cuda_runtime(tiny_model(), options_of(GetParam()));
  LEVIN_NEEDS_CHUNKS(*runtime);
  EXPECT_NE(runtime->description().find("tensor-core"), std::string::npos)
      << runtime->description();
  std::mt19937 random(3);
  std::vector<double> later;
  for (const std::size_t length : {9, 15, 16, 17, 63, 64, 65, 127, 128, 129, 200, 257, 511, 640}) {
    const Tokens tokens = random_tokens(random, length);
    const Tokens after = random_tokens(random, 5);
    runtime->reset(0);
    runtime->reset(1);
    const auto whole = extend(*runtime, 0, tokens);
    const auto passes = extend_in_passes(*runtime, 1, tokens);
    // What is left behind: for drafts, single tokens, rewinding and drafts after that.
    const auto drafts = draft(*runtime, 0, 5);
    const auto expected_drafts = draft(*runtime, 1, 5);
    auto next = extend(*runtime, 0, after);
    auto expected_next = extend(*runtime, 1, after);
    for (const int slot : {0, 1}) runtime->rewind(slot, runtime->length(slot) - 3);
    const auto again = extend(*runtime, 0, std::span(after).first(2));
    const auto expected_again = extend(*runtime, 1, std::span(after).first(2));
    expect_close(errors_of(whole, passes), GetParam().bound, fmt::format("{} tokens", length));
    for (const auto& of_row : {errors_of(drafts, expected_drafts), errors_of(next, expected_next),
                               errors_of(again, expected_again)}) {
      later.insert(later.end(), of_row.begin(), of_row.end());
    }
  }
  expect_close(later, GetParam().bound, "drafts, next tokens, after rewinding");
}

// A chunk that begins after tokens which may be taken back, and others after it.
TEST_P(CudaPrefill, ContinuesFromAnywhere) {
  LEVIN_NEEDS_CUDA();
  const auto runtime = make_cuda_runtime(tiny_model(), options_of(GetParam()));
  std::mt19937 random(4);
  const Tokens tokens = random_tokens(random, 700);
  runtime->reset(0);
  runtime->reset(1);
  std::vector<float> mixed;
  const std::span<const int32_t> all = tokens;
  std::size_t done = 0;
  for (const std::size_t piece : {3, 40, 1, 8, 130, 2, 9, 300, 7, 200}) {
    const auto logits = extend(*runtime, 0, all.subspan(done, piece));
    mixed.insert(mixed.end(), logits.begin(), logits.end());
    done += piece;
    if (piece == 8) {  // taken back in part, and read again
      runtime->rewind(0, static_cast<int64_t>(done) - 5);
      extend(*runtime, 0, all.subspan(done - 5, 5));
    }
  }
  const auto passes = extend_in_passes(*runtime, 1, all.first(done));
  expect_close(errors_of(mixed, passes), GetParam().bound, "pieces");
  expect_close(errors_of(draft(*runtime, 0, 5), draft(*runtime, 1, 5)), 0.5, "drafts after them");
}

// Other sequences in the batch, and when chunks are full, change no bit.
TEST_P(CudaPrefill, SameBitsInAnyCompany) {
  LEVIN_NEEDS_CUDA();
  const auto runtime = make_cuda_runtime(tiny_model(), options_of(GetParam()));
  std::mt19937 random(5);
  const Tokens history = random_tokens(random, 77);
  const Tokens tokens = random_tokens(random, 333);
  const auto run_alone = [&](int slot) {
    runtime->reset(slot);
    extend(*runtime, slot, history);
    auto logits = extend(*runtime, slot, tokens);
    const auto drafts = draft(*runtime, slot, 9);
    logits.insert(logits.end(), drafts.begin(), drafts.end());
    return bits(logits);
  };
  const Bits alone = run_alone(0);
  EXPECT_EQ(alone, run_alone(2));
  const Tokens others[] = {random_tokens(random, 3), random_tokens(random, 150),
                           random_tokens(random, 90)};
  for (int slot = 0; slot < 4; ++slot) runtime->reset(slot);
  extend(*runtime, 1, history);
  runtime->extend(std::vector<Extend>{{.slot = 3, .tokens = others[1], .logits_rows = 2},
                                      {.slot = 0, .tokens = others[0], .logits_rows = 3},
                                      {.slot = 1, .tokens = tokens, .logits_rows = 333},
                                      {.slot = 2, .tokens = others[2], .logits_rows = 0}});
  std::vector<float> together;
  for (int row = 0; row < 333; ++row) {
    const auto values = runtime->logits(2, row);
    together.insert(together.end(), values.begin(), values.end());
  }
  const auto drafts = draft(*runtime, 1, 9);
  together.insert(together.end(), drafts.begin(), drafts.end());
  EXPECT_EQ(alone, bits(together));
}

INSTANTIATE_TEST_SUITE_P(
    Caches, CudaPrefill,
    ::testing::Values(Variant{"bf16"}, Variant{"fp8_cache", KvCacheDType::kFp8},
                      Variant{"f16_state", KvCacheDType::kBf16, SsmCacheDType::kF16, false, 0.02},
                      Variant{"f16_stochastic", KvCacheDType::kBf16, SsmCacheDType::kF16, true,
                              0.02}),
    [](const auto& variant) { return variant.param.name; });

// Calls that begin at multiples of 128 positions give the bits of one call.
TEST(CudaPrefillSplit, SameBitsAtMultiplesOf128) {
  LEVIN_NEEDS_CUDA();
  const auto runtime = make_cuda_runtime(tiny_model(), options_of({}));
  std::mt19937 random(6);
  const Tokens tokens = random_tokens(random, 600);
  const std::span<const int32_t> all = tokens;
  const auto whole = extend(*runtime, 0, all);
  std::vector<float> split;
  std::size_t done = 0;
  for (const std::size_t piece : {128, 256, 128, 88}) {
    const auto logits = extend(*runtime, 1, all.subspan(done, piece));
    split.insert(split.end(), logits.begin(), logits.end());
    done += piece;
  }
  EXPECT_EQ(bits(whole), bits(split));
}

// A pass divides a long context over the multiprocessors, a chunk goes through it from front to
// back.
TEST(CudaPrefillLong, PassesAndChunksReadTheSameContext) {
  LEVIN_NEEDS_CUDA();
  constexpr std::size_t kLength = 200'000;
  constexpr std::size_t kRows = 16;
  for (const KvCacheDType kv : {KvCacheDType::kBf16, KvCacheDType::kFp8}) {
    const auto runtime = make_cuda_runtime(tiny_model(), {.max_model_len = kLength + kRows,
                                                          .max_num_seqs = 2,
                                                          .max_extend_tokens = 8192,
                                                          .kv_cache_dtype = kv});
    LEVIN_NEEDS_CHUNKS(*runtime);
    std::mt19937 random(11);
    const Tokens tokens = random_tokens(random, kLength + kRows);
    const std::span<const int32_t> all = tokens;
    for (int slot = 0; slot < 2; ++slot) {
      runtime->reset(slot);
      for (std::size_t done = 0; done < kLength; done += 8192) {
        const auto piece = all.subspan(done, std::min<std::size_t>(8192, kLength - done));
        runtime->extend(std::vector<Extend>{{.slot = slot, .tokens = piece, .logits_rows = 0}});
      }
    }
    const std::vector<float> chunk = extend(*runtime, 0, all.last(kRows));
    const std::vector<float> passes = extend_in_passes(*runtime, 1, all.last(kRows));
    expect_close(errors_of(chunk, passes), kClose, fmt::format("{} tokens", kLength));
  }
}

}  // namespace
}  // namespace levin::runtime
