#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/error.h"
#include "engine/lanes.h"
#include "engine/random.h"

namespace levin::engine {
namespace {

constexpr std::size_t kBlock = 256;
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

float checked_largest(std::span<const float> logits) {
  const float maximum = largest(logits);
  if (std::isfinite(maximum)) return maximum;
  throw Error({.what = "the model's logits are not numbers",
               .where = "sampling",
               .expected = "a finite largest logit",
               .found = std::isnan(maximum) || maximum < 0 ? "none that is finite" : "infinity",
               .hint = "the checkpoint or its quantization is broken; compare with "
                       "levin logits --runtime reference",
               .exit_code = ExitCode::kBadInput});
}

void keep_allowed(std::span<const uint64_t> allowed, std::span<float> logits) {
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if ((allowed[i / 64] >> (i % 64) & 1) == 0) logits[i] = kMinusInfinity;
  }
}

}  // namespace

int32_t greedy_token(std::span<const float> logits) {
  const float maximum = checked_largest(logits);
  const auto first = std::find(logits.begin(), logits.end(), maximum);
  return static_cast<int32_t>(first - logits.begin());
}

runtime::SamplingRule sampling_rule(const SamplingParams& params, uint64_t seed) {
  runtime::SamplingRule rule;
  rule.greedy = params.greedy();
  rule.inverse_temperature = rule.greedy ? 1.0F : static_cast<float>(1.0 / params.temperature);
  rule.top_k = std::max(params.top_k, 0);
  rule.top_p = params.top_p;
  rule.min_p = params.min_p > 0;
  rule.min_p_offset = rule.min_p ? params.temperature * std::log(params.min_p) : 0.0;
  rule.seed = seed;
  return rule;
}

Sampler::Sampler(int64_t vocab_size) {
  const auto vocab = static_cast<std::size_t>(vocab_size);
  adjusted_.resize(vocab);
  weights_.resize(vocab);
  block_sums_.resize((vocab + kBlock - 1) / kBlock);
  selection_.resize(vocab);
  candidates_.reserve(vocab);
}

std::span<const float> Sampler::adjust(std::span<const float> logits, const Choice& choice) {
  const bool filtered = !choice.allowed.empty() || !choice.params.logit_bias.empty();
  if (!filtered && choice.banned.empty() && !choice.history.penalizes()) return logits;
  std::copy(logits.begin(), logits.end(), adjusted_.begin());
  if (!choice.allowed.empty()) keep_allowed(choice.allowed, adjusted_);
  for (const auto& [token, bias] : choice.params.logit_bias) {
    adjusted_[static_cast<std::size_t>(token)] += bias;
  }
  for (const int32_t token : choice.banned) {
    adjusted_[static_cast<std::size_t>(token)] = kMinusInfinity;
  }
  if (choice.history.penalizes()) choice.history.apply(choice.params, adjusted_);
  return adjusted_;
}

void Sampler::set_weights(std::span<const float> logits, float maximum, double temperature) {
  const auto inverse = static_cast<float>(1.0 / temperature);
  const auto weigh = [&](const float* from, float* to) {
    const Quad weights = fast_exp((load(from) - maximum) * inverse);
    store(to, weights);
    return weights;
  };
  for (std::size_t begin = 0; begin < logits.size(); begin += kBlock) {
    const std::size_t end = std::min(begin + kBlock, logits.size());
    Quad sums = {};
    std::size_t i = begin;
    for (; i + 4 <= end; i += 4) sums += weigh(logits.data() + i, weights_.data() + i);
    if (i < end) {
      float rest[4] = {kMinusInfinity, kMinusInfinity, kMinusInfinity, kMinusInfinity};
      std::copy(logits.begin() + static_cast<std::ptrdiff_t>(i), logits.end(), rest);
      sums += weigh(rest, rest);
      std::copy_n(rest, end - i, weights_.data() + i);
    }
    block_sums_[begin / kBlock] =
        double{sums[0]} + double{sums[1]} + double{sums[2]} + double{sums[3]};
  }
}

float Sampler::kth_largest(std::span<const float> logits, int64_t k) {
  const auto vocab = static_cast<int64_t>(logits.size());
  if (k >= vocab) return kMinusInfinity;
  // Collects values above the k-th largest of those collected before; when the space is full, only
  // the best k stay.
  const int64_t capacity = std::min(vocab, std::max<int64_t>(2 * k, 1024));
  float* values = selection_.data();
  auto keep_best = [&](int64_t count) {
    std::nth_element(values, values + (k - 1), values + count, std::greater<>());
    return values[k - 1];
  };
  int64_t count = 0;
  float threshold = kMinusInfinity;
  for_each_at_least(logits, threshold, [&](std::size_t i) {
    if (logits[i] == threshold) return;
    values[count++] = logits[i];
    if (count == capacity) {
      threshold = keep_best(count);
      count = k;
    }
  });
  return count < k ? threshold : keep_best(count);
}

