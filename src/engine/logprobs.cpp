#include "engine/logprobs.h"

#include <algorithm>
#include <cmath>

#include "engine/lanes.h"

namespace levin::engine {
namespace {

double log_sum_exp(std::span<const float> logits, float maximum) {
  double sum = 0;
  for (const float logit : logits) {
    if (logit > maximum - 80) sum += std::exp(double{logit} - double{maximum});  // not for NaN
  }
  return double{maximum} + std::log(sum);
}

std::vector<int32_t> likeliest(std::span<const float> logits, int count) {
  const auto likelier = [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<std::size_t>(a)];
    const float y = logits[static_cast<std::size_t>(b)];
    return x > y || (x == y && a < b);
  };
  std::vector<int32_t> best;  // a heap, the least likely on top
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i])) continue;
    const auto token = static_cast<int32_t>(i);
    if (best.size() < static_cast<std::size_t>(count)) {
      best.push_back(token);
      std::push_heap(best.begin(), best.end(), likelier);
    } else if (likelier(token, best.front())) {
      std::pop_heap(best.begin(), best.end(), likelier);
      best.back() = token;
      std::push_heap(best.begin(), best.end(), likelier);
    }
  }
  std::sort_heap(best.begin(), best.end(), likelier);
  return best;
}

}  // namespace

TokenLogprobs logprobs_of(std::span<const float> logits, int32_t token, int count) {
  const double total = log_sum_exp(logits, largest(logits));
  const auto of = [&](int32_t id) {
    const double logprob = double{logits[static_cast<std::size_t>(id)]} - total;
    return Logprob{id, static_cast<float>(logprob)};
  };
  TokenLogprobs result{.chosen = of(token), .top = {}};
  if (count <= 0) return result;
  for (const int32_t id : likeliest(logits, count)) result.top.push_back(of(id));
  return result;
}

}  // namespace levin::engine
