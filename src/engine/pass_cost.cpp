#include "engine/pass_cost.h"

#include <algorithm>
#include <cmath>

namespace levin::engine {
namespace {

using Vector = std::array<double, 3>;
using Matrix = std::array<Vector, 3>;

// Numbers are told apart up to here, and four an octave beyond.
constexpr int kExact = 8;
constexpr std::size_t kLines = kExact + 40;  // up to 2^10 times kExact

// Share of the mean square that pulls the parts of a plane to 0: what measurements leave open (all
// of as many rows a sequence, say) is split evenly between them.
constexpr double kRidge = 1e-3;
// The same for the fixed part of what prompts cost, against sizes that hardly differ.
constexpr double kPromptRidge = 0.002;
// Share of what is known of prompts that a round leaves.
constexpr double kPromptMemory = 1 - 1.0 / 128;
// Seconds of a sample in terms of what was expected, beyond which it is a hiccup.
constexpr double kPromptHiccup = 2;
// Samples that a pass must have to be believed as much as the plane.
constexpr double kDoubt = 1;
// Lines beyond which a cell says nothing about another's deviation from the plane.
constexpr std::size_t kReach = 4;

std::size_t place(double number) {
  if (number <= kExact) return static_cast<std::size_t>(std::lround(std::max(number, 1.0))) - 1;
  return static_cast<std::size_t>(kExact - 1 + std::lround(4 * std::log2(number / kExact)));
}

// How much a cell says about another, so many lines away.
double closeness(int lines) {
  return 1 / (1 + 0.5 * lines * lines);
}

// Solves for the unknowns in use; the others are 0. Symmetric and positive definite.
Vector solve(Matrix a, Vector y, const std::array<bool, 3>& in_use) {
  for (std::size_t i = 0; i < 3; ++i) {
    if (in_use[i]) continue;
    y[i] = 0;
    for (std::size_t j = 0; j < 3; ++j) a[i][j] = a[j][i] = i == j ? 1 : 0;
  }
  for (std::size_t i = 0; i < 3; ++i) {
    for (std::size_t j = i + 1; j < 3; ++j) {
      const double factor = a[j][i] / a[i][i];
      for (std::size_t k = i; k < 3; ++k) a[j][k] -= factor * a[i][k];
      y[j] -= factor * y[i];
    }
  }
  for (std::size_t i = 3; i-- > 0;) {
    for (std::size_t k = i + 1; k < 3; ++k) y[i] -= a[i][k] * y[k];
    y[i] /= a[i][i];
  }
  return y;
}

// Least squares with no part below 0: parts that would be are left out, the worst first.
Vector solve_nonnegative(const Matrix& a, const Vector& y) {
  std::array<bool, 3> in_use = {true, true, true};
  Vector x = solve(a, y, in_use);
  for (int dropped = 0; dropped < 2; ++dropped) {
    const auto worst = std::min_element(x.begin(), x.end());
    if (*worst >= 0) break;
    in_use[static_cast<std::size_t>(worst - x.begin())] = false;
    x = solve(a, y, in_use);
  }
  return x;
}

}  // namespace

void RecentTypical::add(double sample) {
  samples_[next_] = sample;
  next_ = (next_ + 1) % kMost;
  count_ = std::min(count_ + 1, kMost);
  auto sorted = samples_;
  const auto third = sorted.begin() + static_cast<std::ptrdiff_t>((count_ - 1) / 3);
  std::nth_element(sorted.begin(), third, sorted.begin() + static_cast<std::ptrdiff_t>(count_));
  value_ = *third;
}

PassCost::PassCost(int64_t most_rows_per_sequence)
    : columns_(place(static_cast<double>(most_rows_per_sequence)) + 1), cells_(kLines * columns_) {
  used_.reserve(cells_.size());
}

std::size_t PassCost::column(double rows_per_sequence) const {
  return std::min(place(rows_per_sequence), columns_ - 1);
}

void PassCost::add(int64_t rows, int64_t sequences, double seconds) {
  if (rows <= 0 || sequences <= 0 || seconds <= 0) return;
  const auto exact_rows = static_cast<double>(rows);
  const auto exact_sequences = static_cast<double>(sequences);
  const std::size_t line = std::min(place(exact_sequences), kLines - 1);
  const std::size_t index = line * columns_ + column(exact_rows / exact_sequences);
  Cell& cell = cells_[index];
  if (cell.seconds.count() == 0) {
    cell = {static_cast<int>(line), exact_rows, exact_sequences, {}};
    used_.push_back(index);
  }
  cell.rows += (exact_rows - cell.rows) / 4;
  cell.sequences += (exact_sequences - cell.sequences) / 4;
  cell.seconds.add(seconds);
}

PassCost::Near PassCost::near(double sequences) const {
  Near near;
  near.cost_ = this;
  near.sequences_ = sequences;
  const int line = static_cast<int>(std::min(place(sequences), kLines - 1));
  // In parts of a cell's own seconds, so that errors are relative.
  Matrix a = {};
  Vector y = {};
  for (const std::size_t index : used_) {
    const Cell& cell = cells_[index];
    const double weight = closeness(cell.line - line) * static_cast<double>(cell.seconds.count());
    const double scale = 1 / cell.seconds.value();
    const Vector x = {scale, cell.rows * scale, cell.sequences * scale};
    for (std::size_t i = 0; i < 3; ++i) {
      y[i] += weight * x[i];
      for (std::size_t j = 0; j < 3; ++j) a[i][j] += weight * x[i] * x[j];
    }
  }
  for (std::size_t i = 0; i < 3; ++i) a[i][i] *= 1 + kRidge;
  if (!empty()) near.plane_ = solve_nonnegative(a, y);
  return near;
}

std::size_t PassCost::Near::samples(double rows) const {
  const std::size_t line = std::min(place(sequences_), kLines - 1);
  return cost_->cells_[line * cost_->columns_ + cost_->column(rows / sequences_)].seconds.count();
}

double PassCost::Near::seconds(double rows) const {
  const std::size_t columns = cost_->columns_;
  const std::size_t column = cost_->column(rows / sequences_);
  const std::size_t line = std::min(place(sequences_), kLines - 1);
  // The mean of how much cells of the column are off, those of as many sequences counting most.
  double off = 0;
  double weights = kDoubt;
  const std::size_t end = std::min(line + kReach + 1, kLines);
  for (std::size_t other = line - std::min(line, kReach); other < end; ++other) {
    const Cell& cell = cost_->cells_[other * columns + column];
    if (cell.seconds.count() == 0) continue;
    const double close = closeness(static_cast<int>(other) - static_cast<int>(line));
    const double weight = close * close * close * static_cast<double>(cell.seconds.count());
    off += weight * (cell.seconds.value() / on_plane(cell.rows, cell.sequences) - 1);
    weights += weight;
  }
  return on_plane(rows, sequences_) * (1 + off / weights);
}

void PromptCost::add(int64_t tokens, double seconds, double round_seconds) {
  if (tokens <= 0 || round_seconds <= 0) return;
  if (!empty()) seconds = std::min(seconds, kPromptHiccup * this->seconds(tokens));
  const auto count = static_cast<double>(tokens);
  const double weight = 1 / (round_seconds * round_seconds);
  a00_ = a00_ * kPromptMemory + weight;
  a01_ = a01_ * kPromptMemory + weight * count;
  a11_ = a11_ * kPromptMemory + weight * count * count;
  y0_ = y0_ * kPromptMemory + weight * seconds;
  y1_ = y1_ * kPromptMemory + weight * count * seconds;
  const double a00 = a00_ * (1 + kPromptRidge);
  const double determinant = a00 * a11_ - a01_ * a01_;
  fixed_ = (y0_ * a11_ - y1_ * a01_) / determinant;
  price_ = (a00 * y1_ - a01_ * y0_) / determinant;
  if (fixed_ >= 0 && price_ > 0) return;
  fixed_ = 0;
  price_ = std::max(y1_ / a11_, 0.0);
}

}  // namespace levin::engine