Sampler::Cut Sampler::top_p_cut(std::span<const float> logits, Cut cut, double top_p) {
  double total = 0;
  if (cut.logit == kMinusInfinity) {
    total = std::accumulate(block_sums_.begin(), block_sums_.end(), 0.0);
  } else {
    for_each_at_least(logits, cut.logit, [&](std::size_t i) { total += double{weights_[i]}; });
  }
  const double wanted = top_p * total;

  // Candidates: usually a few heavy tokens already hold the share wanted.
  for (const float least : {0x1p-7F, 0x1p-14F, 0.0F}) {
    candidates_.clear();
    double held = 0;
    for_each_at_least(weights_, least, [&](std::size_t i) {
      if (logits[i] < cut.logit) return;
      candidates_.push_back({logits[i], weights_[i], static_cast<int32_t>(i)});
      held += double{weights_[i]};
    });
    if (held >= wanted) break;
  }

  // Halves the range in which the cut lies until it is short enough to sort.
  const auto heavier = [](const Candidate& a, const Candidate& b) {
    return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
  };
  auto begin = candidates_.begin();
  auto end = candidates_.end();
  double before = 0;
  while (end - begin > 64) {
    const auto middle = begin + (end - begin) / 2;
    std::nth_element(begin, middle, end, heavier);
    double mass = before;
    for (auto it = begin; it != middle; ++it) mass += double{it->weight};
    if (mass < wanted) {
      before = mass;
      begin = middle;
    } else {
      end = middle;
    }
  }
  std::sort(begin, end, heavier);
  Cut last = {begin->logit, begin->token};
  for (auto it = begin; it != end && before < wanted; ++it) {
    last = {it->logit, it->token};
    before += double{it->weight};
  }
  return last;
}

Sampler::Cut Sampler::find_cut(std::span<const float> logits, float maximum,
                               const SamplingParams& params) {
  Cut cut = {kMinusInfinity, std::numeric_limits<int32_t>::max()};
  if (params.min_p > 0) {
    cut.logit = runtime::min_p_cut(params.temperature * std::log(params.min_p), maximum);
  }
  if (params.top_k > 0) cut.logit = std::max(cut.logit, kth_largest(logits, params.top_k));
  if (params.top_p < 1) cut = top_p_cut(logits, cut, params.top_p);
  return cut;
}

// The first token at which the cumulative weight reaches u of the total.
int32_t Sampler::draw_from_all(double u) const {
  const double target = u * std::accumulate(block_sums_.begin(), block_sums_.end(), 0.0);
  double sum = 0;
  std::size_t block = 0;
  while (block + 1 < block_sums_.size() && sum + block_sums_[block] < target) {
    sum += block_sums_[block++];
  }
  const std::size_t end = std::min((block + 1) * kBlock, weights_.size());
  std::size_t token = block * kBlock;
  for (std::size_t i = block * kBlock; i < end; ++i) {
    if (weights_[i] == 0.0F) continue;
    token = i;  // also the answer when rounding leaves the block's sum short of the target
    sum += double{weights_[i]};
    if (sum >= target) break;
  }
  return static_cast<int32_t>(token);
}

// candidates_ = the tokens that the cut leaves, by id. Returns their total weight.
double Sampler::collect(std::span<const float> logits, Cut cut) {
  candidates_.clear();
  double total = 0;
  for_each_at_least(logits, cut.logit, [&](std::size_t i) {
    const auto token = static_cast<int32_t>(i);
    if (logits[i] == cut.logit && token > cut.last_token) return;
    if (weights_[i] == 0.0F) return;
    candidates_.push_back({logits[i], weights_[i], token});
    total += double{weights_[i]};
  });
  return total;
}

int32_t Sampler::draw(std::span<const float> logits, Cut cut, double u) {
  const double target = u * collect(logits, cut);
  double sum = 0;
  for (const Candidate& candidate : candidates_) {
    sum += double{candidate.weight};
    if (sum >= target) return candidate.token;
  }
  return candidates_.back().token;
}

int32_t Sampler::choose(std::span<const float> logits, const Choice& choice) {
  const std::span<const float> adjusted = adjust(logits, choice);
  if (choice.params.greedy()) return greedy_token(adjusted);
  const float maximum = checked_largest(adjusted);
  set_weights(adjusted, maximum, choice.params.temperature);
  const double u = uniform(choice.seed, choice.position, Purpose::kToken);
  const Cut cut = find_cut(adjusted, maximum, choice.params);
  return cut.logit == kMinusInfinity ? draw_from_all(u) : draw(adjusted, cut, u);
}

void Sampler::distribution(std::span<const float> logits, const Choice& choice,
                           std::span<double> probabilities) {
  std::fill(probabilities.begin(), probabilities.end(), 0.0);
  const std::span<const float> adjusted = adjust(logits, choice);
  if (choice.params.greedy()) {
    probabilities[static_cast<std::size_t>(greedy_token(adjusted))] = 1;
    return;
  }
  const float maximum = checked_largest(adjusted);
  set_weights(adjusted, maximum, choice.params.temperature);
  const double total = collect(adjusted, find_cut(adjusted, maximum, choice.params));
  for (const Candidate& candidate : candidates_) {
    probabilities[static_cast<std::size_t>(candidate.token)] = double{candidate.weight} / total;
  }
}

}  // namespace levin::engine
