#include "bench/client/client_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "bench/client/arrivals.h"
#include "bench/client/server_facts.h"
#include "bench/result_store.h"
#include "core/error.h"
#include "core/philox.h"
#include "core/progress.h"

namespace levin::bench::client {
namespace {

constexpr int64_t kFewestPrompts = 8;
constexpr int64_t kPromptsForEachPlace = 4;  // so that the end, when places empty, is a small part
constexpr double kOpenLoopSeconds = 10;

// Prompts of warm-ups have other numbers than those that count.
constexpr int64_t kWarmUpIndex = int64_t{1} << 30;

// Before prompts that only tell how long prompts are. The same in every run, since lengths follow.
constexpr const char* kNumberOfScale = "8f3ac10e5b92d764 ";

constexpr double kGiB = 1 << 30;
constexpr double kMostBytes = 4 * kGiB;
constexpr double kRecordBytes = sizeof(RequestRecord);
constexpr double kOutputBytes = sizeof(double);

Point closed_point(int at_a_time) {
  return {.name = fmt::format("{} at a time", at_a_time),
          .max_concurrency = at_a_time,
          .rate = {},
          .rounds = {},
          .summary = {},
          .over_control = {}};
}

// The control first, then what was asked for.
std::vector<Point> points_of(const ClientOptions& options, const Dataset& dataset) {
  std::vector<Point> points = {closed_point(1)};
  const bool open = options.request_rate || (dataset.timed() && options.max_concurrency.empty());
  if (!open) {
    std::vector<int> levels = options.max_concurrency;
    if (levels.empty()) levels = {8};
    for (const int level : levels) {
      if (level != 1) points.push_back(closed_point(level));
    }
    return points;
  }
  std::vector<int> caps = options.max_concurrency;
  if (caps.empty()) caps = {0};
  for (const int cap : caps) {
    Point point = closed_point(cap);
    point.name = options.request_rate ? fmt::format("{:g} a second", *options.request_rate)
                                      : std::string("as in the trace");
    if (cap > 0) point.name += fmt::format(", at most {}", cap);
    point.rate = options.request_rate.value_or(0);
    points.push_back(std::move(point));
  }
  return points;
}

int64_t prompts_of(const Point& point, const ClientOptions& options, const Dataset& dataset) {
  int64_t count = options.num_prompts;
  const bool control = point.max_concurrency == 1 && !point.rate;
  if (count == 0 && point.rate && *point.rate == 0) count = dataset.size();
  if (count == 0 && point.rate) {
    count = std::max<int64_t>(kFewestPrompts, std::llround(*point.rate * kOpenLoopSeconds));
  }
  if (count == 0 || control) {
    const int64_t by_load = std::max(kFewestPrompts, kPromptsForEachPlace * point.max_concurrency);
    count = count == 0 ? by_load : std::min(count, by_load);
  }
  return dataset.size() == 0 ? count : std::min(count, dataset.size());
}

class Bench {
 public:
  explicit Bench(const ClientOptions& options)
      : dataset_(make_dataset(options.dataset)), client_(options.target, options.endpoint) {
    report_.options = options;
    std::random_device random;
    nonce_seed_ = options.number_seed.value_or(uint64_t{random()} << 32 | random());
  }

  ClientReport run() {
    ClientOptions& options = report_.options;
    options.model = find_model(options.target, options.model);
    style_ = {.endpoint = options.endpoint,
              .model = options.model,
              .temperature = options.temperature,
              .ignore_eos = options.ignore_eos};
    report_.counted = read_counters(options.target).has_value();
    if (const auto scale = measure_scale(options.target, style_, *dataset_, kNumberOfScale)) {
      report_.scale = *scale;
      report_.scale_measured = true;
    }
    report_.points = points_of(options, *dataset_);
    check_size();
    report_.work = hash_of_work();
    warm_up();
    measure();
    return std::move(report_);
  }

 private:
  // No other prompt begins like this: it differs from the first characters on.
  std::string nonce() {
    const auto words = philox(nonce_seed_, next_nonce_++);
    return fmt::format("{:08x}{:08x} ", words[0], words[1]);
  }

  // The number of the prompt that is a point's `i`-th: the same ones for all points and rounds, so
  // that they do the same work; with a cache always new ones, since it would know those.
  int64_t prompt_number(int64_t i) {
    return report_.options.allow_cached && dataset_->size() == 0 ? next_prompt_++ : i;
  }

  LoadRequest request_of(const PromptPlan& prompt) {
    const std::string prefix = report_.options.allow_cached ? std::string() : nonce();
    return {.body = request_body(style_, prefix + prompt.text, prompt.output_tokens, true),
            .at = 0,
            .asked = prompt.output_tokens};
  }

  LoadPlan plan_of(const Point& point) {
    const ClientOptions& options = report_.options;
    LoadPlan plan{.requests = {}, .max_concurrency = point.max_concurrency};
    const int64_t count = prompts_of(point, options, *dataset_);
    const bool random_arrivals = point.rate && *point.rate > 0;
    const std::vector<double> times =
        random_arrivals ? arrivals(count, *point.rate, options.burstiness, options.dataset.seed)
                        : std::vector<double>();
    for (int64_t i = 0; i < count; ++i) {
      const PromptPlan prompt = dataset_->prompt(prompt_number(i), report_.scale);
      plan.requests.push_back(request_of(prompt));
      if (random_arrivals) plan.requests.back().at = times[static_cast<std::size_t>(i)];
      if (point.rate && !random_arrivals) plan.requests.back().at = prompt.at;
    }
    return plan;
  }

