// Mixture of experts and dense feed-forward blocks: down(relu(up x)^2).
//
// The tokens of a batch are sorted by expert, so that an expert's weights are read once for all its
// tokens, and every thread computes its rows of every expert. A token's experts are added in
// ascending order, whatever the batch.
#include <algorithm>
#include <limits>

#include "runtime/cpu/blocks.h"

namespace levin::runtime::cpu {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

// Index of the first best score; it is taken out of play.
int32_t take_best(float* scores, int64_t count) {
  const auto best = static_cast<int32_t>(std::max_element(scores, scores + count) - scores);
  scores[best] = kNever;
  return best;
}

// Takes every expert outside the best topk_group groups out of play. A group is as good as the sum
// of its two best experts.
void limit_to_best_groups(const model::Config& config, float* selection, float* group_scores) {
  const int64_t size = config.n_routed_experts / config.n_group;
  for (int64_t g = 0; g < config.n_group; ++g) {
    float best = kNever;
    float second = kNever;
    for (int64_t e = g * size; e < (g + 1) * size; ++e) {
      second = std::max(second, std::min(best, selection[e]));
      best = std::max(best, selection[e]);
    }
    group_scores[g] = size > 1 ? best + second : best;
  }
  // A group that is not taken keeps a score above -infinity.
  for (int64_t k = 0; k < config.topk_group; ++k) take_best(group_scores, config.n_group);
  for (int64_t g = 0; g < config.n_group; ++g) {
    if (group_scores[g] != kNever) {
      std::fill_n(selection + g * size, size, kNever);
    }
  }
}

// Chooses the experts of one row.
void route_row(const Pass& pass, const MoeWeights& weights, const float* logits, float* scores,
               Routing::Choice* chosen) {
  const model::Config& config = pass.config();
  const int64_t experts = config.n_routed_experts;
  float* selection = scores + experts;
  pass.kernels().sigmoid(logits, experts, scores);
  for (int64_t e = 0; e < experts; ++e) selection[e] = scores[e] + weights.correction_bias[e];
  if (config.n_group > 1) limit_to_best_groups(config, selection, selection + experts);
  float sum = 0.0F;
  for (int64_t k = 0; k < config.num_experts_per_tok; ++k) {
    const int32_t expert = take_best(selection, experts);
    chosen[k] = {expert, scores[expert]};
    sum += chosen[k].weight;
  }
  const auto factor = static_cast<float>(config.routed_scaling_factor);
  for (int64_t k = 0; k < config.num_experts_per_tok; ++k) {
    if (config.norm_topk_prob) chosen[k].weight /= sum + 1e-20F;
    chosen[k].weight *= factor;
  }
}

// Sorts the choices by expert; rows stay in order.
void sort_choices(const model::Config& config, const Routing& routing, int64_t count) {
  const int64_t experts = config.n_routed_experts;
  const int64_t per_row = config.num_experts_per_tok;
  std::fill_n(routing.offsets, experts + 1, 0);
  for (int64_t i = 0; i < count * per_row; ++i) ++routing.offsets[routing.chosen[i].expert + 1];
  for (int64_t e = 0; e < experts; ++e) routing.offsets[e + 1] += routing.offsets[e];
  // offsets[e] serves as the next free place of expert e, ending as the end of e.
  for (int64_t i = 0; i < count * per_row; ++i) {
    const Routing::Choice& choice = routing.chosen[i];
    const int32_t place = routing.offsets[choice.expert]++;
    routing.pair_row[place] = static_cast<int32_t>(i / per_row);
    routing.pair_weight[place] = choice.weight;
  }
  for (int64_t e = experts; e > 0; --e) routing.offsets[e] = routing.offsets[e - 1];
  routing.offsets[0] = 0;
}

const Routing& route(Pass& pass, const MoeWeights& weights, int64_t count) {
  const Routing& own = pass.own().routing;
  const Routing& routing = pass.small() ? own : pass.work().routing;
  const Range rows = pass.rows_to_stage(count);
  for (int64_t i = rows.begin; i < rows.end; ++i) {
    route_row(pass, weights, pass.work().router[i], own.scores,
              routing.chosen + i * pass.config().num_experts_per_tok);
  }
  pass.staged();
  if (pass.small() || pass.thread() == 0) sort_choices(pass.config(), routing, count);
  pass.staged();
  return routing;
}

// One projection of all experts. Pair i reads row index[i] of `rows` (or row i without an index).
struct ExpertInput {
  Rows rows;
  const int32_t* index;
};

template <typename MatrixOf>
void stage_experts(Pass& pass, const MoeWeights& weights, const Routing& routing,
                   const ExpertInput& input, MatrixOf matrix_of) {
  if (pass.small()) return;
  const StageBuffer& buffer = pass.work().stages[0];
  int64_t tiles = 0;
  for (std::size_t e = 0; e < weights.experts.size(); ++e) {
    const Matrix& matrix = matrix_of(weights.experts[e]);
    const int64_t end = routing.offsets[e + 1];
    for (int64_t pair = routing.offsets[e]; pair < end; pair += kTile) {
      if (tiles++ % pass.threads() != pass.thread()) continue;
      // Tiles of an expert begin where its pairs do, which is no multiple of a tile.
      const StageBuffer place{buffer.tiles + matrix.input_bytes(pair), buffer.scales + pair};
      const int64_t tile_end = std::min(pair + kTile, end);
      const bool indexed = input.index != nullptr;
      pass.pack(matrix, indexed ? input.rows : input.rows.from(pair),
                indexed ? input.index + pair : nullptr, 0, tile_end - pair, place);
    }
  }
}

// `output_of(pair)`: where pairs from that one on go.
template <typename MatrixOf, typename OutputOf>
void multiply_experts(Pass& pass, const MoeWeights& weights, const Routing& routing,
                      const ExpertInput& input, MatrixOf matrix_of, OutputOf output_of) {
  for (std::size_t e = 0; e < weights.experts.size(); ++e) {
    const int64_t pair = routing.offsets[e];
    const int64_t count = routing.offsets[e + 1] - pair;
    if (count == 0) continue;
    pass.count_expert();
    const Matrix& matrix = matrix_of(weights.experts[e]);
    const bool indexed = input.index != nullptr;
    const Rows rows = indexed ? input.rows : input.rows.from(pair);
    const int32_t* index = indexed ? input.index + pair : nullptr;
    const StageBuffer& buffer = pass.stage_buffer(0);
    PackedInput packed{buffer.tiles, buffer.scales, count};
    if (pass.small()) {
      pass.pack(matrix, rows, index, 0, count, buffer);
    } else {
      packed.x = buffer.tiles + matrix.input_bytes(pair);
      packed.scale = buffer.scales + pair;
    }
    pass.watch_input(matrix, rows, count, index);
    pass.multiply(matrix, packed, output_of(pair));
  }
}

// This thread's rows of the latent sum begin at zero.
void clear_own_rows(const Pass& pass, const Matrix& down, const Rows& rows, int64_t count) {
  const Range panels = pass.panels_of(down);
  for (int64_t i = 0; i < count; ++i) {
    std::fill(rows[i] + panels.begin * kLanes, rows[i] + panels.end * kLanes, 0.0F);
  }
}

}  // namespace

