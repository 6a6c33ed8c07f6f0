// What an operator's dashboard shows: vLLM's metrics by name, in Prometheus' text format, with
// buckets fine enough for tokens that take less than a millisecond.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engine/scheduler.h"
#include "serve/generation.h"
#include "serve/http/server.h"

namespace levin::serve {

// Counts of values up to each bound.
class Histogram {
 public:
  explicit Histogram(std::vector<double> bounds);
  void add(double value, int64_t times = 1);

  const std::vector<double>& bounds() const { return bounds_; }
  const std::vector<int64_t>& counts() const { return counts_; }  // one more than bounds
  double sum() const { return sum_; }

 private:
  std::vector<double> bounds_;
  std::vector<int64_t> counts_;
  double sum_ = 0;
};

// For one thread.
class Metrics {
 public:
  Metrics();

  void add(const GenerationReport& report);
  // A client that left before its request became a generation.
  void add_abort() { ++finished_["abort"]; }
  void add_piece(double seconds, int64_t tokens);

  struct Facts {
    std::string prefix;  // "levin:"
    std::string model;
    int64_t max_model_len = 0;
    int64_t cache_bytes = 0;  // budget of the prefix cache
    http::Counts http;
  };
  // Everything, with what the scheduler counts.
  std::string text(const engine::SchedulerMetrics& scheduler, const Facts& facts) const;

 private:
  std::map<std::string, int64_t> finished_;  // by reason
  Histogram first_token_, between_tokens_, per_output_token_, whole_, queue_, prefill_, decode_,
      inference_;
  Histogram prompt_tokens_, generation_tokens_, choices_, max_tokens_;
};

}  // namespace levin::serve
