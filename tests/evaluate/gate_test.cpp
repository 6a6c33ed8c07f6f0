#include "evaluate/gate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "core/error.h"
#include "evaluate/evaluation.h"
#include "evaluate/more_samples.h"

namespace levin::evaluate {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

// The message of the Error that parsing `yaml` throws.
std::string refusal(const std::string& yaml) {
  try {
    parse_gate(yaml, "gate.yaml");
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::kBadInput);
    return error.what();
  }
  return "accepted";
}

TEST(Gate, ShippedGateIsThePublicRule) {
  const Gate gate = load_gate(LEVIN_SOURCE_DIR "/recipes/gate.yaml");
  EXPECT_DOUBLE_EQ(gate.median_recovery_min.value(), 0.99);
  EXPECT_DOUBLE_EQ(gate.verbosity_increase_max.value(), 0.05);
  EXPECT_TRUE(gate.repetition_increase_max);
  EXPECT_TRUE(gate.perplexity_ratio_max);
  EXPECT_DOUBLE_EQ(gate.confidence, 0.95);
}

TEST(Gate, AbsentBoundsAreNotJudged) {
  const Gate gate = parse_gate("perplexity_ratio_max: 1.1", "gate.yaml");
  EXPECT_FALSE(gate.median_recovery_min);
  EXPECT_TRUE(gate.perplexity_ratio_max);
}

TEST(Gate, RefusesWithFileAndLine) {
  EXPECT_THAT(refusal("median_recovery_min: 0.99\nmedian_recovery: 0.9\n"),
              AllOf(HasSubstr("unknown key"), HasSubstr("gate.yaml:2"),
                    HasSubstr("median_recovery"), HasSubstr("perplexity_ratio_max")));
  EXPECT_THAT(refusal("\n\nmedian_recovery_min: much"),
              AllOf(HasSubstr("gate.yaml:3"), HasSubstr("much")));
  EXPECT_THAT(refusal("median_recovery_min: .nan"), HasSubstr("bad value"));
  EXPECT_THAT(refusal("median_recovery_min: 99"), HasSubstr("bad value"));
  EXPECT_THAT(refusal("median_recovery_min: [0.9]"), HasSubstr("bad value"));
  EXPECT_THAT(refusal("confidence: 1\nperplexity_ratio_max: 1"), HasSubstr("gate.yaml:1"));
  EXPECT_THAT(refusal("perplexity_ratio_max: 1\nperplexity_ratio_max: 2"), HasSubstr("twice"));
  EXPECT_THAT(refusal("confidence: 0.9"), HasSubstr("no bounds"));
  EXPECT_THAT(refusal(""), HasSubstr("not a map"));
  EXPECT_THAT(refusal("- a\n- b"), HasSubstr("not a map"));
  EXPECT_THAT(refusal("a: b: c"), HasSubstr("not valid YAML"));
  EXPECT_THAT(refusal("{[x]: 1}"), HasSubstr("key is not a word"));
  EXPECT_THAT(refusal("confidence: 0.9\na: \xc3\x28"),
              AllOf(HasSubstr("not UTF-8"), HasSubstr("gate.yaml:2")));
  EXPECT_THAT(refusal(std::string(10000, '[')),
              AllOf(HasSubstr("nested too deeply"), HasSubstr("gate.yaml:1")));
  EXPECT_THROW(load_gate("/nonexistent/gate.yaml"), Error);
}

// Eleven tasks with `items` each, of which the candidate loses `lost`.
Comparison comparison(int64_t items, int64_t lost, double tokens_ratio = 1.0, int64_t loops = 0) {
  Comparison result;
  for (int t = 0; t < 11; ++t) {
    TaskComparison task{.task = "t" + std::to_string(t), .correct = {}, .loops = {}, .tokens = {}};
    for (int64_t i = 0; i < items; ++i) {
      task.correct.add(true, i >= lost);
      task.loops.add(false, i < loops);
      task.tokens.push_back({20.0, 20.0 * tokens_ratio});
    }
    result.tasks.push_back(std::move(task));
  }
  return result;
}

TextScore text(const std::string& kind, std::vector<double> ratios) {
  TextScore score{.kind = kind, .compared = true, .windows = {}};
  for (double ratio : ratios) {
    score.windows.push_back({.predictions = 100,
                             .nll = 100 * (3 + std::log(ratio)),
                             .baseline_nll = 300,
                             .kl = 0,
                             .agreements = 100});
  }
  return score;
}

TEST(GateVerdict, LosslessPasses) {
  Comparison same = comparison(150, 0);
  same.texts = {text("prose", {1, 1, 1, 1})};
  const GateResult result = judge(load_gate(LEVIN_SOURCE_DIR "/recipes/gate.yaml"), same);
  EXPECT_EQ(result.verdict, Verdict::kPass) << explain(result);
  EXPECT_EQ(result.lines.size(), 4u);
  EXPECT_THAT(explain(result), StartsWith("pass: all 4 lines"));
}