void run_mlp(Pass& pass, const FeedForward& weights, const float* norm, const Rows& hidden,
             int64_t count) {
  const Rows normed = pass.normed();
  const Rows& inner = pass.work().shared;
  pass.phase(Phase::kMlpUp);
  pass.normalize(hidden, count, norm, normed);
  const PackedInput input = pass.stage(0, weights.up_proj, normed, count);
  pass.staged();
  pass.watch_input(weights.up_proj, normed, count);
  pass.multiply(weights.up_proj, input, store_to(inner, Epilogue::kRelu2));
  pass.barrier();

  pass.phase(Phase::kMlpDown);
  const PackedInput squared = pass.stage(0, weights.down_proj, inner, count);
  pass.staged();
  pass.watch_input(weights.down_proj, inner, count);
  pass.multiply(weights.down_proj, squared, store_to(hidden, Epilogue::kAdd));
  pass.barrier();
}

void run_moe(Pass& pass, const MoeWeights& weights, const float* norm, const Rows& hidden,
             int64_t count) {
  Workspace& work = pass.work();
  const Rows normed = pass.normed();
  const auto up = [](const FeedForward& expert) -> const Matrix& { return expert.up_proj; };
  const auto down = [](const FeedForward& expert) -> const Matrix& { return expert.down_proj; };

  // Router, shared expert and the way into the latent space see the full width.
  pass.phase(Phase::kMoeIn);
  pass.normalize(hidden, count, norm, normed);
  const PackedInput router_input = pass.stage(0, weights.gate, normed, count);
  PackedInput shared_input;
  PackedInput latent_input;
  if (weights.shared) shared_input = pass.stage(1, weights.shared->up_proj, normed, count);
  if (weights.fc1_latent) latent_input = pass.stage(2, *weights.fc1_latent, normed, count);
  pass.staged();
  pass.watch_input(weights.gate, normed, count);
  pass.multiply(weights.gate, router_input, store_to(work.router));
  if (weights.shared) {
    pass.watch_input(weights.shared->up_proj, normed, count);
    pass.multiply(weights.shared->up_proj, shared_input, store_to(work.shared, Epilogue::kRelu2));
  }
  if (weights.fc1_latent) {
    pass.watch_input(*weights.fc1_latent, normed, count);
    pass.multiply(*weights.fc1_latent, latent_input, store_to(work.latent_in));
  }
  pass.barrier();

  pass.phase(Phase::kMoeRoute);
  const Routing& routing = route(pass, weights, count);
  pass.phase(Phase::kMoeUp);
  const ExpertInput outer{weights.fc1_latent ? work.latent_in : normed, routing.pair_row};
  stage_experts(pass, weights, routing, outer, up);
  pass.staged();
  multiply_experts(pass, weights, routing, outer, up, [&](int64_t pair) {
    return store_to(work.experts.from(pair), Epilogue::kRelu2);
  });
  pass.barrier();

  pass.phase(Phase::kMoeDown);
  const ExpertInput inner{work.experts, nullptr};
  stage_experts(pass, weights, routing, inner, down);
  if (weights.shared) shared_input = pass.stage(1, weights.shared->down_proj, work.shared, count);
  pass.staged();
  if (weights.shared) {
    pass.watch_input(weights.shared->down_proj, work.shared, count);
    pass.multiply(weights.shared->down_proj, shared_input, store_to(hidden, Epilogue::kAdd));
  }
  const Rows& sum = weights.fc2_latent ? work.latent_out : hidden;
  if (weights.fc2_latent && !weights.experts.empty()) {
    clear_own_rows(pass, weights.experts.front().down_proj, sum, count);
  }
  multiply_experts(pass, weights, routing, inner, down, [&](int64_t pair) {
    LinearOutput output = store_to(sum, Epilogue::kAdd);
    output.rows = routing.pair_row + pair;
    output.weight = routing.pair_weight + pair;
    return output;
  });
  pass.barrier();
  if (!weights.fc2_latent) return;

  pass.phase(Phase::kMoeOut);
  latent_input = pass.stage(2, *weights.fc2_latent, work.latent_out, count);
  pass.staged();
  pass.watch_input(*weights.fc2_latent, work.latent_out, count);
  pass.multiply(*weights.fc2_latent, latent_input, store_to(hidden, Epilogue::kAdd));
  pass.barrier();
}

}  // namespace levin::runtime::cpu
