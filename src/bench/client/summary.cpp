#include "bench/client/summary.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace levin::bench::client {
namespace {

// Sums over the requests of a round that succeeded.
struct RoundSums {
  double requests = 0;
  double good = 0;
  double prompt_tokens = 0;
  double output_tokens = 0;
};

RoundSums sums_of(const PointRound& round, const Goodput& goodput) {
  RoundSums sums;
  for (const RequestRecord& record : round.load.records) {
    if (!record.ok()) continue;
    ++sums.requests;
    sums.good += goodput.keeps(record) ? 1 : 0;
    if (!record.usage) continue;
    sums.prompt_tokens += static_cast<double>(record.usage->prompt);
    sums.output_tokens += static_cast<double>(record.usage->output);
  }
  return sums;
}

template <typename Value>
Spread rates(std::span<const PointRound> rounds, const Goodput& goodput, Value&& value) {
  std::vector<double> values;
  for (const PointRound& round : rounds) {
    const double seconds = round.load.seconds();
    values.push_back(seconds > 0 ? value(sums_of(round, goodput)) / seconds : 0);
  }
  return spread_of(values);
}

void add_usage(const RequestRecord& record, PointSummary& summary) {
  if (!record.usage) {
    ++summary.without_usage;
    return;
  }
  const TokenUsage& usage = *record.usage;
  if (summary.prompt_tokens == 0) summary.fewest_prompt_tokens = usage.prompt;
  summary.fewest_prompt_tokens = std::min(summary.fewest_prompt_tokens, usage.prompt);
  summary.most_prompt_tokens = std::max(summary.most_prompt_tokens, usage.prompt);
  summary.shorter += record.asked > 0 && usage.output < record.asked ? 1 : 0;
  summary.prompt_tokens += usage.prompt;
  summary.output_tokens += usage.output;
  if (usage.cached) summary.cached_tokens = summary.cached_tokens.value_or(0) + *usage.cached;
}

void add_counters(std::span<const PointRound> rounds, PointSummary& summary) {
  for (const PointRound& round : rounds) {
    if (!round.counters) continue;
    if (!summary.counters) summary.counters.emplace();
    summary.counters->add(*round.counters);
  }
  if (summary.cached_tokens || !summary.counters) return;
  const auto counted = summary.counters->cached_tokens ? summary.counters->cached_tokens
                                                       : summary.counters->prefix_hits;
  constexpr double kMost = 1e15;  // no server has read so much
  if (counted && *counted >= 0 && *counted <= kMost) summary.cached_tokens = std::llround(*counted);
}

}  // namespace

double percentile(std::span<const double> sorted, double percent) {
  const double place = percent / 100 * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (place - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

Distribution distribution_of(std::vector<double> values, std::span<const double> percents) {
  Distribution result{.count = values.size(), .mean = 0, .percentiles = {}};
  if (values.empty()) return result;
  std::sort(values.begin(), values.end());
  result.mean =
      std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  for (const double percent : percents) result.percentiles.push_back(percentile(values, percent));
  return result;
}

bool Goodput::keeps(const RequestRecord& record) const {
  return (!ttft || record.ttft().value_or(INFINITY) <= *ttft) &&
         (!tpot || record.tpot().value_or(0) <= *tpot) && (!e2e || record.e2e() <= *e2e);
}

int64_t PointSummary::failed() const {
  int64_t count = 0;
  for (const auto& [what, times] : failures) count += times;
  return count;
}

PointSummary summarize(std::span<const PointRound> rounds, std::span<const double> percents,
                       const Goodput& goodput) {
  PointSummary summary;
  std::vector<double> ttft, tpot, itl, e2e, late;
  double seconds = 0;
  double cpu_seconds = 0;
  for (const PointRound& round : rounds) {
    seconds += round.load.seconds();
    cpu_seconds += round.load.client_cpu_seconds;
    summary.most_at_once = std::max(summary.most_at_once, round.load.most_at_once);
    for (const RequestRecord& record : round.load.records) {
      ++summary.requests;
      late.push_back(record.sent - record.due);
      if (!record.ok()) {
        ++summary.failures[record.error];
        continue;
      }
      add_usage(record, summary);
      e2e.push_back(record.e2e());
      if (const auto value = record.ttft()) ttft.push_back(*value);
      if (const auto value = record.tpot()) tpot.push_back(*value);
      const std::vector<double> gaps = record.itl();
      itl.insert(itl.end(), gaps.begin(), gaps.end());
    }
  }
  summary.client_cpu = seconds > 0 ? cpu_seconds / seconds : 0;
  summary.ttft = distribution_of(std::move(ttft), percents);
  summary.tpot = distribution_of(std::move(tpot), percents);
  summary.itl = distribution_of(std::move(itl), percents);
  summary.e2e = distribution_of(std::move(e2e), percents);
  summary.late = distribution_of(std::move(late), percents);
  add_counters(rounds, summary);

  summary.requests_per_second =
      rates(rounds, goodput, [](const RoundSums& sums) { return sums.requests; });
  if (goodput.any()) {
    summary.good_per_second =
        rates(rounds, goodput, [](const RoundSums& sums) { return sums.good; });
  }
  if (summary.without_usage > 0 || summary.output_tokens == 0) return summary;
  summary.output_tokens_per_second =
      rates(rounds, goodput, [](const RoundSums& sums) { return sums.output_tokens; });
  summary.total_tokens_per_second = rates(rounds, goodput, [](const RoundSums& sums) {
    return sums.prompt_tokens + sums.output_tokens;
  });
  return summary;
}

std::vector<double> output_rates(std::span<const PointRound> rounds) {
  std::vector<double> values;
  for (const PointRound& round : rounds) {
    const double seconds = round.load.seconds();
    values.push_back(seconds > 0 ? sums_of(round, {}).output_tokens / seconds : 0);
  }
  return values;
}

}  // namespace levin::bench::client
