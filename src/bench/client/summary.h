// From records of requests to figures.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bench/client/counters.h"
#include "bench/client/load.h"
#include "bench/spread.h"

namespace levin::bench::client {

// The value below which `percent` of the values lie, with straight lines between neighbours
// (NumPy's default). `sorted` ascends and is not empty.
double percentile(std::span<const double> sorted, double percent);

struct Distribution {
  std::size_t count = 0;
  double mean = 0;
  std::vector<double> percentiles;  // for those asked for; empty when there are no values
};
Distribution distribution_of(std::vector<double> values, std::span<const double> percents);

// What a request must keep to count as good; seconds.
struct Goodput {
  std::optional<double> ttft, tpot, e2e;
  bool any() const { return ttft || tpot || e2e; }
  // A request that has no TPOT, because its output is one chunk, cannot miss it.
  bool keeps(const RequestRecord& record) const;
};

// One run of a point's load.
struct PointRound {
  LoadResult load;
  std::optional<ServerCounters> counters;  // that the server counted meanwhile
};

struct PointSummary {
  int64_t requests = 0;
  std::map<std::string, int> failures;  // what happened, how often
  int64_t without_usage = 0;            // of those that did not fail
  int64_t shorter = 0;                  // answers that have fewer tokens than were asked for
  int64_t prompt_tokens = 0;
  int64_t output_tokens = 0;
  int64_t fewest_prompt_tokens = 0, most_prompt_tokens = 0;  // of a request
  std::optional<int64_t> cached_tokens;                      // of the prompts'
  // Of rounds; nothing when any token is not counted.
  std::optional<Spread> output_tokens_per_second, total_tokens_per_second;
  Spread requests_per_second;
  std::optional<Spread> good_per_second;
  // Of all requests together, seconds.
  Distribution ttft, tpot, itl, e2e;
  Distribution late;  // sent after it was due
  std::optional<ServerCounters> counters;
  double client_cpu = 0;  // cores that the client took, on average
  int most_at_once = 0;

  int64_t failed() const;
};

PointSummary summarize(std::span<const PointRound> rounds, std::span<const double> percents,
                       const Goodput& goodput);

// Output tokens a second of each round; zeros without usage.
std::vector<double> output_rates(std::span<const PointRound> rounds);

}  // namespace levin::bench::client
