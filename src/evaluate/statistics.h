// Interval estimates for the quality gate. Baseline and candidate answer the same items, so every
// estimate is made on pairs: what both share cancels out, and far fewer items decide.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace levin::evaluate {

struct Estimate {
  double value = 0;
  double low = 0;   // ends of the two-sided confidence interval
  double high = 0;  // may be infinite when the data cannot bound it
};

struct Bootstrap {
  double confidence = 0.95;  // two-sided, in (0, 1)
  int resamples = 4000;
  uint64_t seed = 20240229;  // fixed, so that the same results give the same verdict
};

// How the items of one task fell out for baseline and candidate.
struct PairCounts {
  int64_t both = 0;     // right in both
  int64_t lost = 0;     // right in the baseline only
  int64_t gained = 0;   // right in the candidate only
  int64_t neither = 0;  // wrong in both

  void add(bool baseline, bool candidate);
  int64_t total() const { return both + lost + gained + neither; }
  int64_t baseline_right() const { return both + lost; }
  int64_t candidate_right() const { return both + gained; }
};

// Candidate accuracy divided by baseline accuracy; NaN when the baseline got nothing right.
double recovery(const PairCounts& counts);

// The median that the middle of an odd number of values, or the mean of the two middle ones, gives.
// NaNs are left out; NaN when nothing is left.
double median(std::vector<double> values);

// Median over tasks of the recovery, with a percentile bootstrap interval: items are resampled
// within each task, pairs kept together (Efron and Tibshirani, An Introduction to the Bootstrap,
// 1993, chapters 8 and 13).
//
// The resampling probabilities are smoothed: half an item is added to `lost` and half to `gained`
// of each task, as Jeffreys' prior does for a proportion. Without it a task in which no item
// changed would count as proven lossless however few its items, and a handful of items would pass.
//
// Tasks in which the baseline got nothing right have no recovery and take no part. When none is
// left the interval is (-inf, inf) and the value NaN.
Estimate median_recovery(std::span<const PairCounts> tasks, const Bootstrap& options);

// Change of a proportion between paired outcomes, (gained - lost) / total, smoothed and resampled
// as above over all tasks together.
Estimate proportion_change(std::span<const PairCounts> tasks, const Bootstrap& options);

// One item measured in both.
struct Pair {
  double baseline = 0;
  double candidate = 0;
};

// Sum over the candidate divided by sum over the baseline, with a percentile bootstrap interval
// that resamples pairs within each group. Baseline sums must be positive.
Estimate ratio_of_sums(std::span<const std::vector<Pair>> groups, const Bootstrap& options);

// Median over pairs of candidate / baseline, with a percentile bootstrap interval that resamples
// the pairs. Baselines must be positive.
Estimate median_ratio(std::span<const Pair> pairs, const Bootstrap& options);

// Mean of a sample, with Student's t interval. One value bounds nothing: (-inf, inf).
Estimate mean_with_t_interval(std::span<const double> values, double confidence);

// The value that Student's t with `degrees` >= 1 degrees of freedom stays below with probability
// `p` in (0, 1).
double student_t_quantile(double p, int64_t degrees);

// A bound that a quantity has to keep to.
struct Bound {
  double limit = 0;
  bool is_minimum = false;  // the quantity must be at least `limit`; else at most
};

enum class Verdict { kPass, kFail, kUndecided };

// Pass or fail when the whole interval lies on one side of the limit, else undecided.
Verdict judge(const Estimate& estimate, const Bound& bound);

// About how many times as many items would decide, were the rates seen so far the true ones: the
// interval is computed again as if every count were that many times larger. Nothing when not even
// 1024 times as many would, because the value lies almost on the limit.
std::optional<double> growth_that_decides_recovery(std::span<const PairCounts> tasks,
                                                   const Bound& bound, const Bootstrap& options);

std::optional<double> growth_that_decides_proportion(std::span<const PairCounts> tasks,
                                                     const Bound& bound, const Bootstrap& options);

// The same for estimates whose interval shrinks with the square root of the number of items.
std::optional<double> growth_that_decides(const Estimate& estimate, const Bound& bound);

}  // namespace levin::evaluate
