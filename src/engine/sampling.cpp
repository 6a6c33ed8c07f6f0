#include "engine/sampling.h"

#include <fmt/format.h>

#include <cmath>

#include "core/error.h"

namespace levin::engine {
namespace {

constexpr int kMaxLogprobs = 20;
// vLLM takes any number from 0 on, and above 0. Beyond these nothing changes any more but that
// logits, which are floats, become infinite or nothing.
constexpr double kHottest = 1e6;
constexpr double kWeakest = 1e-6, kStrongest = 1e6;

void check(bool ok, const char* name, const char* expected, const std::string& found) {
  if (ok) return;
  throw Error({.what = "sampling parameter is out of range",
               .where = name,
               .expected = expected,
               .found = found,
               .hint = {}});
}

void check(bool ok, const char* name, const char* expected, double found) {
  check(ok, name, expected, fmt::format("{}", found));
}

}  // namespace

void validate(const SamplingParams& params) {
  const auto within = [](double value, double low, double high) {
    return value >= low && value <= high;  // false for NaN
  };
  check(within(params.temperature, 0, kHottest), "temperature", "0 to 1000000", params.temperature);
  check(params.top_k >= -1, "top_k", "-1 or 0 (off), or 1 and more", params.top_k);
  check(params.top_p > 0 && params.top_p <= 1, "top_p", "above 0, at most 1", params.top_p);
  check(within(params.min_p, 0, 1), "min_p", "0 to 1", params.min_p);
  check(within(params.presence_penalty, -2, 2), "presence_penalty", "-2 to 2",
        params.presence_penalty);
  check(within(params.frequency_penalty, -2, 2), "frequency_penalty", "-2 to 2",
        params.frequency_penalty);
  check(within(params.repetition_penalty, kWeakest, kStrongest), "repetition_penalty",
        "0.000001 to 1000000", params.repetition_penalty);
  check(params.max_tokens >= 1, "max_tokens", "1 or more", fmt::format("{}", params.max_tokens));
  check(params.min_tokens >= 0 && params.min_tokens <= params.max_tokens, "min_tokens",
        "0 to max_tokens", fmt::format("{}", params.min_tokens));
  check(params.logprobs.value_or(0) >= 0 && params.logprobs.value_or(0) <= kMaxLogprobs, "logprobs",
        "0 to 20", params.logprobs.value_or(0));
  for (const auto& [token, bias] : params.logit_bias) {
    check(within(bias, -100, 100), "logit_bias", "-100 to 100", double{bias});
  }
  for (const std::string& stop : params.stop) {
    check(!stop.empty(), "stop", "strings of at least one character", "an empty string");
  }
}

}  // namespace levin::engine
