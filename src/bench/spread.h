// Middle and ends of repeated measurements. Machines are noisy; a figure without its spread says
// nothing.
#pragma once

#include <span>

namespace levin::bench {

struct Spread {
  double median = 0;
  double min = 0;
  double max = 0;
};

// Zeros for no values.
Spread spread_of(std::span<const double> values);

// Spread of numerator[i] / denominator[i]: both were measured in the same round i, so what slows
// the whole machine cancels out. Sizes must be equal.
Spread paired_ratio(std::span<const double> numerators, std::span<const double> denominators);

}  // namespace levin::bench
