#include "evaluate/statistics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace levin::evaluate {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr Bound kPublicRule{.limit = 0.99, .is_minimum = true};
// Baseline accuracies of eleven tasks, easy and hard.
constexpr double kAccuracies[] = {1, .99, .99, .98, .94, .93, .87, .87, .8, .57, .56};

// Probabilities of a task's items to be right in both, lost, gained.
struct Truth {
  double both, lost, gained;
  double recovery() const { return (both + gained) / (both + lost); }
};

// `loss` of the baseline's right answers are lost for good; besides, `noise` of all items change
// in each direction.
std::vector<Truth> truths(double loss, double noise) {
  std::vector<Truth> tasks;
  for (double accuracy : kAccuracies) {
    const double gained = std::min(noise, (1 - accuracy) / 2);
    const double lost = gained + loss * accuracy;
    tasks.push_back({accuracy - lost, lost, gained});
  }
  return tasks;
}

std::vector<PairCounts> sample(const std::vector<Truth>& tasks, int items,
                               std::mt19937_64& random) {
  std::vector<PairCounts> counts(tasks.size());
  std::uniform_real_distribution<double> uniform(0, 1);
  for (std::size_t t = 0; t < tasks.size(); ++t) {
    for (int i = 0; i < items; ++i) {
      const double u = uniform(random);
      const Truth& task = tasks[t];
      if (u < task.both) {
        counts[t].add(true, true);
      } else if (u < task.both + task.lost) {
        counts[t].add(true, false);
      } else {
        counts[t].add(false, u < task.both + task.lost + task.gained);
      }
    }
  }
  return counts;
}

TEST(PairCounts, Cells) {
  PairCounts counts;
  counts.add(true, true);
  counts.add(true, true);
  counts.add(true, false);
  counts.add(false, true);
  counts.add(false, false);
  EXPECT_EQ(counts.both, 2);
  EXPECT_EQ(counts.lost, 1);
  EXPECT_EQ(counts.gained, 1);
  EXPECT_EQ(counts.neither, 1);
  EXPECT_EQ(counts.total(), 5);
  EXPECT_DOUBLE_EQ(recovery(counts), 1.0);
}

TEST(Recovery, OfATaskTheBaselineCannotDoIsNotANumber) {
  EXPECT_TRUE(std::isnan(recovery({.both = 0, .lost = 0, .gained = 3, .neither = 5})));
  EXPECT_DOUBLE_EQ(recovery({.both = 8, .lost = 2, .gained = 0, .neither = 5}), 0.8);
}

TEST(Median, OddEvenEmptyAndNan) {
  EXPECT_DOUBLE_EQ(median({3, 1, 2}), 2);
  EXPECT_DOUBLE_EQ(median({4, 1, 2, 3}), 2.5);
  EXPECT_DOUBLE_EQ(median({kNan, 5, kNan}), 5);
  EXPECT_TRUE(std::isnan(median({})));
}

TEST(MedianRecovery, IsReproducible) {
  std::mt19937_64 random(5);
  const auto counts = sample(truths(0.02, 0.02), 60, random);
  const Estimate first = median_recovery(counts, {});
  const Estimate second = median_recovery(counts, {});
  EXPECT_EQ(first.low, second.low);
  EXPECT_EQ(first.high, second.high);
  EXPECT_LE(first.low, first.value);
  EXPECT_GE(first.high, first.value);
}

TEST(MedianRecovery, SkipsTasksWithoutBaseline) {
  const std::vector<PairCounts> with = {{.both = 90, .lost = 5, .gained = 2, .neither = 3},
                                        {.both = 0, .lost = 0, .gained = 9, .neither = 91}};
  EXPECT_DOUBLE_EQ(median_recovery(with, {}).value, 92.0 / 95.0);
  const Estimate none = median_recovery(std::span(with).subspan(1), {});
  EXPECT_TRUE(std::isnan(none.value));
  EXPECT_EQ(judge(none, kPublicRule), Verdict::kUndecided);
}

