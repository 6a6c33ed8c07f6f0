#include "serve/metrics.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <limits>
#include <sstream>

namespace levin::serve {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

// Seconds. vLLM's begin at 1 and 10 ms.
const std::vector<double> kTokenSeconds = {
    0.0001, 0.0002, 0.0003, 0.0005, 0.0007, 0.001, 0.0015, 0.002, 0.003, 0.005,
    0.0075, 0.01,   0.025,  0.05,   0.075,  0.1,   0.15,   0.2,   0.3,   0.4,
    0.5,    0.75,   1,      2.5,    5,      7.5,   10,     20,    40,    80};
const std::vector<double> kRequestSeconds = {
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1,   1.5,  2,   2.5,
    5,     10,    15,    20,   30,   40,   50,  60,  120, 240, 480, 960, 1920, 7680};

// 1, 2, 5, 10, ... as in vLLM's build_1_2_5_buckets.
std::vector<double> one_two_five(double most) {
  std::vector<double> bounds;
  for (double decade = 1;; decade *= 10) {
    for (const double step : {1.0, 2.0, 5.0}) {
      if (step * decade > most) return bounds;
      bounds.push_back(step * decade);
    }
  }
}

using Labels = std::vector<ClientMetric::Label>;

class Families {
 public:
  Families(std::string prefix, const std::string& model)
      : prefix_(std::move(prefix)), labels_{{"model_name", model}, {"engine", "0"}} {}

  MetricFamily& family(const std::string& name, const std::string& help, MetricType type) {
    families_.push_back({prefix_ + name, help, type, {}});
    return families_.back();
  }
  void add(MetricFamily& family, double value, const Labels& more = {}) const {
    ClientMetric metric;
    metric.label = labels_;
    metric.label.insert(metric.label.end(), more.begin(), more.end());
    if (family.type == MetricType::Counter) metric.counter.value = value;
    if (family.type == MetricType::Gauge) metric.gauge.value = value;
    family.metric.push_back(std::move(metric));
  }
  void counter(const std::string& name, const std::string& help, int64_t value) {
    add(family(name + "_total", help, MetricType::Counter), static_cast<double>(value));
  }
  void gauge(const std::string& name, const std::string& help, double value,
             const Labels& more = {}) {
    add(family(name, help, MetricType::Gauge), value, more);
  }
  template <typename Bounds, typename Counts>
  void histogram(const std::string& name, const std::string& help, const Bounds& bounds,
                 const Counts& counts, double sum) {
    ClientMetric metric;
    metric.label = labels_;
    uint64_t cumulative = 0;
    for (std::size_t i = 0; i < std::size(counts); ++i) {
      cumulative += static_cast<uint64_t>(counts[i]);
      const double bound =
          i < std::size(bounds) ? bounds[i] : std::numeric_limits<double>::infinity();
      metric.histogram.bucket.push_back({cumulative, bound});
    }
    metric.histogram.sample_count = cumulative;
    metric.histogram.sample_sum = sum;
    family(name, help, MetricType::Histogram).metric.push_back(std::move(metric));
  }
  void histogram(const std::string& name, const std::string& help, const Histogram& values) {
    histogram(name, help, values.bounds(), values.counts(), values.sum());
  }

  std::string text() const {
    std::ostringstream out;
    prometheus::TextSerializer().Serialize(out, families_);
    return out.str();
  }

