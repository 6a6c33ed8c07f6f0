// Tokenizer and model together: negative log-likelihood of held-out prose against the values that
// PyTorch computed in float32.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/files.h"
#include "runtime/runtime.h"
#include "text/tokenizer.h"

namespace levin::engine {
namespace {

const std::filesystem::path kSource = LEVIN_SOURCE_DIR;
constexpr int32_t kEndOfDocument = 2;
constexpr std::size_t kWindow = 2048;

// All documents, each followed by </s>.
std::vector<int32_t> prose_tokens() {
  const auto tokenizer = text::Tokenizer::load(kSource / "models/tiny");
  std::ifstream file(kSource / "evals/tiny/text/prose.jsonl");
  std::vector<int32_t> tokens;
  std::string line;
  while (std::getline(file, line)) {
    const auto ids = tokenizer.encode(nlohmann::json::parse(line)["text"].get<std::string>());
    tokens.insert(tokens.end(), ids.begin(), ids.end());
    tokens.push_back(kEndOfDocument);
  }
  return tokens;
}

double log_likelihood(std::span<const float> logits, int32_t token) {
  const float maximum = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(double{logit} - double{maximum});
  return double{logits[static_cast<std::size_t>(token)]} - double{maximum} - std::log(sum);
}

TEST(Perplexity, ProseWindows) {
  const auto reference = read_json(kSource / "tests/data/ppl_reference.json")["prose"];
  const std::vector<int32_t> tokens = prose_tokens();
  ASSERT_EQ(tokens.size(), reference["total_tokens"].get<std::size_t>());
  const auto first = reference["first32_ids"].get<std::vector<int32_t>>();
  ASSERT_TRUE(std::equal(first.begin(), first.end(), tokens.begin()));

  constexpr std::size_t kChunk = 256;
  const auto runtime = runtime::make_reference_runtime(
      model::load_model(kSource / "models/tiny"),
      {.max_extend_tokens = kChunk, .kv_cache_dtype = runtime::KvCacheDType::kF32, .mtp = false});
  for (std::size_t window = 0; window < 1; ++window) {
    runtime->reset(0);
    double total = 0;
    for (std::size_t begin = 0; begin < kWindow; begin += kChunk) {
      const std::size_t at = window * kWindow + begin;
      const std::vector<runtime::Extend> batch = {
          {.tokens = std::span(tokens).subspan(at, kChunk), .logits_rows = kChunk}};
      runtime->extend(batch);
      for (std::size_t row = 0; row < kChunk; ++row) {
        total -= log_likelihood(runtime->logits(0, static_cast<int>(row)), tokens[at + row + 1]);
      }
    }
    const double nll = total / kWindow;
    const auto expected = reference["window_nll_first4"][window].get<double>();
    fmt::print("  window {}: {:.6f} nats per token, PyTorch {:.6f}\n", window, nll, expected);
    EXPECT_NEAR(nll, expected, 1e-5);
  }
}

}  // namespace
}  // namespace levin::engine
