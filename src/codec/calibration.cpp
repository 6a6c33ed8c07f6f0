#include "codec/calibration.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace levin::codec {
namespace {

constexpr double kLow = -40.0;
constexpr double kHigh = 40.0;
constexpr std::size_t kBlock = 16;

int bin_of(double amax, int bins) {
  const double position = (std::log2(amax) - kLow) / (kHigh - kLow) * bins;
  return static_cast<int>(std::clamp(std::floor(position), 0.0, bins - 1.0));
}

double center_of(int bin, int bins) {
  return std::pow(2.0, kLow + (bin + 0.5) * (kHigh - kLow) / bins);
}

// Center of the first bin, from `first` on, at which the cumulative count reaches the percentile.
double percentile(std::span<const int64_t> counts, int first, double percent) {
  const auto bins = static_cast<int>(counts.size());
  int64_t total = 0;
  for (int i = first; i < bins; ++i) total += counts[static_cast<std::size_t>(i)];
  const double target = percent / 100.0 * static_cast<double>(total);
  int64_t cumulative = 0;
  for (int i = first; i < bins; ++i) {
    cumulative += counts[static_cast<std::size_t>(i)];
    if (cumulative > 0 && static_cast<double>(cumulative) >= target) return center_of(i, bins);
  }
  return center_of(bins - 1, bins);
}

float positive_scale(double amax, double divisor) {
  return std::max(static_cast<float>(amax) / static_cast<float>(divisor),
                  std::numeric_limits<float>::min());
}

}  // namespace

void ActivationStats::add(std::span<const float> row) {
  ++rows_;
  for (std::size_t begin = 0; begin < row.size(); begin += kBlock) {
    float amax = 0.0F;
    for (const float x : row.subspan(begin, std::min(kBlock, row.size() - begin))) {
      amax = std::max(amax, std::fabs(x));
    }
    add_block(static_cast<double>(amax));
  }
}

void ActivationStats::add_block(double amax) {
  if (!(amax > 0)) return;
  amax_ = std::max(amax_, amax);
  ++counts_[static_cast<std::size_t>(bin_of(amax, kBins))];
}

void ActivationStats::merge(const ActivationStats& other) {
  for (std::size_t i = 0; i < counts_.size(); ++i) counts_[i] += other.counts_[i];
  rows_ += other.rows_;
  amax_ = std::max(amax_, other.amax_);
}

Headroom ActivationStats::headroom(const HeadroomOptions& options) const {
  if (amax_ == 0) return {};
  Headroom result;
  result.upper =
      options.upper_percentile >= 100 ? amax_ : percentile(counts_, 0, options.upper_percentile);
  // ModelOpt holds the floor as float32.
  const auto floor = static_cast<float>(result.upper * options.floor_ratio);
  const int first = bin_of(static_cast<double>(floor), kBins);
  result.anchor = percentile(counts_, first, options.anchor_percentile);
  result.amax = std::max(options.rho * result.anchor, result.upper);
  return result;
}

float nvfp4_input_scale(double amax) {
  return positive_scale(amax, 2688.0);
}

float fp8_input_scale(double amax) {
  return positive_scale(amax, 448.0);
}

}  // namespace levin::codec
