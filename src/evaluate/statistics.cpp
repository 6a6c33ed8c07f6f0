#include "evaluate/statistics.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>
#include <random>
#include <utility>

namespace levin::evaluate {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
// Added to `lost` and to `gained` of each task before resampling.
constexpr double kSmoothing = 0.5;
constexpr double kLargestGrowth = 1024;

// Probabilities of the cells of one task, smoothed, and how many items to draw. `growth` pretends
// that the same rates were seen on that many times as many items.
struct Cells {
  double both = 0, lost = 0, gained = 0;
  int64_t items = 0;
};

Cells smoothed(const PairCounts& counts, double growth) {
  const double total = static_cast<double>(counts.total()) * growth + 2 * kSmoothing;
  return {.both = static_cast<double>(counts.both) * growth / total,
          .lost = (static_cast<double>(counts.lost) * growth + kSmoothing) / total,
          .gained = (static_cast<double>(counts.gained) * growth + kSmoothing) / total,
          .items = std::llround(static_cast<double>(counts.total()) * growth)};
}

int64_t draw_binomial(int64_t trials, double probability, std::mt19937_64& random) {
  if (trials == 0 || probability <= 0) return 0;
  if (probability >= 1) return trials;
  return std::binomial_distribution<int64_t>(trials, probability)(random);
}

// Multinomial by conditional binomials.
PairCounts draw(const Cells& cells, std::mt19937_64& random) {
  PairCounts counts;
  int64_t left = cells.items;
  double mass = 1;
  for (auto [probability, count] :
       {std::pair{cells.both, &counts.both}, std::pair{cells.lost, &counts.lost},
        std::pair{cells.gained, &counts.gained}}) {
    *count = draw_binomial(left, probability / mass, random);
    left -= *count;
    mass -= probability;
  }
  counts.neither = left;
  return counts;
}

// The quantile of a sorted sample, linear between order statistics.
double quantile(const std::vector<double>& sorted, double p) {
  const double position = p * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(position);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return std::lerp(sorted[below], sorted[above], position - static_cast<double>(below));
}

Estimate with_percentiles(double value, std::vector<double> draws, double confidence) {
  std::erase_if(draws, [](double draw) { return std::isnan(draw); });
  if (std::isnan(value) || draws.empty()) return {kNan, -kInfinity, kInfinity};
  std::sort(draws.begin(), draws.end());
  const double tail = (1 - confidence) / 2;
  // The point estimate is part of what the data support, whatever the smoothing did.
  return {value, std::min(value, quantile(draws, tail)),
          std::max(value, quantile(draws, 1 - tail))};
}

double median_of_recoveries(std::span<const PairCounts> tasks) {
  std::vector<double> values;
  values.reserve(tasks.size());
  for (const PairCounts& counts : tasks) values.push_back(recovery(counts));
  return median(std::move(values));
}

Estimate median_recovery(std::span<const PairCounts> tasks, const Bootstrap& options,
                         double growth) {
  std::vector<PairCounts> judged;
  std::copy_if(tasks.begin(), tasks.end(), std::back_inserter(judged),
               [](const PairCounts& counts) { return counts.baseline_right() > 0; });
  std::vector<Cells> cells;
  for (const PairCounts& counts : judged) cells.push_back(smoothed(counts, growth));

  std::mt19937_64 random(options.seed);
  std::vector<double> draws(static_cast<std::size_t>(options.resamples));
  std::vector<PairCounts> resampled(judged.size());
  for (double& value : draws) {
    for (std::size_t task = 0; task < cells.size(); ++task) {
      resampled[task] = draw(cells[task], random);
    }
    value = median_of_recoveries(resampled);
  }
  return with_percentiles(median_of_recoveries(judged), std::move(draws), options.confidence);
}

Estimate proportion_change(std::span<const PairCounts> tasks, const Bootstrap& options,
                           double growth) {
  PairCounts all;
  for (const PairCounts& counts : tasks) {
    all.both += counts.both;
    all.lost += counts.lost;
    all.gained += counts.gained;
    all.neither += counts.neither;
  }
  if (all.total() == 0) return {kNan, -kInfinity, kInfinity};
  const auto change = [](const PairCounts& counts) {
    return static_cast<double>(counts.gained - counts.lost) / static_cast<double>(counts.total());
  };
  const Cells cells = smoothed(all, growth);
  std::mt19937_64 random(options.seed);
  std::vector<double> draws(static_cast<std::size_t>(options.resamples));
  for (double& value : draws) value = change(draw(cells, random));
  return with_percentiles(change(all), std::move(draws), options.confidence);
}

// The smallest growth at which `estimate_at(growth)` is decided, to about 3 %.
template <typename EstimateAt>
std::optional<double> search_growth(EstimateAt&& estimate_at, const Bound& bound) {
  const auto decided = [&](double growth) {
    return judge(estimate_at(growth), bound) != Verdict::kUndecided;
  };
  if (decided(1)) return 1;
  double enough = 2;
  while (!decided(enough)) {
    enough *= 2;
    if (enough > kLargestGrowth) return std::nullopt;
  }
  double too_few = enough / 2;
  for (int i = 0; i < 5; ++i) {
    const double middle = (too_few + enough) / 2;
    (decided(middle) ? enough : too_few) = middle;
  }
  return enough;
}

// P(|T| < t) for Student's t with `degrees` degrees of freedom (Abramowitz and Stegun, Handbook of
// Mathematical Functions, 26.7.3 and 26.7.4).
double central_probability(double t, int64_t degrees) {
  const double angle = std::atan(t / std::sqrt(static_cast<double>(degrees)));
  const double cosine = std::cos(angle);
  const bool odd = degrees % 2 == 1;
  double term = odd ? cosine : 1;
  double sum = 0;
  for (int64_t i = odd ? 3 : 2; i <= degrees; i += 2) {
    sum += term;
    term *= cosine * cosine * static_cast<double>(i - 1) / static_cast<double>(i);
  }
  if (!odd) return std::sin(angle) * sum;
  return (angle + std::sin(angle) * sum) * 2 / std::numbers::pi;
}

}  // namespace

