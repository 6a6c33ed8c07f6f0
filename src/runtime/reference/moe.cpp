#include "runtime/reference/moe.h"

#include <algorithm>
#include <limits>

#include "runtime/reference/mlp.h"

namespace levin::runtime::reference {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

// Index of the best score that is still in play; taken ones are -infinity.
std::size_t take_best(std::span<float> scores) {
  const auto best = static_cast<std::size_t>(argmax(scores));
  scores[best] = kNever;
  return best;
}

// Takes every expert outside the best topk_group groups out of the choice. A group is as good as
// the sum of its two best scores.
void limit_to_best_groups(const model::Config& config, std::span<float> selection,
                          std::span<float> group_scores) {
  const auto groups = static_cast<std::size_t>(config.n_group);
  const std::size_t size = selection.size() / groups;
  for (std::size_t g = 0; g < groups; ++g) {
    float best = kNever;
    float second = kNever;
    for (const float score : selection.subspan(g * size, size)) {
      if (score > best) {
        second = best;
        best = score;
      } else if (score > second) {
        second = score;
      }
    }
    group_scores[g] = size > 1 ? best + second : best;
  }
  // A group that take_best() did not take keeps a score above -infinity.
  for (int64_t k = 0; k < config.topk_group; ++k) take_best(group_scores.first(groups));
  for (std::size_t g = 0; g < groups; ++g) {
    if (group_scores[g] == kNever) continue;
    const std::span<float> losers = selection.subspan(g * size, size);
    std::fill(losers.begin(), losers.end(), kNever);
  }
}

// Rows and weights of the tokens that chose `expert`, in row order.
int members_of(int32_t expert, int rows, std::size_t per_token, MoeWork& work) {
  int count = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(rows) * per_token; ++i) {
    if (work.chosen[i].expert != expert) continue;
    work.members[static_cast<std::size_t>(count)] = static_cast<int32_t>(i / per_token);
    work.weights[static_cast<std::size_t>(count)] = work.chosen[i].weight;
    ++count;
  }
  return count;
}

// work.routed[row] = sum over the row's experts of weight * expert(input[row]), in expert order.
void run_experts(Context& context, const model::MoeBlock& block, MoeWork& work,
                 std::span<const float> input, int rows) {
  const int64_t width = context.config.expert_width();
  const auto per_token = static_cast<std::size_t>(context.config.num_experts_per_tok);
  std::fill_n(work.routed.data(), rows * width, 0.0F);
  for (std::size_t e = 0; e < block.experts.size(); ++e) {
    const int count = members_of(static_cast<int32_t>(e), rows, per_token, work);
    if (count == 0) continue;
    for (int i = 0; i < count; ++i) {
      const int64_t row = work.members[static_cast<std::size_t>(i)];
      std::copy_n(input.data() + row * width, width, work.input.row(i, width).data());
    }
    const model::Expert& expert = block.experts[e];
    feed_forward(context, expert.up_proj, expert.down_proj, work.input.rows(count, width), count,
                 work.hidden.rows(count, expert.up_proj.out), work.output.rows(count, width));
    for (int i = 0; i < count; ++i) {
      const float weight = work.weights[static_cast<std::size_t>(i)];
      float* sum = work.routed.row(work.members[static_cast<std::size_t>(i)], width).data();
      const float* output = work.output.row(i, width).data();
      for (int64_t j = 0; j < width; ++j) sum[j] += weight * output[j];
    }
  }
}

}  // namespace

void route(const model::Config& config, std::span<const float> logits,
           std::span<const float> correction_bias, std::span<float> scratch,
           std::span<RoutedExpert> chosen) {
  const std::size_t experts = logits.size();
  const std::span<float> selection = scratch.first(experts);
  for (std::size_t e = 0; e < experts; ++e) selection[e] = sigmoid(logits[e]) + correction_bias[e];
  if (config.n_group > 1) limit_to_best_groups(config, selection, scratch.subspan(experts));

  float sum = 0.0F;
  for (RoutedExpert& choice : chosen) {
    const std::size_t expert = take_best(selection);
    choice = {static_cast<int32_t>(expert), sigmoid(logits[expert])};
    sum += choice.weight;
  }
  for (RoutedExpert& choice : chosen) {
    if (config.norm_topk_prob) choice.weight /= sum + 1e-20F;
    choice.weight *= static_cast<float>(config.routed_scaling_factor);
  }
}

MoeWork::MoeWork(const Context& context) {
  const model::Config& config = context.config;
  const int64_t rows = context.max_rows;
  const int64_t width = config.expert_width();
  logits = Buffer(rows * config.n_routed_experts);
  scratch = Buffer(2 * config.n_routed_experts);
  routed = Buffer(rows * width);
  input = Buffer(rows * width);
  output = Buffer(rows * width);
  hidden = Buffer(rows * std::max(config.moe_intermediate_size, config.shared_intermediate()));
  if (config.moe_latent_size > 0) {
    latent = Buffer(rows * width);
    widened = Buffer(rows * config.hidden_size);
  }
  chosen.resize(static_cast<std::size_t>(rows * config.num_experts_per_tok));
  members.resize(static_cast<std::size_t>(rows));
  weights.resize(static_cast<std::size_t>(rows));
}

void moe(Context& context, const model::MoeBlock& block, MoeWork& work,
         std::span<const float> input, int rows, std::span<float> output) {
  const model::Config& config = context.config;
  Linears& linears = context.linears;
  const int64_t experts = config.n_routed_experts;
  const auto per_token = static_cast<std::size_t>(config.num_experts_per_tok);

  // The router and the shared expert see the full width, also when the experts are latent.
  linears.apply(block.gate, input, rows, work.logits.rows(rows, experts));
  for (int64_t row = 0; row < rows; ++row) {
    route(config, work.logits.row(row, experts), block.e_score_correction_bias,
          work.scratch.row(0, 2 * experts),
          std::span(work.chosen).subspan(static_cast<std::size_t>(row) * per_token, per_token));
  }

  std::span<const float> routed;
  if (block.fc1_latent.exists()) {
    const std::span<float> latent = work.latent.rows(rows, config.moe_latent_size);
    linears.apply(block.fc1_latent, input, rows, latent);
    run_experts(context, block, work, latent, rows);
    const std::span<float> widened = work.widened.rows(rows, config.hidden_size);
    linears.apply(block.fc2_latent, work.routed.rows(rows, config.moe_latent_size), rows, widened);
    routed = widened;
  } else {
    run_experts(context, block, work, input, rows);
    routed = work.routed.rows(rows, config.hidden_size);
  }

  std::copy(routed.begin(), routed.end(), output.begin());
  if (!block.shared) return;
  // The experts' work space is free again; work.output may be narrower than hidden, so the shared
  // expert writes where the latent projection did or, without one, over the experts' sum.
  const std::span<float> shared =
      (block.fc1_latent.exists() ? work.widened : work.routed).rows(rows, config.hidden_size);
  feed_forward(context, block.shared->up_proj, block.shared->down_proj, input, rows,
               work.hidden.rows(rows, block.shared->up_proj.out), shared);
  for (std::size_t i = 0; i < shared.size(); ++i) output[i] += shared[i];
}

}  // namespace levin::runtime::reference