 private:
  std::string prefix_;
  Labels labels_;
  std::vector<MetricFamily> families_;
};

void add_scheduler(Families& out, const engine::SchedulerMetrics& scheduler) {
  out.gauge("num_requests_running", "Requests in slots", scheduler.running);
  out.gauge("num_requests_waiting", "Requests that wait for a slot",
            static_cast<double>(scheduler.waiting));
  auto& waiting = out.family("num_requests_waiting_by_reason", "The same by what they wait for",
                             MetricType::Gauge);
  out.add(waiting, static_cast<double>(scheduler.waiting), {{"reason", "capacity"}});
  out.add(waiting, 0, {{"reason", "deferred"}});
  const auto capacity = static_cast<double>(std::max<int64_t>(1, scheduler.kv_capacity));
  out.gauge("kv_cache_usage_perc",
            "Share of the attention caches in use: tokens of running requests among the "
            "max_model_len of every slot; 1 is all",
            static_cast<double>(scheduler.kv_tokens) / capacity);
  out.gauge("max_num_seqs", "Slots", scheduler.max_num_seqs);
  out.gauge("adaptive_draft_tokens", "Tokens that a round drafts by its own choice, last",
            scheduler.adaptive_drafts);
  out.counter("num_preemptions", "Requests that lost their slot to a more important one",
              scheduler.preemptions);
  out.counter("requests_refused_queue_full", "Requests refused with 429",
              scheduler.refused_queue_full);
  out.counter("prompt_tokens", "Tokens of prompts, cached ones included", scheduler.prompt_tokens);
  out.counter("prompt_tokens_cached", "Of these, from the prefix cache", scheduler.cached_tokens);
  auto& sources = out.family("prompt_tokens_by_source_total",
                             "Tokens of prompts by where they "
                             "came from",
                             MetricType::Counter);
  out.add(sources, static_cast<double>(scheduler.prompt_tokens - scheduler.cached_tokens),
          {{"source", "local_compute"}});
  out.add(sources, static_cast<double>(scheduler.cached_tokens), {{"source", "local_cache_hit"}});
  out.counter("generation_tokens", "Tokens put out", scheduler.generated_tokens);
  out.counter("engine_steps", "Rounds", scheduler.steps);
  out.counter("engine_failed_steps", "Rounds that failed, and all requests in them",
              scheduler.failed_steps);
  out.histogram("step_seconds", "Time of a round", engine::DurationHistogram::kBounds,
                scheduler.step_seconds.counts, scheduler.step_seconds.sum);
}

void add_prefix_cache(Families& out, const engine::PrefixCacheStats& cache,
                      const Metrics::Facts& facts) {
  out.counter("prefix_cache_queries", "Tokens looked up in the prefix cache", cache.query_tokens);
  out.counter("prefix_cache_hits", "Tokens found there", cache.hit_tokens);
  out.gauge("prefix_cache_bytes", "Memory of its snapshots", static_cast<double>(cache.bytes));
  out.gauge("prefix_cache_snapshots", "Snapshots in it", static_cast<double>(cache.snapshots));
  out.counter("prefix_cache_evictions", "Snapshots given up", cache.evicted);
  out.gauge("cache_config_info", "How caches are set up; always 1", 1,
            {{"enable_prefix_caching", facts.cache_bytes > 0 ? "True" : "False"},
             {"prefix_cache_bytes", std::to_string(facts.cache_bytes)},
             {"max_model_len", std::to_string(facts.max_model_len)}});
}

void add_speculation(Families& out, const engine::SpeculationStats& speculation) {
  out.counter("spec_decode_num_drafts", "Rounds of requests with drafts", speculation.num_drafts);
  out.counter("spec_decode_num_draft_tokens", "Tokens drafted", speculation.num_draft_tokens);
  out.counter("spec_decode_num_accepted_tokens", "Drafts accepted",
              speculation.num_accepted_tokens);
  auto& places = out.family("spec_decode_num_accepted_tokens_per_pos_total",
                            "Drafts accepted by their place", MetricType::Counter);
  for (std::size_t i = 0; i < speculation.num_accepted_tokens_per_pos.size(); ++i) {
    out.add(places, static_cast<double>(speculation.num_accepted_tokens_per_pos[i]),
            {{"position", std::to_string(i)}});
  }
}

}  // namespace

Histogram::Histogram(std::vector<double> bounds)
    : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {}

void Histogram::add(double value, int64_t times) {
  const auto bound = std::lower_bound(bounds_.begin(), bounds_.end(), value);
  counts_[static_cast<std::size_t>(bound - bounds_.begin())] += times;
  sum_ += value * static_cast<double>(times);
}