void PairCounts::add(bool baseline, bool candidate) {
  if (baseline) {
    ++(candidate ? both : lost);
  } else {
    ++(candidate ? gained : neither);
  }
}

double recovery(const PairCounts& counts) {
  if (counts.baseline_right() == 0) return kNan;
  return static_cast<double>(counts.candidate_right()) /
         static_cast<double>(counts.baseline_right());
}

double median(std::vector<double> values) {
  std::erase_if(values, [](double value) { return std::isnan(value); });
  if (values.empty()) return kNan;
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  if (values.size() % 2 == 1) return values[middle];
  return (values[middle - 1] + values[middle]) / 2;
}

Estimate median_recovery(std::span<const PairCounts> tasks, const Bootstrap& options) {
  return median_recovery(tasks, options, 1);
}

Estimate proportion_change(std::span<const PairCounts> tasks, const Bootstrap& options) {
  return proportion_change(tasks, options, 1);
}

Estimate ratio_of_sums(std::span<const std::vector<Pair>> groups, const Bootstrap& options) {
  Pair sums;
  for (const std::vector<Pair>& group : groups) {
    for (const Pair& pair : group) {
      sums.baseline += pair.baseline;
      sums.candidate += pair.candidate;
    }
  }
  std::mt19937_64 random(options.seed);
  std::vector<double> draws(static_cast<std::size_t>(options.resamples));
  for (double& value : draws) {
    Pair drawn;
    for (const std::vector<Pair>& group : groups) {
      if (group.empty()) continue;
      std::uniform_int_distribution<std::size_t> any(0, group.size() - 1);
      for (std::size_t i = 0; i < group.size(); ++i) {
        const Pair& pair = group[any(random)];
        drawn.baseline += pair.baseline;
        drawn.candidate += pair.candidate;
      }
    }
    value = drawn.candidate / drawn.baseline;
  }
  return with_percentiles(sums.candidate / sums.baseline, std::move(draws), options.confidence);
}

