#include "evaluate/comparison.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "evaluate/evaluation.h"

namespace levin::evaluate {
namespace {

ItemResult item(const std::string& id, const std::string& task, bool thinking, bool correct,
                int64_t tokens, bool loops = false) {
  return {.id = id,
          .task = task,
          .thinking = thinking,
          .correct = correct,
          .same_tokens = true,
          .hit_limit = false,
          .loops = loops,
          .output_tokens = tokens,
          .output = {}};
}

Evaluation baseline() {
  Evaluation evaluation;
  evaluation.items = {item("a-0", "a", true, true, 10), item("a-1", "a", false, true, 20),
                      item("b-0", "b", true, false, 30), item("a-2", "a", false, false, 40)};
  return evaluation;
}

TEST(Comparison, PairsByTask) {
  Evaluation candidate = baseline();
  candidate.items[1].correct = false;
  candidate.items[1].output_tokens = 25;
  candidate.items[2].correct = true;
  candidate.items[2].loops = true;
  const Comparison result = compare(baseline(), candidate);
  ASSERT_EQ(result.tasks.size(), 2u);
  EXPECT_EQ(result.tasks[0].task, "a");
  EXPECT_EQ(result.tasks[0].correct.both, 1);
  EXPECT_EQ(result.tasks[0].correct.lost, 1);
  EXPECT_EQ(result.tasks[0].correct.neither, 1);
  EXPECT_EQ(result.tasks[0].tokens[1].candidate, 25);
  EXPECT_EQ(result.tasks[1].correct.gained, 1);
  EXPECT_EQ(result.tasks[1].loops.gained, 1);
}

TEST(Comparison, RefusesDifferentItems) {
  Evaluation candidate = baseline();
  candidate.items[1].id = "a-9";
  EXPECT_THROW(compare(baseline(), candidate), Error);
  candidate.items.pop_back();
  EXPECT_THROW(compare(baseline(), candidate), Error);
}

TEST(AccuracyByTask, SplitsByMode) {
  const auto tasks = accuracy_by_task(baseline().items);
  ASSERT_EQ(tasks.size(), 2u);
  EXPECT_EQ(tasks[0].all.total, 3);
  EXPECT_EQ(tasks[0].all.right, 2);
  EXPECT_EQ(tasks[0].all.output_tokens, 70);
  EXPECT_EQ(tasks[0].thinking.total, 1);
  EXPECT_EQ(tasks[0].direct.total, 2);
  EXPECT_DOUBLE_EQ(tasks[0].direct.rate(), 0.5);
}

Evaluation with_texts() {
  Evaluation evaluation = baseline();
  evaluation.texts = {{.kind = "prose",
                       .documents = 2,
                       .tokens = 33,
                       .leftover = 1,
                       .unscored = 0,
                       .window = 16,
                       .compared = true,
                       .windows = {{16, 20.125, 19.5, 0.25, 15}, {16, 21.5, 19.25, 0.125, 14}}}};
  return evaluation;
}

TEST(SavedEvaluation, RoundTrips) {
  const Evaluation saved = with_texts();
  const auto json = nlohmann::json::parse(save(saved).dump());
  const Evaluation loaded = load_evaluation(json, "file");
  EXPECT_EQ(save(loaded).dump(), save(saved).dump());
  EXPECT_EQ(loaded.texts[0].perplexity(), saved.texts[0].perplexity());
  EXPECT_EQ(loaded.items[3].id, "a-2");
}

TEST(SavedEvaluation, KeepsWhatIsNoNumber) {
  Evaluation broken = with_texts();
  broken.texts[0].windows[0].nll = std::numeric_limits<double>::quiet_NaN();
  const auto json = nlohmann::json::parse(save(broken).dump());
  EXPECT_TRUE(std::isnan(load_evaluation(json, "file").texts[0].perplexity()));
}

TEST(SavedEvaluation, RefusesAnythingElse) {
  EXPECT_THROW(load_evaluation(nlohmann::json::object(), "file"), Error);
  EXPECT_THROW(load_evaluation(nlohmann::json::parse(R"({"texts": [], "items": [[1]]})"), "file"),
               Error);
}

TEST(PerplexityRatio, IsTheRatioOfPerplexities) {
  const TextScore text = with_texts().texts[0];
  const Estimate ratio = perplexity_ratio(text, 0.95);
  EXPECT_NEAR(ratio.value, text.perplexity() / text.baseline_perplexity(), 1e-12);
  EXPECT_LT(ratio.low, ratio.value);
  EXPECT_GT(ratio.high, ratio.value);
}

TEST(Report, TablesNameEverything) {
  const Evaluation candidate = with_texts();
  const std::string tasks = task_table(candidate.items, baseline().items);
  for (const char* word : {"a ", "b ", "recovery", "thinking", "direct", "median"}) {
    EXPECT_NE(tasks.find(word), std::string::npos) << word << "\n" << tasks;
  }
  EXPECT_NE(text_table(candidate.texts, 0.95).find("prose"), std::string::npos);
  EXPECT_TRUE(text_table({}, 0.95).empty());
  EXPECT_TRUE(task_table({}, {}).empty());
}

}  // namespace
}  // namespace levin::evaluate
