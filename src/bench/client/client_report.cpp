// Text, JSON and raw lines of client_bench.h.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "bench/bench.h"
#include "bench/client/client_bench.h"
#include "bench/client/definitions.h"
#include "evaluate/table.h"

namespace levin::bench::client {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kMs = 1000;

std::string of(const std::optional<Spread>& spread, int digits) {
  if (!spread) return "-";
  return fmt::format("{:.{}f} [{:.{}f} .. {:.{}f}]", spread->median, digits, spread->min, digits,
                     spread->max, digits);
}

Json to_json(const Distribution& distribution, const std::vector<double>& percents) {
  if (distribution.count == 0) return nullptr;
  Json json = {{"count", distribution.count}, {"mean", distribution.mean * kMs}};
  for (std::size_t i = 0; i < percents.size(); ++i) {
    json[fmt::format("p{:g}", percents[i])] = distribution.percentiles[i] * kMs;
  }
  return json;
}

Json to_json(const std::optional<Spread>& spread) {
  return spread ? bench::to_json(*spread) : Json();
}

Json to_json(const std::optional<ServerCounters>& counters) {
  if (!counters || !counters->drafts) return nullptr;
  Json json = {{"drafts", *counters->drafts},
               {"draft_tokens", counters->draft_tokens.value_or(0)},
               {"accepted_tokens", counters->accepted.value_or(0)},
               {"acceptance_length", nullptr},
               {"accepted_per_position", counters->accepted_per_position()}};
  if (const auto length = counters->acceptance_length()) json["acceptance_length"] = *length;
  return json;
}

Json point_json(const Point& point, const ClientOptions& options) {
  const PointSummary& summary = point.summary;
  Json json = {{"name", point.name}, {"max_concurrency", nullptr}, {"request_rate", nullptr}};
  if (point.max_concurrency > 0) json["max_concurrency"] = point.max_concurrency;
  if (point.rate && *point.rate > 0) json["request_rate"] = *point.rate;
  json["requests"] = summary.requests;
  json["failed"] = summary.failed();
  json["failures"] = summary.failures;
  json["most_at_once"] = summary.most_at_once;
  json["prompt_tokens"] = summary.prompt_tokens;
  json["output_tokens"] = summary.output_tokens;
  json["cached_tokens"] = summary.cached_tokens ? Json(*summary.cached_tokens) : Json();
  json["without_usage"] = summary.without_usage;
  json["shorter"] = summary.shorter;
  json["output_tokens_per_second"] = to_json(summary.output_tokens_per_second);
  json["total_tokens_per_second"] = to_json(summary.total_tokens_per_second);
  json["requests_per_second"] = bench::to_json(summary.requests_per_second);
  json["good_requests_per_second"] = to_json(summary.good_per_second);
  json["over_control"] = to_json(point.over_control);
  json["ttft_ms"] = to_json(summary.ttft, options.percentiles);
  json["tpot_ms"] = to_json(summary.tpot, options.percentiles);
  json["itl_ms"] = to_json(summary.itl, options.percentiles);
  json["e2el_ms"] = to_json(summary.e2e, options.percentiles);
  if (point.rate) json["late_ms"] = to_json(summary.late, options.percentiles);
  json["speculation"] = to_json(summary.counters);
  json["client_cores"] = summary.client_cpu;
  return json;
}

std::string throughput_table(const ClientReport& report) {
  std::vector<std::string> header = {
      "load", "requests", "failed", "output tokens/s", "over one at a time", "requests/s"};
  if (report.options.goodput.any()) header.emplace_back("good requests/s");
  evaluate::Table table(header);
  for (const Point& point : report.points) {
    const PointSummary& summary = point.summary;
    std::vector<std::string> row = {point.name,
                                    fmt::format("{}", summary.requests),
                                    fmt::format("{}", summary.failed()),
                                    of(summary.output_tokens_per_second, 1),
                                    of(point.over_control, 2),
                                    of(summary.requests_per_second, 2)};
    if (summary.good_per_second) row.push_back(of(summary.good_per_second, 2));
    table.add_row(row);
  }
  return table.to_string();
}

void add_latency(evaluate::Table& table, const std::string& load, const char* name,
                 const Distribution& values) {
  std::vector<std::string> row = {load, name, fmt::format("{}", values.count)};
  if (values.count > 0) row.push_back(fmt::format("{:.2f}", values.mean * kMs));
  for (const double value : values.percentiles) row.push_back(fmt::format("{:.2f}", value * kMs));
  table.add_row(row);
}

std::string latency_table(const ClientReport& report) {
  std::vector<std::string> header = {"load", "ms", "values", "mean"};
  for (const double percent : report.options.percentiles) {
    header.push_back(fmt::format("p{:g}", percent));
  }
  evaluate::Table table(header);
  for (const Point& point : report.points) {
    add_latency(table, point.name, "TTFT", point.summary.ttft);
    add_latency(table, "", "TPOT", point.summary.tpot);
    add_latency(table, "", "ITL", point.summary.itl);
    add_latency(table, "", "E2E", point.summary.e2e);
    if (point.rate) add_latency(table, "", "sent late", point.summary.late);
  }
  return table.to_string();
}

std::string speculation_lines(const ClientReport& report) {
  std::string text;
  for (const Point& point : report.points) {
    if (const std::string line = describe_speculation(point.summary); !line.empty()) {
      text += fmt::format("speculation, {}: {}\n", point.name, line);
    }
  }
  return text;
}

}  // namespace

std::string to_text(const ClientReport& report) {
  std::string text = fmt::format("{}\n\n{}\n{}\n", describe_work(report), throughput_table(report),
                                 latency_table(report));
  text += speculation_lines(report);
  for (const std::string& note : notes_of(report)) text += note + "\n";
  text += "\n" + definitions();
  return text;
}

Json to_json(const ClientReport& report) {
  const ClientOptions& options = report.options;
  Json json = {{"url", options.target.url}, {"endpoint", options.endpoint},
               {"model", options.model},    {"valid", report.valid()},
               {"complaint", nullptr},      {"failed", report.failed()},
               {"cached_share", nullptr},   {"allow_cached", options.allow_cached}};
  if (!report.valid()) json["complaint"] = complaint(report);
  if (const auto share = report.cached_share()) json["cached_share"] = *share;
  json["work"] = {{"hash", report.work},
                  {"dataset", options.dataset.name},
                  {"input_tokens", options.dataset.input_tokens},
                  {"output_tokens", options.dataset.output_tokens},
                  {"seed", options.dataset.seed},
                  {"temperature", options.temperature},
                  {"ignore_eos", options.ignore_eos},
                  {"bytes_per_token", report.scale.bytes_per_token},
                  {"bytes_per_token_measured", report.scale_measured},
                  {"rounds", options.rounds},
                  {"burstiness", options.burstiness}};
  json["points"] = Json::array();
  for (const Point& point : report.points) json["points"].push_back(point_json(point, options));
  json["notes"] = notes_of(report);
  return json;
}

std::string raw_records(const ClientReport& report) {
  std::string lines;
  for (const Point& point : report.points) {
    for (std::size_t round = 0; round < point.rounds.size(); ++round) {
      for (const RequestRecord& record : point.rounds[round].load.records) {
        Json line = {{"load", point.name}, {"round", round}};
        line.update(to_json(record));
        lines += line.dump() + "\n";
      }
    }
  }
  return lines;
}

}  // namespace levin::bench::client