TEST(MedianRecovery, IdenticalAnswersPassOnManyItemsAndAreUndecidedOnFew) {
  std::mt19937_64 random(1);
  const auto verdict = [&](int items) {
    return judge(median_recovery(sample(truths(0, 0), items, random), {}), kPublicRule);
  };
  EXPECT_EQ(verdict(5), Verdict::kUndecided);
  EXPECT_EQ(verdict(20), Verdict::kUndecided);
  EXPECT_EQ(verdict(150), Verdict::kPass);
  EXPECT_EQ(verdict(1000), Verdict::kPass);
}

TEST(MedianRecovery, PlantedLossOfTwoPercentFailsOnManyItems) {
  std::mt19937_64 random(2);
  for (double noise : {0.0, 0.02}) {
    const auto counts = sample(truths(0.02, noise), 3000, random);
    EXPECT_EQ(judge(median_recovery(counts, {}), kPublicRule), Verdict::kFail) << noise;
  }
}

TEST(MedianRecovery, NoLossButNoisePassesOnManyItems) {
  std::mt19937_64 random(3);
  const auto counts = sample(truths(0, 0.02), 3000, random);
  EXPECT_EQ(judge(median_recovery(counts, {}), kPublicRule), Verdict::kPass);
}

TEST(MedianRecovery, LossOfTwoPercentIsUndecidedOnFewItems) {
  std::mt19937_64 random(4);
  const auto counts = sample(truths(0.02, 0.02), 20, random);
  EXPECT_EQ(judge(median_recovery(counts, {}), kPublicRule), Verdict::kUndecided);
}

TEST(MedianRecovery, LossOfSeventeenPercentFailsOnFewItems) {
  std::mt19937_64 random(4);
  const auto counts = sample(truths(0.17, 0.01), 40, random);
  EXPECT_EQ(judge(median_recovery(counts, {}), kPublicRule), Verdict::kFail);
}

// How often the 95 % interval holds the truth, and how often the gate is wrong, over simulated
// evaluations. The percentile bootstrap of a median is known to err on the wide side.
struct Simulation {
  int covered = 0, passed = 0, failed = 0;
};

Simulation simulate(double loss, double noise, int items, int evaluations) {
  const auto tasks = truths(loss, noise);
  std::vector<double> recoveries;
  for (const Truth& task : tasks) recoveries.push_back(task.recovery());
  const double truth = median(recoveries);
  std::mt19937_64 random(99);
  Simulation result;
  for (int i = 0; i < evaluations; ++i) {
    const Estimate estimate = median_recovery(sample(tasks, items, random), {.resamples = 400});
    result.covered += estimate.low <= truth + 1e-9 && truth - 1e-9 <= estimate.high;
    const Verdict verdict = judge(estimate, kPublicRule);
    result.passed += verdict == Verdict::kPass;
    result.failed += verdict == Verdict::kFail;
  }
  return result;
}

TEST(MedianRecovery, IntervalCoversTheTruth) {
  constexpr int kEvaluations = 200;
  // With 95 % coverage fewer than 180 of 200 happens once in a thousand times.
  for (int items : {40, 150}) {
    for (double loss : {0.0, 0.02, 0.05}) {
      EXPECT_GE(simulate(loss, 0.02, items, kEvaluations).covered, 180) << items << " " << loss;
    }
  }
}

TEST(MedianRecovery, GateIsSeldomWrong) {
  constexpr int kEvaluations = 200;
  // Either tail is 2.5 %; 13 or more of 200 happens twice in a thousand times.
  EXPECT_LT(simulate(0.02, 0.02, 150, kEvaluations).passed, 13);
  EXPECT_LT(simulate(0.012, 0.0, 150, kEvaluations).passed, 13);
  EXPECT_LT(simulate(0.0, 0.02, 150, kEvaluations).failed, 13);
  EXPECT_LT(simulate(0.008, 0.02, 150, kEvaluations).failed, 13);
}