TEST(GateVerdict, NamesTheFailingLine) {
  const Gate gate{.median_recovery_min = 0.99, .verbosity_increase_max = 0.05};
  EXPECT_THAT(explain(judge(gate, comparison(150, 15))),
              AllOf(StartsWith("FAIL: median_recovery_min: 90.00 %"), HasSubstr("below 99.00 %"),
                    HasSubstr("11 tasks")));
  EXPECT_THAT(explain(judge(gate, comparison(150, 0, 1.2))),
              StartsWith("FAIL: verbosity_increase_max: +20.00 %"));
}

TEST(GateVerdict, FailureOutweighsUndecided) {
  const Gate gate{.median_recovery_min = 0.99, .verbosity_increase_max = 0.05};
  const GateResult result = judge(gate, comparison(20, 0, 1.2));
  EXPECT_EQ(result.lines[0].verdict, Verdict::kUndecided);
  EXPECT_EQ(result.verdict, Verdict::kFail);
}

TEST(GateVerdict, UndecidedSaysHowManyItemsWouldDecide) {
  const Gate gate{.median_recovery_min = 0.99};
  const GateResult result = judge(gate, comparison(20, 0));
  EXPECT_EQ(result.verdict, Verdict::kUndecided);
  ASSERT_TRUE(result.lines[0].samples_to_decide);
  EXPECT_GT(*result.lines[0].samples_to_decide, 20);
  EXPECT_THAT(explain(result), AllOf(StartsWith("undecided: median_recovery_min"),
                                     HasSubstr("items per task would decide (now 20)")));
}

// The gate of one line is decided by more items; the other stays as it is.
TEST(GateVerdict, EveryUndecidedLineSaysWhatWouldDecideIt) {
  const Gate gate{.median_recovery_min = 0.99, .repetition_increase_max = 0.005};
  const GateResult result = judge(gate, comparison(20, 0), 5000);
  ASSERT_EQ(result.lines.size(), 2u);
  for (const GateLine& line : result.lines) {
    ASSERT_EQ(line.verdict, Verdict::kUndecided);
    ASSERT_TRUE(line.flag_to_decide);
    EXPECT_THAT(explain(result), HasSubstr(line.key + ":")) << "both lines are explained";
    EXPECT_THAT(explain(line), HasSubstr("would decide (now " + std::to_string(line.samples) +
                                         "): --limit " + std::to_string(*line.flag_to_decide)));
  }
  // 220 items of 11 tasks: so many per task.
  const GateLine& loops = result.lines[1];
  EXPECT_EQ(loops.samples, 220);
  EXPECT_NEAR(static_cast<double>(*loops.flag_to_decide) * 11,
              static_cast<double>(*loops.samples_to_decide), 11);
  const int64_t needed = std::max(*result.lines[0].flag_to_decide, *result.lines[1].flag_to_decide);
  const std::vector<std::string> words = {"levin", "eval", "a b", "--limit=20", "--json"};
  EXPECT_EQ(how_to_decide(result, words),
            "To decide: levin eval 'a b' --json --limit " + std::to_string(needed));
}

TEST(GateVerdict, SaysWhenTheFilesHoldTooFew) {
  const Gate gate{.median_recovery_min = 0.99};
  const std::vector<std::string> words = {"levin", "eval", "m", "--limit", "20", "--windows", "3"};
  const GateResult some = judge(gate, comparison(20, 0), 25);
  EXPECT_THAT(explain(some), HasSubstr(", but the files hold 25"));
  EXPECT_THAT(how_to_decide(some, words),
              AllOf(StartsWith("To decide: levin eval m --windows 3 --limit 25\n"),
                    HasSubstr("all that the files hold")));
  EXPECT_EQ(how_to_decide(judge(gate, comparison(20, 0), 20), words),
            "To decide: the files hold too few samples; add items or text.");
  EXPECT_EQ(how_to_decide(judge(gate, comparison(1500, 0)), words), "");
}

TEST(GateVerdict, WindowsThatWouldDecide) {
  Comparison both;
  both.texts = {text("prose", {1.0, 1.08, 1.01, 1.03}), text("code", {1.0})};
  for (TextScore& one : both.texts) {
    one.window = 100;
    one.unscored = 100 * 96;
  }
  const GateResult result = judge({.perplexity_ratio_max = 1.032}, both);
  ASSERT_EQ(result.verdict, Verdict::kUndecided);
  EXPECT_EQ(result.lines[0].flag_held, 100);
  EXPECT_THAT(explain(result.lines[1]),
              AllOf(HasSubstr("too few windows to tell"), Not(HasSubstr("no practical"))));
  EXPECT_EQ(more_samples(result).windows, 100);  // all of prose
  EXPECT_EQ(more_samples(result).limit, 0);
  both.texts.erase(both.texts.begin());
  EXPECT_EQ(more_samples(judge({.perplexity_ratio_max = 1.032}, both)).windows, 97);  // all of code
}