Estimate median_ratio(std::span<const Pair> pairs, const Bootstrap& options) {
  std::vector<double> ratios;
  for (const Pair& pair : pairs) ratios.push_back(pair.candidate / pair.baseline);
  if (ratios.empty()) return {kNan, -kInfinity, kInfinity};
  std::mt19937_64 random(options.seed);
  std::uniform_int_distribution<std::size_t> any(0, ratios.size() - 1);
  std::vector<double> draws(static_cast<std::size_t>(options.resamples));
  std::vector<double> resample(ratios.size());
  for (double& value : draws) {
    for (double& ratio : resample) ratio = ratios[any(random)];
    value = median(resample);
  }
  return with_percentiles(median(ratios), std::move(draws), options.confidence);
}

Estimate mean_with_t_interval(std::span<const double> values, double confidence) {
  const auto count = static_cast<double>(values.size());
  if (values.empty()) return {kNan, -kInfinity, kInfinity};
  double mean = 0;
  for (double value : values) mean += value / count;
  if (values.size() < 2) return {mean, -kInfinity, kInfinity};
  double squares = 0;
  for (double value : values) squares += (value - mean) * (value - mean);
  const double error = std::sqrt(squares / (count - 1) / count);
  const double reach =
      student_t_quantile((1 + confidence) / 2, static_cast<int64_t>(values.size()) - 1) * error;
  return {mean, mean - reach, mean + reach};
}

double student_t_quantile(double p, int64_t degrees) {
  if (p < 0.5) return -student_t_quantile(1 - p, degrees);
  const double central = 2 * p - 1;
  double high = 1;
  while (central_probability(high, degrees) < central && high < 1e12) high *= 2;
  double low = 0;
  for (int i = 0; i < 200 && high - low > 1e-12 * high; ++i) {
    const double middle = (low + high) / 2;
    (central_probability(middle, degrees) < central ? low : high) = middle;
  }
  return (low + high) / 2;
}

Verdict judge(const Estimate& estimate, const Bound& bound) {
  if (std::isnan(estimate.value)) return Verdict::kUndecided;
  if (bound.is_minimum) {
    if (estimate.low >= bound.limit) return Verdict::kPass;
    return estimate.high < bound.limit ? Verdict::kFail : Verdict::kUndecided;
  }
  if (estimate.high <= bound.limit) return Verdict::kPass;
  return estimate.low > bound.limit ? Verdict::kFail : Verdict::kUndecided;
}

std::optional<double> growth_that_decides_recovery(std::span<const PairCounts> tasks,
                                                   const Bound& bound, const Bootstrap& options) {
  return search_growth([&](double growth) { return median_recovery(tasks, options, growth); },
                       bound);
}

std::optional<double> growth_that_decides_proportion(std::span<const PairCounts> tasks,
                                                     const Bound& bound, const Bootstrap& options) {
  return search_growth([&](double growth) { return proportion_change(tasks, options, growth); },
                       bound);
}

std::optional<double> growth_that_decides(const Estimate& estimate, const Bound& bound) {
  if (judge(estimate, bound) != Verdict::kUndecided) return 1;
  const double distance = std::abs(estimate.value - bound.limit);
  const bool below = estimate.value < bound.limit;
  const double reach = below ? estimate.high - estimate.value : estimate.value - estimate.low;
  const double growth = (reach / distance) * (reach / distance);
  if (!std::isfinite(growth) || growth > kLargestGrowth) return std::nullopt;
  return growth;
}

}  // namespace levin::evaluate
