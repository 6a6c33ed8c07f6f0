// The CUDA runtime against float32 results of Hugging Face transformers and against the reference
// runtime.
//
// Bounds: activations reach the tensor cores as BF16 (8 significant bits, relative error up to
// 2^-9, about 2^-10.3 root mean square) in every linear; everything else is float32. Errors of that
// size enter once in each of the 14 layers and add up like independent ones.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "cuda_device.h"
#include "test_files.h"

namespace levin::runtime {
namespace {

const std::filesystem::path kSource = LEVIN_SOURCE_DIR;

std::shared_ptr<const model::Model> tiny_model() {
  static const auto model = model::load_model(kSource / "models/tiny");
  return model;
}

const testing::TensorFile& goldens() {
  static const testing::TensorFile file(kSource / "tests/data/goldens/model_goldens.safetensors");
  return file;
}

// ||a - b|| / ||b||; NaN when anything is not a number.
double relative_error(std::span<const float> a, std::span<const float> b) {
  EXPECT_EQ(a.size(), b.size());
  double difference = 0;
  double norm = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    difference += (double{a[i]} - double{b[i]}) * (double{a[i]} - double{b[i]});
    norm += double{b[i]} * double{b[i]};
  }
  return std::sqrt(difference / norm);
}

std::vector<double> softmax(std::span<const float> logits) {
  const double maximum = double{*std::max_element(logits.begin(), logits.end())};
  std::vector<double> p;
  double sum = 0;
  for (const float logit : logits) sum += p.emplace_back(std::exp(double{logit} - maximum));
  for (double& x : p) x /= sum;
  return p;
}

double divergence(std::span<const float> reference, std::span<const float> other) {
  const std::vector<double> p = softmax(reference);
  const std::vector<double> q = softmax(other);
  double sum = 0;
  for (std::size_t i = 0; i < p.size(); ++i) {
    if (p[i] > 0) sum += p[i] * std::log(p[i] / q[i]);
  }
  return sum;
}

int32_t best(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

class CudaGoldens : public ::testing::TestWithParam<const char*> {
 protected:
  std::string name(const std::string& part) const { return std::string(GetParam()) + "." + part; }
};

TEST_P(CudaGoldens, LogitsAndDrafts) {
  LEVIN_NEEDS_CUDA();
  const auto runtime = make_cuda_runtime(tiny_model(), {.max_extend_tokens = 700});
  const std::vector<int32_t> ids = goldens().ids(name("input_ids"));
  const auto rows = static_cast<int>(ids.size());
  runtime->extend(std::vector<Extend>{{.tokens = ids, .logits_rows = rows}});
  const auto last = goldens().floats(name("fp32.last_row"));
  const double kl = divergence(last, runtime->logits(0, rows - 1));
  const double error = relative_error(runtime->logits(0, rows - 1), last);

  // The most likely token of every position, where the float32 model is not undecided itself.
  const auto top_ids = goldens().ids(name("fp32.top_ids"));
  const auto top_values = goldens().floats(name("fp32.top_vals"));
  const std::size_t width = top_ids.size() / ids.size();
  int decided = 0;
  int agreed = 0;
  for (std::size_t row = 0; row < ids.size(); ++row) {
    if (top_values[row * width] - top_values[row * width + 1] < 0.25F) continue;
    ++decided;
    agreed += best(runtime->logits(0, static_cast<int>(row))) == top_ids[row * width] ? 1 : 0;
  }

  const int32_t next = goldens().ids(name("mtp.next_token")).front();
  runtime->draft(std::vector<Draft>{{.next_token = next, .k = 3}});
  const auto expected = goldens().floats(name("mtp.logits"));
  double draft_error = 0;
  for (int step = 0; step < 3; ++step) {
    const auto logits = runtime->draft_logits(0, step);
    draft_error = std::max(
        draft_error,
        relative_error(logits, std::span(expected).subspan(
                                   static_cast<std::size_t>(step) * logits.size(), logits.size())));
  }
  const auto drafts = runtime->drafts(0);
  fmt::print("  {:<11} last row: relative error {:.2e}, KL {:.2e}; top 1 {}/{}; drafts {:.2e}\n",
             GetParam(), error, kl, agreed, decided, draft_error);
  EXPECT_LT(error, 0.02);
  EXPECT_LT(kl, 1e-3);
  EXPECT_EQ(agreed, decided);
  EXPECT_LT(draft_error, 0.06);
  EXPECT_EQ(std::vector<int32_t>(drafts.begin(), drafts.end()),
            goldens().ids(name("mtp.draft_tokens")));
}

INSTANTIATE_TEST_SUITE_P(Prompts, CudaGoldens,
                         ::testing::Values("prose", "chat_think", "tools", "context700",
                                           "hidden16"),
                         [](const auto& prompt) { return std::string(prompt.param); });

TEST(CudaHiddenStates, EveryLayer) {
  LEVIN_NEEDS_CUDA();
  const auto runtime = make_cuda_runtime(tiny_model(), {});
  const std::vector<int32_t> ids = goldens().ids("hidden16.input_ids");
  std::vector<std::vector<float>> states;
  runtime->set_observer({.hidden = [&](int, std::span<const float> hidden,
                                       int) { states.emplace_back(hidden.begin(), hidden.end()); },
                         .linear_input = {}});
  runtime->extend(std::vector<Extend>{{.tokens = ids}});
  ASSERT_EQ(states.size(), tiny_model()->layers.size() + 1);
  for (std::size_t layer = 0; layer < states.size(); ++layer) {
    const auto expected = goldens().floats(fmt::format("hidden16.hidden.{:02}", layer));
    const double error = relative_error(states[layer], expected);
    fmt::print("  layer {:>2}: {:.2e}\n", layer, error);
    EXPECT_LT(error, 0.01) << "layer " << layer;
  }
}

// Block kinds that the bundled model does not have.
class CudaBlocks : public ::testing::TestWithParam<const char*> {};

TEST_P(CudaBlocks, HiddenStatesAndLogits) {
  LEVIN_NEEDS_CUDA();
  const std::filesystem::path folder = kSource / "tests/data/blocks" / GetParam();
  const auto model = model::load_model(folder);
  const testing::TensorFile golden(folder.string() + ".golden.safetensors");
  const std::vector<int32_t> ids = golden.ids("input_ids");
  const auto runtime = make_cuda_runtime(model, {});
  std::vector<float> hidden;
  runtime->set_observer(
      {.hidden = [&](int, std::span<const float> rows,
                     int) { hidden.insert(hidden.end(), rows.begin(), rows.end()); },
       .linear_input = {}});
  runtime->extend(
      std::vector<Extend>{{.tokens = ids, .logits_rows = static_cast<int>(ids.size())}});
  std::vector<float> logits;
  for (int row = 0; row < static_cast<int>(ids.size()); ++row) {
    const auto values = runtime->logits(0, row);
    logits.insert(logits.end(), values.begin(), values.end());
  }
  // The same in one chunk, which observers do not see.
  const auto chunked = make_cuda_runtime(model, {});
  chunked->extend(
      std::vector<Extend>{{.tokens = ids, .logits_rows = static_cast<int>(ids.size())}});
  std::vector<float> chunk_logits;
  for (int row = 0; row < static_cast<int>(ids.size()); ++row) {
    const auto values = chunked->logits(0, row);
    chunk_logits.insert(chunk_logits.end(), values.begin(), values.end());
  }
  const double hidden_error = relative_error(hidden, golden.floats("hidden"));
  const double error = relative_error(logits, golden.floats("logits"));
  const double chunk_error = relative_error(chunk_logits, golden.floats("logits"));
  fmt::print("  {} tokens: hidden states {:.2e}, logits {:.2e}, of a chunk {:.2e}\n", ids.size(),
             hidden_error, error, chunk_error);
  EXPECT_LT(hidden_error, 0.01);
  EXPECT_LT(chunk_error, 0.01);
  EXPECT_LT(error, 0.01);
}

INSTANTIATE_TEST_SUITE_P(Cases, CudaBlocks,
                         ::testing::Values("dense_bias", "latent_groups", "tied_clamped"),
                         [](const auto& name) { return std::string(name.param); });

}  // namespace
}  // namespace levin::runtime
