#include "engine/step_policy.h"

#include <algorithm>
#include <cmath>

namespace levin::engine {
namespace {

// Samples of an acceptance rate weigh half as much after this many later ones, and after this many
// rounds without any, down to a weight that a few new ones can turn.
constexpr double kHalfLife = 100;
constexpr double kHalfLifeRounds = 64;
constexpr double kLastingTries = 8;
// Weight of what is assumed before there are samples: that drafts are right as often as this, or as
// those of the place before.
constexpr double kPriorTries = 1.5;
constexpr double kPriorShare = 0.8;

// Another number of drafts must promise this much more, lest noise decide.
constexpr double kWorthChanging = 1.01;

// Share of the time that is saved for trials, at first and at last.
constexpr double kMostSaving = 0.02;
constexpr double kLeastSaving = kMostSaving / 8;
constexpr int64_t kRoundsBetweenTrials = 4;
// The first rounds look at both ends; more than once, for one may be a hiccup, and oftener at the
// end that costs less.
constexpr int64_t kFirstOfMost = 2;
constexpr int64_t kFirstOfNone = 3;

// Fewer prompt tokens than this a round are not worth the trouble.
constexpr int64_t kFewestPromptTokens = 8;
// The tokens of a chunk cost at least this many times as much as the chunk itself; or twice as many
// tokens would cost a sixth less each.
constexpr double kFixedInChunk = 2;
// Samples of a kind of round from which on its cost is known.
constexpr std::size_t kKnown = 4;

}  // namespace

Acceptance::Acceptance(int most) : places_(static_cast<std::size_t>(most)) {}

void Acceptance::add(std::size_t place, int tried, int right) {
  if (place >= places_.size()) return;
  Place& it = places_[place];
  double faded = std::exp2(-tried / kHalfLife);
  if (tried == 0 && it.tried > kLastingTries) faded = std::exp2(-1 / kHalfLifeRounds);
  it.tried = it.tried * faded + tried;
  it.right = it.right * faded + right;
}

double Acceptance::share(std::size_t place) const {
  double share = kPriorShare;
  for (std::size_t i = 0; i <= std::min(place, places_.size() - 1); ++i) {
    share = (places_[i].right + kPriorTries * share) / (places_[i].tried + kPriorTries);
  }
  return share;
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
      cost_(1 + options.most_drafts),
      acceptance_(options.most_drafts),
      drafts_(options.most_drafts),
      last_used_(static_cast<std::size_t>(options.most_drafts) + 1),
      saving_(kMostSaving) {}

int StepPolicy::most_drafts(const RoundDemand& demand) const {
  return demand.adaptive > 0 ? std::min(options_.most_drafts, demand.most_drafts) : 0;
}

double StepPolicy::tokens(const RoundDemand& demand, int drafts) const {
  return demand.adaptive * acceptance_.expected_tokens(drafts) + demand.others;
}

int StepPolicy::best_drafts(const RoundDemand& demand, const PassCost::Near& cost) const {
  const auto rate = [&](int drafts) {
    return tokens(demand, drafts) / cost.seconds(demand.rows(drafts));
  };
  const int most = most_drafts(demand);
  int best = std::min(drafts_, most);
  double best_rate = rate(best) * kWorthChanging;
  for (int drafts = 0; drafts <= most; ++drafts) {
    const double its_rate = rate(drafts);
    if (its_rate <= best_rate) continue;
    best = drafts;
    best_rate = its_rate;
  }
  return best;
}

void StepPolicy::change_choice(int drafts) {
  if (drafts == drafts_) return;
  drafts_ = drafts;
  saving_ = kMostSaving;
}

int StepPolicy::choose_drafts(const RoundDemand& demand, const PassCost::Near& cost) {
  const int most = most_drafts(demand);
  if (most == 0) return 0;
  if (cost_.empty()) return std::min(drafts_, most);
  ++rounds_;
  int drafts = 0;
  if (rounds_ <= kFirstOfMost + kFirstOfNone) {
    drafts = rounds_ <= kFirstOfMost ? most : 0;
  } else {
    change_choice(best_drafts(demand, cost));
    drafts = trial(demand, cost);
  }
  last_used_[static_cast<std::size_t>(drafts)] = rounds_;
  return drafts;
}

// The current choice, or the number of drafts whose turn it is to be tried: that which has been
// waiting longest, by the root of what it is expected to lose: the best that can be done for a sum
// of errors that grow with the time since the last look.
int StepPolicy::trial(const RoundDemand& demand, const PassCost::Near& cost) {
  const double seconds = cost.seconds(demand.rows(drafts_));
  const double rate = tokens(demand, drafts_) / seconds;
  saved_ += saving_ * seconds;
  int next = drafts_;
  double next_loss = 0;
  double longest = 0;
  const int most = most_drafts(demand);
  for (int drafts = 0; drafts <= most; ++drafts) {
    if (drafts == drafts_) continue;
    const double its_seconds = cost.seconds(demand.rows(drafts));
    double loss = its_seconds - tokens(demand, drafts) / rate;
    // What looks bad after few samples may have been a hiccup.
    const std::size_t samples = cost.samples(demand.rows(drafts));
    if (samples > 0 && samples < kKnown) loss *= static_cast<double>(samples) / kKnown;
    // Something at least: nothing is free, whatever the numbers say.
    loss = std::max(loss, kMostSaving * its_seconds);
    const auto waited =
        static_cast<double>(rounds_ - last_used_[static_cast<std::size_t>(drafts)]) /
        std::sqrt(loss);
    if (waited <= longest) continue;
    longest = waited;
    next = drafts;
    next_loss = loss;
  }
  saved_ = std::min(saved_, std::max(next_loss, seconds));
  if (next_loss > saved_ || rounds_ - last_trial_ < kRoundsBetweenTrials) return drafts_;
  saved_ -= next_loss;
  last_trial_ = rounds_;
  saving_ = std::max(saving_ / 2, kLeastSaving);
  return next;
}

// Each round sets aside what it leaves of its allowance. What has been set aside is read for, as
// soon as it is enough for a chunk that does not waste it.
int64_t StepPolicy::prompt_tokens(const RoundDemand& demand, int drafts,
                                  const PassCost::Near& cost) {
  if (options_.decode_slowdown <= 0) return options_.most_prompt_tokens;
  const int64_t most = options_.most_prompt_tokens;
  const int64_t fewest =
      std::min(std::max(kFewestPromptTokens, options_.fewest_prompt_tokens), most);
  if (cost_.empty() || prompt_cost_.empty()) return fewest;

  // However many wait: what they may take is measured by the streams that run. Prompts get on,
  // however slowly.
  spare_ += cost.seconds(demand.rows(drafts)) * std::max(options_.decode_slowdown - 1, 1.0 / 16);
  spare_ = std::min(spare_, prompt_cost_.seconds(most));
  const double price = prompt_cost_.price();
  const auto least = static_cast<int64_t>(
      std::min(kFixedInChunk * prompt_cost_.fixed() / price, static_cast<double>(most)));
  const auto tokens =
      std::max<int64_t>(static_cast<int64_t>((spare_ - prompt_cost_.fixed()) / price + 0.5), 0);
  return tokens < std::max(least, fewest) ? 0 : std::min(tokens, most);
}

RoundLimits StepPolicy::next(const RoundDemand& demand) {
  RoundLimits limits;
  if (demand.decoding() == 0) {
    limits.prompt_tokens = options_.most_prompt_tokens;
    limits.adaptive_drafts = 0;
    spare_ = 0;
    return limits;
  }
  const PassCost::Near cost = cost_.near(demand.decoding());
  limits.adaptive_drafts = choose_drafts(demand, cost);
  limits.prompt_tokens = options_.most_prompt_tokens;
  if (demand.prompts > 0) {
    limits.prompt_tokens = prompt_tokens(demand, limits.adaptive_drafts, cost);
  } else {
    spare_ = 0;
  }
  return limits;
}

void StepPolicy::observe(const RoundReport& report) {
  for (std::size_t i = 0; i < report.drafts_tried.size(); ++i) {
    const int tried = report.drafts_tried[i];
    // Much better than believed where nothing is drafted: worth another look soon.
    if (static_cast<int>(i) >= drafts_ && tried > 0 &&
        report.drafts_right[i] > tried * (1 + acceptance_.share(i)) / 2) {
      saving_ = kMostSaving;
    }
    acceptance_.add(i, tried, report.drafts_right[i]);
  }
  const double seconds = report.draft_seconds + report.extend_seconds;
  if (report.prompt_rows == 0) {
    cost_.add(report.decode_rows, report.decoding, seconds);
    return;
  }
  if (report.decoding == 0) {
    prompt_cost_.add(report.prompt_rows, seconds, seconds);
    return;
  }
  // Both at once: what is known of one of them tells the other.
  const PassCost::Near cost = cost_.near(report.decoding);
  const double expected = prompt_cost_.empty() ? 0 : prompt_cost_.seconds(report.prompt_rows);
  const double decode = cost.seconds(report.decode_rows);
  if (cost.samples(report.decode_rows) >= kKnown || prompt_cost_.empty()) {
    prompt_cost_.add(report.prompt_rows, seconds - decode, seconds);
  } else {
    cost_.add(report.decode_rows, report.decoding, std::max(seconds - expected, seconds / 4));
  }
  // A hiccup is not the prompts' fault.
  const double taken = std::max(seconds - decode, 0.0);
  spare_ -= expected > 0 ? std::min(taken, 2 * expected) : taken;
}

}  // namespace levin::engine