  // Before anything is made of it.
  void check_size() const {
    const ClientOptions& options = report_.options;
    double largest_plan = 0;
    double records = 0;
    const auto add = [&](int64_t count, int rounds) {
      double bytes = 0;
      for (int64_t i = 0; i < count; ++i) {
        const PromptSize size = dataset_->size_of(i, report_.scale);
        bytes += size.bytes;
        records += rounds * (kRecordBytes + kOutputBytes * static_cast<double>(size.output_tokens));
      }
      largest_plan = std::max(largest_plan, bytes);
    };
    for (const Point& point : report_.points) {
      add(prompts_of(point, options, *dataset_), options.rounds);
    }
    if (dataset_->size() == 0) add(warm_up_count(), 1);
    if (largest_plan + records <= kMostBytes) return;
    throw Error({.what = "the load and its record take too much memory",
                 .where = "--num-prompts, --num-rounds, --input-len, --output-len or the trace",
                 .expected = fmt::format("at most {:.0f} GiB", kMostBytes / kGiB),
                 .found = fmt::format("{:.1f} GiB of prompts, {:.1f} GiB of times",
                                      largest_plan / kGiB, records / kGiB),
                 .hint = "fewer or shorter requests tell as much"});
  }

  std::string hash_of_work() const {
    Key key;
    for (const Point& point : report_.points) {
      const int64_t count = prompts_of(point, report_.options, *dataset_);
      for (int64_t i = 0; i < count; ++i) {
        const PromptPlan prompt = dataset_->prompt(i, report_.scale);
        key.add(prompt.text).add(prompt.output_tokens).add(prompt.at);
      }
    }
    return key.hex();
  }

  // As many at once as there will be, so that connections and batches of all sizes have been.
  int most_at_once() const {
    int most = 1;
    for (const Point& point : report_.points) most = std::max(most, point.max_concurrency);
    return most;
  }
  int warm_up_count() const { return report_.options.warm_ups.value_or(most_at_once()); }

  void warm_up() {
    LoadPlan plan{.requests = {}, .max_concurrency = most_at_once()};
    for (int64_t i = 0; i < warm_up_count(); ++i) {
      const int64_t number = dataset_->size() == 0 ? kWarmUpIndex + i : i % dataset_->size();
      plan.requests.push_back(request_of(dataset_->prompt(number, report_.scale)));
    }
    for (const RequestRecord& record : client_.run(plan).records) {
      if (!record.ok()) report_.warm_up_failures.push_back(record.error);
    }
  }

  void measure() {
    const ClientOptions& options = report_.options;
    int64_t total = 0;
    for (const Point& point : report_.points) total += prompts_of(point, options, *dataset_);
    Progress progress("measuring", total * options.rounds, "requests");
    for (int round = 0; round < options.rounds; ++round) {
      for (Point& point : report_.points) {
        const LoadPlan plan = plan_of(point);
        const auto before = counters();
        PointRound result{client_.run(plan, [&] { progress.advance(1); }), {}};
        const auto after = counters();
        if (before && after) result.counters = difference(*before, *after);
        point.rounds.push_back(std::move(result));
      }
    }
    const std::vector<double> control = output_rates(report_.points.front().rounds);
    for (Point& point : report_.points) {
      point.summary = summarize(point.rounds, options.percentiles, options.goodput);
      const bool all = point.summary.output_tokens_per_second.has_value() &&
                       report_.points.front().summary.output_tokens_per_second.has_value();
      if (all) point.over_control = paired_ratio(output_rates(point.rounds), control);
    }
  }

  // A server that has gone away is what the records say, not an error.
  std::optional<ServerCounters> counters() const {
    if (!report_.counted) return std::nullopt;
    try {
      return read_counters(report_.options.target);
    } catch (const Error&) {
      return std::nullopt;
    }
  }

  std::unique_ptr<Dataset> dataset_;
  LoadClient client_;
  RequestStyle style_;
  ClientReport report_;
  uint64_t nonce_seed_ = 0;
  uint64_t next_nonce_ = 0;
  int64_t next_prompt_ = 0;
};

}  // namespace

int64_t ClientReport::failed() const {
  auto count = static_cast<int64_t>(warm_up_failures.size());
  for (const Point& point : points) count += point.summary.failed();
  return count;
}

std::optional<double> ClientReport::cached_share() const {
  std::optional<int64_t> cached;
  int64_t prompt = 0;
  for (const Point& point : points) {
    prompt += point.summary.prompt_tokens;
    if (point.summary.cached_tokens) cached = cached.value_or(0) + *point.summary.cached_tokens;
  }
  if (!cached || prompt == 0) return std::nullopt;
  return static_cast<double>(*cached) / static_cast<double>(prompt);
}

bool ClientReport::cached_too_much() const {
  return !options.allow_cached && cached_share().value_or(0) > kMostCached;
}

int64_t ClientReport::cut_short() const {
  int64_t count = 0;
  for (const Point& point : points) count += options.ignore_eos ? point.summary.shorter : 0;
  return count;
}

ClientReport run_client_bench(const ClientOptions& options) {
  return Bench(options).run();
}

}  // namespace levin::bench::client
