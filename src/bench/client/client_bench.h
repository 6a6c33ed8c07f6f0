// levin bench --url: measures any server that speaks OpenAI's API, from outside.
//
// A point is a load: so many requests at a time (closed loop), so many a second, or a trace (open
// loop). Rounds go through all points in turn, one request at a time first: the control, to which
// every point is compared within its round.
//
// Prompts begin with a number that no other prompt has, so that no prefix cache knows them. When
// the server says that it had more than kMostCached of the prompts' tokens in a cache all the same,
// the figures are not what they seem, and the report is invalid.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bench/client/dataset.h"
#include "bench/client/http.h"
#include "bench/client/summary.h"

namespace levin::bench::client {

constexpr double kMostCached = 0.01;

struct ClientOptions {
  Target target;
  std::string endpoint = "/v1/completions";  // or /v1/chat/completions
  std::string model;                         // empty: the only one that the server has
  DatasetOptions dataset;
  // What the numbers at the prompts' beginnings follow from, so that prompts are the same in every
  // run; nothing: other numbers in every run, which a server that has seen one run cannot know.
  std::optional<uint64_t> number_seed;
  std::vector<int> max_concurrency;    // a point for each
  std::optional<double> request_rate;  // a second; nothing: a closed loop
  double burstiness = 1;
  int64_t num_prompts = 0;  // of a point in a round; 0: by its load
  int rounds = 3;
  std::optional<int> warm_ups;  // requests; nothing: as many as run at once
  double temperature = 0;
  bool ignore_eos = false;
  bool allow_cached = false;
  Goodput goodput;
  std::vector<double> percentiles = {50, 90, 99};
};

// A load and what came of it.
struct Point {
  std::string name;            // "8 at a time"
  int max_concurrency = 0;     // 0: any number
  std::optional<double> rate;  // requests a second on average; nothing: closed loop
  std::vector<PointRound> rounds;
  PointSummary summary;
  std::optional<Spread> over_control;  // output tokens a second, within a round
};

struct ClientReport {
  ClientOptions options;  // with the model that was measured
  std::string work;       // hash of all prompts without their numbers, and of the lengths asked for
  TokenScale scale;
  bool scale_measured = false;                // otherwise 4 bytes a token are assumed
  bool counted = false;                       // the server has /metrics that are known
  std::vector<Point> points;                  // the control is the first
  std::vector<std::string> warm_up_failures;  // why, one for each

  int64_t failed() const;  // warm-ups included
  // Share of the prompts' tokens that were in the server's cache; nothing when it does not say.
  std::optional<double> cached_share() const;
  bool cached_too_much() const;
  // Answers that are shorter than --ignore-eos asks for.
  int64_t cut_short() const;
  // All requests answered in full, and nothing cached that should not be.
  bool valid() const { return failed() == 0 && !cached_too_much() && cut_short() == 0; }
};

// Throws Error when the server does not answer, does not know the model or refuses the first
// request, and for prompts that cannot be made. Failures later on are part of the report.
ClientReport run_client_bench(const ClientOptions& options);

// Why the report is not valid; empty when it is.
std::string complaint(const ClientReport& report);
std::string to_text(const ClientReport& report);
nlohmann::ordered_json to_json(const ClientReport& report);
std::string to_html(const ClientReport& report);
// A line of JSON for every request.
std::string raw_records(const ClientReport& report);

}  // namespace levin::bench::client
