#include "engine/step_policy.h"

#include <algorithm>
#include <cmath>

namespace levin::engine {
namespace {

constexpr int64_t kExactRows = 8;
constexpr std::size_t kPoints = kExactRows + 80;  // up to 2^20 times kExactRows

// Samples of an acceptance rate weigh half as much after this many later ones.
constexpr double kHalfLife = 100;
// Weight of what is assumed before there are samples: that drafts are right as often as this, or as
// those of the place before.
constexpr double kPriorTries = 2;
constexpr double kPriorShare = 0.8;

// Another number of drafts must promise this much more, lest noise decide.
constexpr double kWorthChanging = 1.02;
// Rounds between trials of a neighbour of the current choice, which keep the costs and shares
// fresh. A trial that is twice as slow, every 64 rounds, costs 1.6 %; most cost far less.
constexpr int kFirstTrialInterval = 32;
constexpr int kLastTrialInterval = 256;

// Fewer prompt tokens than this a round would keep the prompt waiting for nothing: it costs hardly
// less.
constexpr int64_t kFewestPromptTokens = 16;

}  // namespace

void RecentMedian::add(double sample) {
  samples_[next_] = sample;
  next_ = (next_ + 1) % samples_.size();
  count_ = std::min(count_ + 1, samples_.size());
  auto sorted = samples_;
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>((count_ - 1) / 2);
  std::nth_element(sorted.begin(), middle, sorted.begin() + static_cast<std::ptrdiff_t>(count_));
  value_ = *middle;
}

PassCost::PassCost() : points_(kPoints) {}

void PassCost::add(int64_t rows, double seconds) {
  if (rows <= 0) return;
  std::size_t place = static_cast<std::size_t>(rows - 1);
  if (rows > kExactRows) {
    const double octaves = std::log2(static_cast<double>(rows) / kExactRows);
    place = static_cast<std::size_t>(kExactRows - 1 + std::lround(4 * octaves));
  }
  Point& point = points_[std::min(place, points_.size() - 1)];
  const auto exact = static_cast<double>(rows);
  point.rows = point.seconds.empty() ? exact : point.rows + (exact - point.rows) / 4;
  point.seconds.add(seconds);
  measured_ = true;
}

double PassCost::seconds(double rows) const {
  const Point* below = nullptr;
  for (const Point& point : points_) {
    if (point.seconds.empty()) continue;
    const double seconds = point.seconds.value();
    if (point.rows >= rows) {
      if (below == nullptr) return seconds * rows / point.rows;
      const double share = (rows - below->rows) / (point.rows - below->rows);
      return below->seconds.value() + share * (seconds - below->seconds.value());
    }
    below = &point;
  }
  return below == nullptr ? 0 : below->seconds.value();
}

Acceptance::Acceptance(int most) : places_(static_cast<std::size_t>(most)) {}

void Acceptance::add(std::size_t place, int tried, int right) {
  if (place >= places_.size() || tried == 0) return;
  const double faded = std::exp2(-tried / kHalfLife);
  places_[place].tried = places_[place].tried * faded + tried;
  places_[place].right = places_[place].right * faded + right;
}

double Acceptance::expected_tokens(int drafts) const {
  double tokens = 1;
  double share = kPriorShare;
  double all_right = 1;
  for (std::size_t i = 0; i < std::min(places_.size(), static_cast<std::size_t>(drafts)); ++i) {
    share = (places_[i].right + kPriorTries * share) / (places_[i].tried + kPriorTries);
    all_right *= share;
    tokens += all_right;
  }
  return tokens;
}

StepPolicy::StepPolicy(const StepPolicyOptions& options)
    : options_(options),
      acceptance_(options.most_drafts),
      drafts_(options.most_drafts),
      trial_interval_(kFirstTrialInterval) {}

double StepPolicy::round_seconds(const RoundDemand& demand, int drafts) const {
  return extend_cost_.seconds(demand.adaptive * (1 + drafts) + demand.other_rows) +
         (drafts > 0 ? drafts * draft_cost_.seconds(demand.adaptive) : 0);
}

int StepPolicy::best_drafts(const RoundDemand& demand, int most) const {
  const auto rate = [&](int drafts) {
    const double tokens = demand.adaptive * acceptance_.expected_tokens(drafts) + demand.other_rows;
    return tokens / round_seconds(demand, drafts);
  };
  int best = std::min(drafts_, most);
  double best_rate = rate(best) * kWorthChanging;
  for (int drafts = 0; drafts <= most; ++drafts) {
    if (rate(drafts) <= best_rate) continue;
    best = drafts;
    best_rate = rate(drafts);
  }
  return best;
}

int StepPolicy::choose_drafts(const RoundDemand& demand) {
  const int most = std::min(options_.most_drafts, demand.most_drafts);
  if (demand.adaptive == 0 || most == 0) return 0;
  if (extend_cost_.empty()) return std::min(drafts_, most);
  const int best = best_drafts(demand, most);
  if (best != drafts_) {
    drafts_ = best;
    trial_interval_ = kFirstTrialInterval;
  }
  if (++rounds_ < trial_interval_) return drafts_;
  rounds_ = 0;
  trial_interval_ = std::min(2 * trial_interval_, kLastTrialInterval);
  try_more_ = !try_more_;
  const bool more = drafts_ == 0 || (try_more_ && drafts_ < most);
  return more ? drafts_ + 1 : drafts_ - 1;
}

int64_t StepPolicy::prompt_tokens(double decode_seconds) const {
  if (options_.decode_slowdown <= 0) return options_.most_prompt_tokens;
  const int64_t fewest = std::min(std::max(kFewestPromptTokens, options_.fewest_prompt_tokens),
                                  options_.most_prompt_tokens);
  if (prompt_row_seconds_.empty() || prompt_row_seconds_.value() <= 0) return fewest;
  const double room = (options_.decode_slowdown - 1) * decode_seconds;
  const auto tokens = static_cast<int64_t>(
      std::min(room / prompt_row_seconds_.value(), static_cast<double>(1 << 20)));
  return std::clamp(tokens, fewest, options_.most_prompt_tokens);
}

RoundLimits StepPolicy::next(const RoundDemand& demand) {
  RoundLimits limits;
  limits.adaptive_drafts = choose_drafts(demand);
  limits.prompt_tokens = demand.adaptive + demand.other_rows == 0
                             ? options_.most_prompt_tokens
                             : prompt_tokens(round_seconds(demand, limits.adaptive_drafts));
  return limits;
}

void StepPolicy::observe(const RoundReport& report) {
  if (report.drafting > 0) {
    draft_cost_.add(report.drafting, report.draft_seconds / report.draft_steps);
  }
  for (std::size_t i = 0; i < report.drafts_tried.size(); ++i) {
    acceptance_.add(i, report.drafts_tried[i], report.drafts_right[i]);
  }
  if (report.prompt_rows == 0) {
    extend_cost_.add(report.decode_rows, report.extend_seconds);
    return;
  }
  const double decode = report.decode_rows > 0 ? extend_cost_.seconds(report.decode_rows) : 0;
  const double rest = report.extend_seconds - decode;
  if (rest > 0) prompt_row_seconds_.add(rest / static_cast<double>(report.prompt_rows));
}

}  // namespace levin::engine
