// The reference runtime against float32 results of Hugging Face transformers on the bundled model.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "runtime/runtime.h"
#include "test_files.h"

namespace levin::runtime {
namespace {

const std::filesystem::path kSource = LEVIN_SOURCE_DIR;
// Two float32 implementations that add in different orders.
constexpr float kLogitTolerance = 1e-3F;
constexpr float kHiddenTolerance = 1e-4F;  // relative to the largest element of the row

std::shared_ptr<const model::Model> tiny_model() {
  static const auto model = model::load_model(kSource / "models/tiny");
  return model;
}

const testing::TensorFile& goldens() {
  static const testing::TensorFile file(kSource / "tests/data/goldens/model_goldens.safetensors");
  return file;
}

std::unique_ptr<Runtime> float32_runtime() {
  return make_reference_runtime(
      tiny_model(), {.max_extend_tokens = 700, .kv_cache_dtype = KvCacheDType::kF32, .threads = 1});
}

float max_difference(std::span<const float> a, std::span<const float> b) {
  EXPECT_EQ(a.size(), b.size());
  float maximum = 0.0F;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const float difference = std::abs(a[i] - b[i]);
    if (!(difference <= maximum)) maximum = difference;  // NaN counts as a difference
  }
  return maximum;
}

void report(const std::string& prompt, const std::string& what, float difference) {
  fmt::print("  {:<11} {:<14} max abs diff {:.3g}\n", prompt, what, difference);
}

class ReferenceGoldens : public ::testing::TestWithParam<const char*> {
 protected:
  std::string prompt() const { return GetParam(); }
  std::string name(const std::string& part) const { return prompt() + "." + part; }
  std::vector<int32_t> input_ids() const { return goldens().ids(name("input_ids")); }
};

TEST_P(ReferenceGoldens, LogitsOfEveryPosition) {
  const auto runtime = float32_runtime();
  const std::vector<int32_t> ids = input_ids();
  const auto rows = static_cast<int>(ids.size());
  runtime->extend(std::vector<Extend>{{.tokens = ids, .logits_rows = rows}});

  const auto last = goldens().floats(name("fp32.last_row"));
  const float last_difference = max_difference(runtime->logits(0, rows - 1), last);
  report(prompt(), "last row", last_difference);
  EXPECT_LE(last_difference, kLogitTolerance);

  const auto top_ids = goldens().ids(name("fp32.top_ids"));
  const auto top_values = goldens().floats(name("fp32.top_vals"));
  const std::size_t width = top_ids.size() / ids.size();
  float top_difference = 0.0F;
  for (std::size_t i = 0; i < top_ids.size(); ++i) {
    const auto logits = runtime->logits(0, static_cast<int>(i / width));
    const float difference = std::abs(logits[static_cast<std::size_t>(top_ids[i])] - top_values[i]);
    top_difference = std::max(top_difference, difference);
  }
  report(prompt(), "top 32", top_difference);
  EXPECT_LE(top_difference, kLogitTolerance);

  if (!goldens().has(name("fp32.logits"))) return;
  const auto all = goldens().floats(name("fp32.logits"));
  float difference = 0.0F;
  for (int row = 0; row < rows; ++row) {
    const auto logits = runtime->logits(0, row);
    const auto expected =
        std::span(all).subspan(static_cast<std::size_t>(row) * logits.size(), logits.size());
    difference = std::max(difference, max_difference(logits, expected));
  }
  report(prompt(), "all logits", difference);
  EXPECT_LE(difference, kLogitTolerance);
}

TEST_P(ReferenceGoldens, ThreeDraftSteps) {
  const auto runtime = float32_runtime();
  const std::vector<int32_t> ids = input_ids();
  runtime->extend(std::vector<Extend>{{.tokens = ids}});

  // What lm_head is applied to during a draft is the output of final_layernorm.
  std::vector<float> hidden;
  runtime->set_observer(
      {.hidden = {},
       .linear_input = [&](const model::Linear& linear, std::span<const float> input, int) {
         if (linear.name == "lm_head") hidden.insert(hidden.end(), input.begin(), input.end());
       }});
  const int32_t next = goldens().ids(name("mtp.next_token")).front();
  runtime->draft(std::vector<Draft>{{.next_token = next, .k = 3}});

  const auto drafts = runtime->drafts(0);
  EXPECT_EQ(std::vector<int32_t>(drafts.begin(), drafts.end()),
            goldens().ids(name("mtp.draft_tokens")));
  const auto expected = goldens().floats(name("mtp.logits"));
  float difference = 0.0F;
  for (int step = 0; step < 3; ++step) {
    const auto logits = runtime->draft_logits(0, step);
    const auto row =
        std::span(expected).subspan(static_cast<std::size_t>(step) * logits.size(), logits.size());
    difference = std::max(difference, max_difference(logits, row));
  }
  report(prompt(), "draft logits", difference);
  EXPECT_LE(difference, kLogitTolerance);
  const float hidden_difference = max_difference(hidden, goldens().floats(name("mtp.hidden")));
  report(prompt(), "draft hidden", hidden_difference);
  EXPECT_LE(hidden_difference, kLogitTolerance);
}

TEST_P(ReferenceGoldens, GreedyContinuation) {
  const auto runtime = float32_runtime();
  std::vector<int32_t> ids = input_ids();
  const auto expected = goldens().ids(name("fp32.greedy64"));
  std::vector<int32_t> generated;
  while (generated.size() < expected.size()) {
    runtime->extend(std::vector<Extend>{{.tokens = ids}});
    const auto logits = runtime->logits(0, 0);
    ids = {static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin())};
    generated.push_back(ids.front());
  }
  EXPECT_EQ(generated, expected);
}

INSTANTIATE_TEST_SUITE_P(Prompts, ReferenceGoldens,
                         ::testing::Values("prose", "chat_think", "tools", "context700",
                                           "hidden16"),
                         [](const auto& prompt) { return std::string(prompt.param); });

TEST(ReferenceHiddenStates, EveryLayer) {
  const auto runtime = float32_runtime();
  const std::vector<int32_t> ids = goldens().ids("hidden16.input_ids");
  std::vector<std::vector<float>> states;
  runtime->set_observer({.hidden =
                             [&](int layer, std::span<const float> hidden, int) {
                               ASSERT_EQ(static_cast<std::size_t>(layer), states.size());
                               states.emplace_back(hidden.begin(), hidden.end());
                             },
                         .linear_input = {}});
  runtime->extend(std::vector<Extend>{{.tokens = ids}});

  ASSERT_EQ(states.size(), tiny_model()->layers.size() + 1);
  for (std::size_t layer = 0; layer < states.size(); ++layer) {
    const auto expected = goldens().floats(fmt::format("hidden16.hidden.{:02}", layer));
    const float largest =
        std::abs(*std::max_element(expected.begin(), expected.end(),
                                   [](float a, float b) { return std::abs(a) < std::abs(b); }));
    const float difference = max_difference(states[layer], expected);
    report(fmt::format("layer {}", layer), "hidden state", difference);
    EXPECT_LE(difference, kHiddenTolerance * largest) << "layer " << layer;
  }
  EXPECT_EQ(states.back().size(), goldens().floats("hidden16.final_norm").size());
  EXPECT_LE(max_difference(states.back(), goldens().floats("hidden16.final_norm")),
            kLogitTolerance);
}

}  // namespace
}  // namespace levin::runtime