Metrics::Metrics()
    : finished_{{"stop", 0}, {"length", 0}, {"abort", 0}, {"error", 0}},
      first_token_(kTokenSeconds),
      between_tokens_(kTokenSeconds),
      per_output_token_(kTokenSeconds),
      whole_(kRequestSeconds),
      queue_(kRequestSeconds),
      prefill_(kRequestSeconds),
      decode_(kRequestSeconds),
      inference_(kRequestSeconds),
      prompt_tokens_(one_two_five(1e6)),
      generation_tokens_(one_two_five(1e6)),
      choices_({1, 2, 5, 10, 20}),
      max_tokens_(one_two_five(1e6)) {}

void Metrics::add_piece(double seconds, int64_t tokens) {
  if (tokens > 0) between_tokens_.add(seconds / static_cast<double>(tokens), tokens);
}

void Metrics::add(const GenerationReport& report) {
  const auto reason = finished_.find(report.outcome);
  ++(reason == finished_.end() ? finished_["error"] : reason->second);
  if (report.first_token_seconds > 0) first_token_.add(report.first_token_seconds);
  if (report.status != 200) return;
  whole_.add(report.seconds);
  prompt_tokens_.add(static_cast<double>(report.usage.prompt_tokens));
  generation_tokens_.add(static_cast<double>(report.usage.completion_tokens));
  choices_.add(report.request->n);
  if (report.request->max_tokens) max_tokens_.add(static_cast<double>(*report.request->max_tokens));
  for (const auto& choice : *report.choices) {
    const engine::Timings& timings = choice->result().timings;
    const auto tokens = static_cast<int64_t>(choice->tokens().size());
    queue_.add(timings.queue_seconds);
    prefill_.add(timings.ttft_seconds);
    decode_.add(timings.decode_seconds);
    inference_.add(timings.ttft_seconds + timings.decode_seconds);
    if (tokens > 1) per_output_token_.add(timings.tpot_seconds(tokens));
  }
}

std::string Metrics::text(const engine::SchedulerMetrics& scheduler, const Facts& facts) const {
  Families out(facts.prefix, facts.model);
  add_scheduler(out, scheduler);
  add_prefix_cache(out, scheduler.prefix_cache, facts);
  add_speculation(out, scheduler.speculation);
  auto& finished =
      out.family("request_success_total", "Requests by how they ended", MetricType::Counter);
  for (const auto& [reason, count] : finished_) {
    out.add(finished, static_cast<double>(count), {{"finished_reason", reason}});
  }
  out.histogram("time_to_first_token_seconds", "From the request's arrival to its first token",
                first_token_);
  out.histogram("inter_token_latency_seconds", "Between tokens as they are sent", between_tokens_);
  out.histogram("request_time_per_output_token_seconds", "Mean time between tokens of a request",
                per_output_token_);
  out.histogram("e2e_request_latency_seconds", "From the request's arrival to its end", whole_);
  out.histogram("request_queue_time_seconds", "Until there was a slot", queue_);
  out.histogram("request_prefill_time_seconds", "From the slot to the first token", prefill_);
  out.histogram("request_decode_time_seconds", "From the first token to the last", decode_);
  out.histogram("request_inference_time_seconds", "From the slot to the last token", inference_);
  out.histogram("request_prompt_tokens", "Tokens of a request's prompts", prompt_tokens_);
  out.histogram("request_generation_tokens", "Tokens put out for a request", generation_tokens_);
  out.histogram("request_params_n", "Choices asked for", choices_);
  out.histogram("request_params_max_tokens", "Tokens asked for", max_tokens_);
  out.gauge("http_connections", "Open connections", facts.http.connections);
  out.gauge("http_body_bytes", "Bytes of bodies of requests that are read, wait or are answered",
            static_cast<double>(facts.http.held_bytes));
  out.counter("http_requests_refused_body_memory",
              "Requests refused with 503 because of the bodies of others",
              facts.http.refused_for_memory);
  return out.text();
}

}  // namespace levin::serve
