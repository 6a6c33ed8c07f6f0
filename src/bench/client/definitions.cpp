#include "bench/client/definitions.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/plural.h"
#include "text/printable.h"

namespace levin::bench::client {
namespace {

// A client that takes more of a core than this may itself be what is slow.
constexpr double kBusyClient = 0.5;
// The server may count this much more than it sent: what a round puts out is counted a little later
// than it arrives, so that tokens of the run before are still to be counted when one begins.
constexpr double kUncountedShare = 0.02;
constexpr double kUncountedTokens = 16;  // of each request at a time

void add_failures(const ClientReport& report, std::vector<std::string>& notes) {
  if (!report.warm_up_failures.empty()) {
    notes.push_back(fmt::format("failed, warm-up: {}, the first one: {}",
                                counted(report.warm_up_failures.size(), "request"),
                                report.warm_up_failures.front()));
  }
  for (const Point& point : report.points) {
    for (const auto& [what, times] : point.summary.failures) {
      notes.push_back(fmt::format("failed, {}: {} of {}: {}", point.name, times,
                                  counted(point.summary.requests, "request"), what));
    }
  }
}

void add_tokens(const ClientReport& report, std::vector<std::string>& notes) {
  int64_t without = 0;
  int64_t fewest = 0, most = 0, tokens = 0, requests = 0;
  for (const Point& point : report.points) {
    const PointSummary& summary = point.summary;
    without += summary.without_usage;
    if (summary.prompt_tokens == 0) continue;
    fewest =
        fewest == 0 ? summary.fewest_prompt_tokens : std::min(fewest, summary.fewest_prompt_tokens);
    most = std::max(most, summary.most_prompt_tokens);
    tokens += summary.prompt_tokens;
    requests += summary.requests - summary.failed() - summary.without_usage;
  }
  if (without > 0) {
    notes.push_back(
        fmt::format("no usage: the server did not say how many tokens {} had, so there is no "
                    "TPOT and no throughput in tokens; chunks are not tokens",
                    counted(without, "answer")));
  }
  if (requests > 0) {
    notes.push_back(fmt::format("prompts had {:.0f} tokens on average, {} to {}",
                                static_cast<double>(tokens) / static_cast<double>(requests), fewest,
                                most));
  }
  if (!report.scale_measured) {
    notes.push_back("the server does not say how long prompts are: 4 bytes a token are assumed");
  }
}

void add_cache(const ClientReport& report, std::vector<std::string>& notes) {
  const std::optional<double> share = report.cached_share();
  notes.push_back(share ? fmt::format("cached: {:.2f} % of the prompts' tokens", *share * 100)
                        : "cached: the server does not say");
}

void add_surroundings(const ClientReport& report, std::vector<std::string>& notes) {
  if (!report.counted) notes.push_back("no /metrics: nothing is known of drafts");
  for (const Point& point : report.points) {
    const PointSummary& summary = point.summary;
    if (summary.client_cpu > kBusyClient) {
      notes.push_back(fmt::format("busy client, {}: it took {:.2f} cores itself", point.name,
                                  summary.client_cpu));
    }
    const bool complete = summary.failed() == 0 && summary.without_usage == 0;
    if (!complete || !summary.counters || !summary.counters->generated_tokens) continue;
    const double counted = *summary.counters->generated_tokens;
    const auto ours = static_cast<double>(summary.output_tokens);
    const double slack = kUncountedShare * ours + kUncountedTokens * summary.most_at_once;
    if (counted - ours > slack) {
      notes.push_back(
          fmt::format("not alone, {}: the server put out {:.0f} tokens meanwhile, of "
                      "which {:.0f} were for this client",
                      point.name, counted, ours));
    }
  }
}

}  // namespace

std::string definitions() {
  return fmt::format(
      "TTFT  request sent to the first chunk with text, reasoning or a tool call; a chunk that "
      "only\n"
      "      names a role is none. Connections are kept, but a request may have to open one.\n"
      "TPOT  (last such chunk - first) / (output tokens - 1), of a request\n"
      "ITL   time between such chunks; with speculation a chunk has several tokens\n"
      "E2E   request sent to the last chunk\n"
      "tokens/s and requests/s of a round: what was answered, from the first request sent to the\n"
      "      end of the last; median of the rounds [least .. most]\n"
      "over one at a time  output tokens/s over those of the control in the same round\n"
      "good  requests that kept every limit of --goodput\n"
      "Numbers of tokens are the server's usage. Latencies are those of all rounds together,\n"
      "percentiles with straight lines between neighbours.\n");
}

std::string describe_work(const ClientReport& report) {
  const ClientOptions& options = report.options;
  const DatasetOptions& dataset = options.dataset;
  const std::string lengths =
      dataset.name == "trace"
          ? std::string("lengths of the trace")
          : fmt::format("about {} in, {}{} out", counted(dataset.input_tokens, "token"),
                        options.ignore_eos ? "" : "at most ", dataset.output_tokens);
  return fmt::format(
      "{} at {}{}\n{} prompts, {}, temperature {:g}; {}; {}; work {}",
      text::printable(options.model), options.target.url, options.endpoint, dataset.name, lengths,
      options.temperature, counted(int64_t{options.rounds}, "round"),
      options.allow_cached ? "prompts may be cached" : "no prompt begins like another",
      report.work);
}

std::string describe_speculation(const PointSummary& summary) {
  if (!summary.counters) return {};
  const ServerCounters& counters = *summary.counters;
  const std::optional<double> length = counters.acceptance_length();
  if (!length) return {};
  std::string places;
  for (const double share : counters.accepted_per_position()) {
    places += fmt::format("{}{:.3f}", places.empty() ? "" : " / ", share);
  }
  return fmt::format("{:.2f} drafts a round, acceptance length {:.2f}, accepted per position {}",
                     counters.draft_tokens.value_or(0) / *counters.drafts, *length, places);
}

std::vector<std::string> notes_of(const ClientReport& report) {
  std::vector<std::string> notes;
  add_failures(report, notes);
  add_tokens(report, notes);
  add_cache(report, notes);
  add_surroundings(report, notes);
  return notes;
}

std::string complaint(const ClientReport& report) {
  std::string text;
  if (report.failed() > 0) {
    text += fmt::format("{} failed; figures are those of the others",
                        counted(report.failed(), "request"));
  }
  if (report.cut_short() > 0) {
    text += fmt::format(
        "{}{} answers are shorter than --output-len although --ignore-eos asks for all of it: the "
        "server does not do that, and its figures are those of less work",
        text.empty() ? "" : "; ", report.cut_short());
  }
  if (report.cached_too_much()) {
    text += fmt::format(
        "{}the server had {:.1f} % of the prompts' tokens in its cache, although no prompt begins "
        "like another: these are not the times of reading prompts (--allow-cached accepts that; "
        "after a run with the same --seed it needs another one)",
        text.empty() ? "" : "; ", *report.cached_share() * 100);
  }
  return text;
}

}  // namespace levin::bench::client