TEST(GrowthThatDecides, PredictsItemsForALoss) {
  std::mt19937_64 random(7);
  const auto tasks = truths(0.03, 0.02);
  const auto counts = sample(tasks, 60, random);
  ASSERT_EQ(judge(median_recovery(counts, {}), kPublicRule), Verdict::kUndecided);
  const auto growth = growth_that_decides_recovery(counts, kPublicRule, {});
  ASSERT_TRUE(growth);
  EXPECT_GT(*growth, 1);
  // With half as many again as predicted the same rates are decided.
  std::vector<PairCounts> grown = counts;
  const auto times = static_cast<int64_t>(std::ceil(*growth * 1.5));
  for (PairCounts& c : grown) {
    c = {c.both * times, c.lost * times, c.gained * times, c.neither * times};
  }
  EXPECT_NE(judge(median_recovery(grown, {}), kPublicRule), Verdict::kUndecided);
}

TEST(GrowthThatDecides, IdenticalAnswersNeedAFewTimesAsMany) {
  const std::vector<PairCounts> tasks(11, {.both = 20, .lost = 0, .gained = 0, .neither = 0});
  const auto growth = growth_that_decides_recovery(tasks, kPublicRule, {});
  ASSERT_TRUE(growth);
  EXPECT_GT(*growth, 2);
  EXPECT_LT(*growth, 10);
}

TEST(GrowthThatDecides, NothingDecidesAValueOnTheLimit) {
  const std::vector<PairCounts> tasks(11, {.both = 98, .lost = 1, .gained = 0, .neither = 1});
  EXPECT_FALSE(growth_that_decides_recovery(tasks, {.limit = 98.0 / 99.0, .is_minimum = true}, {}));
}

TEST(GrowthThatDecides, NothingSeenTwiceAsOftenIsTwiceAsSure) {
  const std::vector<PairCounts> none = {{.both = 0, .lost = 0, .gained = 0, .neither = 50}};
  const auto growth = growth_that_decides_proportion(none, {.limit = 0.005}, {});
  ASSERT_TRUE(growth);
  EXPECT_GT(*growth, 4);
  EXPECT_LT(*growth, 20);
}

TEST(GrowthThatDecides, SquareRootLaw) {
  const Bound most{.limit = 1.0, .is_minimum = false};
  EXPECT_NEAR(growth_that_decides({0.9, 0.7, 1.1}, most).value(), 4, 1e-9);
  EXPECT_NEAR(growth_that_decides({1.1, 0.8, 1.4}, most).value(), 9, 1e-9);
  EXPECT_DOUBLE_EQ(growth_that_decides({0.5, 0.4, 0.6}, most).value(), 1);
  EXPECT_FALSE(growth_that_decides({1.0, 0.9, 1.1}, most));
  EXPECT_FALSE(growth_that_decides(mean_with_t_interval(std::vector<double>{0.5}, 0.95), most));
}

TEST(Judge, BothDirections) {
  const Bound least{.limit = 1, .is_minimum = true};
  const Bound most{.limit = 1, .is_minimum = false};
  const Estimate above{1.2, 1.0, 1.4};
  const Estimate below{0.8, 0.6, 1.0};
  const Estimate across{1.1, 0.9, 1.3};
  EXPECT_EQ(judge(above, least), Verdict::kPass);
  EXPECT_EQ(judge(below, most), Verdict::kPass);
  EXPECT_EQ(judge({1.2, 1.1, 1.3}, most), Verdict::kFail);
  EXPECT_EQ(judge({0.8, 0.7, 0.9}, least), Verdict::kFail);
  EXPECT_EQ(judge(across, least), Verdict::kUndecided);
  EXPECT_EQ(judge(across, most), Verdict::kUndecided);
}

TEST(ProportionChange, CountsBothDirections) {
  const std::vector<PairCounts> tasks = {{.both = 1, .lost = 2, .gained = 6, .neither = 91},
                                         {.both = 0, .lost = 0, .gained = 4, .neither = 96}};
  const Estimate change = proportion_change(tasks, {});
  EXPECT_DOUBLE_EQ(change.value, 8.0 / 200.0);
  EXPECT_GT(change.low, 0);
  EXPECT_LT(change.high, 0.08);
}

