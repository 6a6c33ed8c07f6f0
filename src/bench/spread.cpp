#include "bench/spread.h"

#include <algorithm>
#include <vector>

#include "evaluate/statistics.h"

namespace levin::bench {

Spread spread_of(std::span<const double> values) {
  if (values.empty()) return {};
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  return {evaluate::median({values.begin(), values.end()}), *least, *most};
}

Spread paired_ratio(std::span<const double> numerators, std::span<const double> denominators) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < numerators.size(); ++i) {
    ratios.push_back(numerators[i] / denominators[i]);
  }
  return spread_of(ratios);
}

}  // namespace levin::bench
