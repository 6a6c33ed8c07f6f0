// What a server's /metrics count, under vLLM's names behind any prefix (levin:, vllm:).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <vector>

namespace levin::bench::client {

struct ServerCounters {
  // Not there: the server does not count it.
  std::optional<double> drafts;        // rounds of a request with drafts
  std::optional<double> draft_tokens;  // drafted in them
  std::optional<double> accepted;      // of these
  std::map<int, double> accepted_at;   // by place, from 0
  std::optional<double> prompt_tokens;
  std::optional<double> cached_tokens;  // of these, from a prefix cache
  std::optional<double> prefix_hits;    // the same under its older name
  std::optional<double> generated_tokens;
  std::optional<double> preemptions;

  // Tokens of a round, 1 + accepted / drafts; nothing when nothing was drafted.
  std::optional<double> acceptance_length() const;
  // Share of the drafting rounds in which the draft of each place was accepted; vLLM's definition.
  std::vector<double> accepted_per_position() const;

  // Adds up what several runs counted.
  void add(const ServerCounters& other);
};

// Reads the Prometheus text format; lines that it does not know are skipped, and values of several
// engines or models added up.
ServerCounters parse_counters(std::string_view metrics);

// What was counted between two readings.
ServerCounters difference(const ServerCounters& before, const ServerCounters& after);

}  // namespace levin::bench::client