TEST(ProportionChange, NothingSeenIsNotProofOfNothing) {
  const auto unchanged = [](int64_t items) {
    return std::vector<PairCounts>{{.both = 0, .lost = 0, .gained = 0, .neither = items}};
  };
  const Bound most{.limit = 0.005, .is_minimum = false};
  EXPECT_EQ(judge(proportion_change(unchanged(50), {}), most), Verdict::kUndecided);
  EXPECT_EQ(judge(proportion_change(unchanged(1650), {}), most), Verdict::kPass);
}

TEST(RatioOfSums, PairsCancelWhatTheyShare) {
  // Lengths vary a lot between items, but the candidate is 2 % longer in each.
  std::vector<Pair> pairs;
  for (int i = 1; i <= 100; ++i) pairs.push_back({50.0 * i, 51.0 * i});
  const std::vector<std::vector<Pair>> groups = {pairs};
  const Estimate ratio = ratio_of_sums(groups, {});
  EXPECT_NEAR(ratio.value, 1.02, 1e-12);
  EXPECT_NEAR(ratio.low, 1.02, 1e-12);
  EXPECT_NEAR(ratio.high, 1.02, 1e-12);
}

TEST(RatioOfSums, CoversTheTruth) {
  std::mt19937_64 random(11);
  std::exponential_distribution<double> length(1.0 / 40);
  int covered = 0;
  for (int evaluation = 0; evaluation < 200; ++evaluation) {
    std::vector<Pair> pairs;
    for (int i = 0; i < 200; ++i) pairs.push_back({length(random), 1.1 * length(random)});
    const std::vector<std::vector<Pair>> groups = {pairs};
    const Estimate ratio = ratio_of_sums(groups, {.resamples = 400});
    covered += ratio.low <= 1.1 && 1.1 <= ratio.high;
  }
  EXPECT_GE(covered, 178);
  EXPECT_LT(covered, 200);
}

TEST(MedianRatio, HoldsTheTruthAndIgnoresAnOutlier) {
  std::mt19937_64 random(7);
  std::normal_distribution<double> normal(0, 0.02);
  int covered = 0;
  for (int i = 0; i < 200; ++i) {
    std::vector<Pair> pairs;
    for (int item = 0; item < 15; ++item) {
      const double baseline = 1 + std::abs(normal(random)) * 10;
      pairs.push_back({baseline, 1.1 * baseline * (1 + normal(random))});
    }
    pairs.push_back({1, 50});
    const Estimate ratio = median_ratio(pairs, {.resamples = 400});
    covered += ratio.low <= 1.1 && 1.1 <= ratio.high;
    EXPECT_LT(ratio.value, 1.2);
  }
  EXPECT_GE(covered, 180);
  EXPECT_LT(covered, 200);
  EXPECT_TRUE(std::isinf(median_ratio({}, {}).high));
}

// Values of the usual tables of Student's t.
TEST(StudentT, TableValues) {
  EXPECT_NEAR(student_t_quantile(0.975, 1), 12.706, 1e-3);
  EXPECT_NEAR(student_t_quantile(0.975, 2), 4.303, 1e-3);
  EXPECT_NEAR(student_t_quantile(0.975, 3), 3.182, 1e-3);
  EXPECT_NEAR(student_t_quantile(0.95, 10), 1.812, 1e-3);
  EXPECT_NEAR(student_t_quantile(0.975, 30), 2.042, 1e-3);
  EXPECT_NEAR(student_t_quantile(0.975, 1000), 1.962, 1e-3);
  EXPECT_NEAR(student_t_quantile(0.025, 10), -2.228, 1e-3);
  EXPECT_NEAR(student_t_quantile(0.5, 7), 0, 1e-9);
}

TEST(MeanWithTInterval, KnownSample) {
  const std::vector<double> values = {1, 2, 3, 4, 5};
  const Estimate mean = mean_with_t_interval(values, 0.95);
  EXPECT_DOUBLE_EQ(mean.value, 3);
  EXPECT_NEAR(mean.high - mean.value, 2.776 * std::sqrt(2.5 / 5), 1e-3);
  EXPECT_EQ(judge(mean_with_t_interval(std::span(values).first(1), 0.95), {.limit = 9}),
            Verdict::kUndecided);
}

}  // namespace
}  // namespace levin::evaluate
