#include "bench/client/counters.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string>

namespace levin::bench::client {
namespace {

constexpr int kMostPositions = 1024;  // of drafts in a round

struct Sample {
  std::string_view name;  // without prefix and _total
  std::string_view labels;
  double value = 0;
};

std::optional<Sample> parse_line(std::string_view line) {
  if (line.empty() || line.front() == '#') return std::nullopt;
  Sample sample;
  const std::size_t name_end = line.find_first_of("{ ");
  if (name_end == line.npos) return std::nullopt;
  sample.name = line.substr(0, name_end);
  sample.name.remove_prefix(sample.name.find(':') + 1);  // npos + 1 is 0
  if (sample.name.ends_with("_total")) sample.name.remove_suffix(6);
  line.remove_prefix(name_end);
  if (line.front() == '{') {
    const std::size_t end = line.rfind('}');
    if (end == line.npos) return std::nullopt;
    sample.labels = line.substr(1, end - 1);
    line.remove_prefix(end + 1);
  }
  line.remove_prefix(std::min(line.size(), line.find_first_not_of(' ')));
  const auto [stop, error] = std::from_chars(line.data(), line.data() + line.size(), sample.value);
  if (error != std::errc() || !std::isfinite(sample.value)) return std::nullopt;
  return sample;
}

std::optional<int> position_of(std::string_view labels) {
  constexpr std::string_view kLabel = "position=\"";
  const std::size_t at = labels.find(kLabel);
  if (at == labels.npos) return std::nullopt;
  const std::string_view number = labels.substr(at + kLabel.size());
  int position = 0;
  const auto [stop, error] =
      std::from_chars(number.data(), number.data() + number.size(), position);
  if (error != std::errc() || position < 0 || position >= kMostPositions) return std::nullopt;
  return position;
}

void add_to(std::optional<double>& sum, std::optional<double> value) {
  if (value) sum = sum.value_or(0) + *value;
}

constexpr struct {
  std::string_view name;
  std::optional<double> ServerCounters::*counter;
} kCounters[] = {
    {"spec_decode_num_drafts", &ServerCounters::drafts},
    {"spec_decode_num_draft_tokens", &ServerCounters::draft_tokens},
    {"spec_decode_num_accepted_tokens", &ServerCounters::accepted},
    {"prompt_tokens", &ServerCounters::prompt_tokens},
    {"prompt_tokens_cached", &ServerCounters::cached_tokens},
    {"prefix_cache_hits", &ServerCounters::prefix_hits},
    {"generation_tokens", &ServerCounters::generated_tokens},
    {"num_preemptions", &ServerCounters::preemptions},
};

}  // namespace

std::optional<double> ServerCounters::acceptance_length() const {
  if (drafts.value_or(0) <= 0 || !accepted) return std::nullopt;
  return 1 + *accepted / *drafts;
}

std::vector<double> ServerCounters::accepted_per_position() const {
  std::vector<double> shares;
  if (drafts.value_or(0) <= 0) return shares;
  for (const auto& [position, count] : accepted_at) {
    if (position == static_cast<int>(shares.size()) && count > 0) shares.push_back(count / *drafts);
  }
  return shares;
}

void ServerCounters::add(const ServerCounters& other) {
  for (const auto& [name, counter] : kCounters) add_to(this->*counter, other.*counter);
  for (const auto& [position, count] : other.accepted_at) accepted_at[position] += count;
}

ServerCounters parse_counters(std::string_view metrics) {
  ServerCounters counters;
  while (!metrics.empty()) {
    const std::size_t end = metrics.find('\n');
    const std::optional<Sample> sample = parse_line(metrics.substr(0, end));
    metrics.remove_prefix(end == metrics.npos ? metrics.size() : end + 1);
    if (!sample) continue;
    for (const auto& [name, counter] : kCounters) {
      if (sample->name == name) add_to(counters.*counter, sample->value);
    }
    if (sample->name != "spec_decode_num_accepted_tokens_per_pos") continue;
    if (const auto position = position_of(sample->labels)) {
      counters.accepted_at[*position] += sample->value;
    }
  }
  return counters;
}

ServerCounters difference(const ServerCounters& before, const ServerCounters& after) {
  ServerCounters result = after;
  for (const auto& [name, counter] : kCounters) {
    if (result.*counter) *(result.*counter) -= (before.*counter).value_or(0);
  }
  for (auto& [position, count] : result.accepted_at) {
    const auto earlier = before.accepted_at.find(position);
    if (earlier != before.accepted_at.end()) count -= earlier->second;
  }
  return result;
}

}  // namespace levin::bench::client