TEST(GateVerdict, RepetitionLoops) {
  const Gate gate{.repetition_increase_max = 0.005};
  EXPECT_EQ(judge(gate, comparison(150, 0, 1, 0)).verdict, Verdict::kPass);
  EXPECT_EQ(judge(gate, comparison(150, 0, 1, 4)).verdict, Verdict::kFail);
}

TEST(GateVerdict, PerplexityOfEachKind) {
  const Gate gate{.perplexity_ratio_max = 1.03};
  Comparison both;
  both.texts = {text("prose", {1.01, 1.012, 1.011}), text("code", {1.08, 1.081, 1.079})};
  const GateResult result = judge(gate, both);
  ASSERT_EQ(result.lines.size(), 2u);
  EXPECT_EQ(result.lines[0].verdict, Verdict::kPass);
  EXPECT_EQ(result.lines[1].verdict, Verdict::kFail);
  EXPECT_THAT(explain(result), HasSubstr("text code"));
  EXPECT_NEAR(result.lines[1].estimate.value, 1.08, 1e-3);
}

TEST(GateVerdict, OneWindowDecidesNothing) {
  Comparison one;
  one.texts = {text("prose", {1.0})};
  const GateResult result = judge({.perplexity_ratio_max = 1.03}, one);
  EXPECT_EQ(result.verdict, Verdict::kUndecided);
  EXPECT_THAT(explain(result), AllOf(HasSubstr("one window bounds nothing"), HasSubstr("unbounded"),
                                     Not(HasSubstr("inf"))));
}

TEST(GateVerdict, PerplexityThatIsNoNumberFails) {
  Comparison broken;
  broken.texts = {text("prose", {1.0, std::numeric_limits<double>::quiet_NaN()})};
  const Gate gate{.perplexity_ratio_max = 1.03};
  EXPECT_EQ(judge(gate, broken).verdict, Verdict::kFail);
  EXPECT_EQ(
      explain(judge(gate, broken)),
      "FAIL: perplexity_ratio_max: the model's perplexity is not a finite number (text prose)");
  broken.texts = {text("prose", {1.0, std::numeric_limits<double>::infinity()})};
  EXPECT_EQ(judge(gate, broken).verdict, Verdict::kFail);
  EXPECT_THAT(gate_table(judge(gate, broken)),
              AllOf(Not(HasSubstr("nan")), Not(HasSubstr("inf")), HasSubstr("FAIL")));
}

TEST(GateVerdict, BaselineThatIsNoNumberFails) {
  Comparison broken;
  broken.texts = {text("prose", {1.0, 1.0})};
  broken.texts[0].windows[0].baseline_nll = std::numeric_limits<double>::infinity();
  const GateResult result = judge({.perplexity_ratio_max = 1.03}, broken);
  EXPECT_EQ(result.verdict, Verdict::kFail);
  EXPECT_THAT(explain(result), HasSubstr("the baseline's perplexity is not a finite number"));
}

TEST(GateVerdict, BaselineThatGetsNothingRightFails) {
  Comparison none = comparison(20, 0);
  for (TaskComparison& task : none.tasks) {
    task.correct = {.both = 0, .lost = 0, .gained = 0, .neither = 20};
  }
  const GateResult result = judge({.median_recovery_min = 0.99}, none);
  EXPECT_EQ(result.verdict, Verdict::kFail);
  EXPECT_EQ(explain(result),
            "FAIL: median_recovery_min: the baseline gets nothing right in any task (11 tasks)");
  EXPECT_THAT(gate_table(result), AllOf(Not(HasSubstr("nan")), Not(HasSubstr("inf"))));
}

TEST(GateVerdict, OneLineIsNamedWhenItHolds) {
  EXPECT_THAT(explain(judge({.verbosity_increase_max = 0.05}, comparison(20, 0))),
              StartsWith("pass: verbosity_increase_max: +0.00 %"));
}

TEST(GateVerdict, NamesTasksTheBaselineCannotDo) {
  Comparison some = comparison(150, 0);
  some.tasks[3].correct = {.both = 0, .lost = 0, .gained = 0, .neither = 150};
  const GateResult result = judge({.median_recovery_min = 0.99}, some);
  EXPECT_THAT(result.lines[0].note, HasSubstr("t3"));
}

TEST(GateVerdict, BoundsWithoutDataAreAnError) {
  Comparison nothing;
  EXPECT_THROW(judge({.median_recovery_min = 0.99}, nothing), Error);
  EXPECT_THROW(judge({.verbosity_increase_max = 0.99}, nothing), Error);
  EXPECT_THROW(judge({.repetition_increase_max = 0.99}, nothing), Error);
  EXPECT_THROW(judge({.perplexity_ratio_max = 0.99}, nothing), Error);
}

}  // namespace
}  // namespace levin::evaluate
