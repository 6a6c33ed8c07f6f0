#include "runtime/cpu/workspace.h"

#include <algorithm>

#include "runtime/cpu/layout.h"

namespace levin::runtime::cpu {
namespace {

// Largest sizes over all matrices.
struct Largest {
  int64_t row_bytes = 0;  // of a packed token
  int64_t blocks = 0;
};

Largest largest_of(const Weights& weights) {
  Largest largest;
  for (const Matrix* matrix : weights.matrices()) {
    largest.row_bytes = std::max(largest.row_bytes, matrix->input_bytes(1));
    largest.blocks = std::max(largest.blocks, matrix->panels.blocks);
  }
  return largest;
}

int64_t dense_width(const model::Config& config) {
  int64_t widest = config.shared_intermediate();
  for (const int64_t size : config.intermediate_size) widest = std::max(widest, size);
  return widest;
}

void add_routing(Layout& layout, Routing& routing, const model::Config& config, int64_t rows) {
  const int64_t pairs = rows * config.num_experts_per_tok;
  layout.add(routing.chosen, pairs);
  layout.add(routing.scores, 2 * config.n_routed_experts + config.n_group);
  layout.add(routing.offsets, config.n_routed_experts + 1);
  layout.add(routing.pair_row, pairs);
  layout.add(routing.pair_weight, pairs);
}

void add_stage(Layout& layout, StageBuffer& stage, int64_t rows, int64_t row_bytes) {
  layout.add(stage.tiles, rows * row_bytes);
  layout.add(stage.scales, rows);
}

void add_mamba(Layout& layout, MambaScratch& scratch, const model::Config& config) {
  if (config.mamba_num_heads == 0) return;
  const int64_t heads = config.mamba_num_heads / config.n_groups;
  layout.rows(scratch.bc, kMambaChunk, 2 * config.ssm_state_size);
  layout.rows(scratch.x, kMambaChunk, heads * config.mamba_head_dim);
  layout.rows(scratch.dt, kMambaChunk, heads);
  layout.rows(scratch.decay, kMambaChunk, heads);
  layout.rows(scratch.dt_x, kMambaChunk, config.mamba_head_dim);
  layout.rows(scratch.skip, kMambaChunk, config.mamba_head_dim);
  layout.add(scratch.steps, kMambaChunk);
  layout.add(scratch.state,
             heads * config.ssm_state_size * round_up(config.mamba_head_dim, kLanes));
}

}  // namespace

Workspace::Workspace(const model::Config& config, const Options& options, const Weights& weights,
                     int64_t rows)
    : max_rows(rows), threads(static_cast<std::size_t>(options.threads)) {
  const Largest largest = largest_of(weights);
  const int64_t pairs = rows * std::max<int64_t>(1, config.num_experts_per_tok);
  Layout layout;
  layout.rows(hidden, rows, config.hidden_size);
  layout.rows(normed, rows, config.hidden_size);
  layout.rows(final, rows, config.hidden_size);
  // Experts pack a row once for each of its experts, into the first stage.
  for (StageBuffer& stage : stages) {
    add_stage(layout, stage, &stage == stages ? pairs : rows, largest.row_bytes);
  }
  add_routing(layout, routing, config, rows);

  // The blocks take turns with the rest.
  const int64_t common = layout.bytes();
  layout.rows(projected, rows, config.in_proj_rows());
  layout.rows(y, rows, config.d_inner());
  int64_t most = layout.bytes();
  layout.back_to(common);
  layout.rows(q, rows, config.q_rows());
  layout.rows(k, rows, config.kv_rows());
  layout.rows(v, rows, config.kv_rows());
  layout.rows(attended, rows, config.q_rows());
  most = std::max(most, layout.bytes());
  layout.back_to(common);
  layout.rows(router, rows, config.n_routed_experts);
  layout.rows(latent_in, rows, config.moe_latent_size);
  layout.rows(latent_out, rows, config.moe_latent_size);
  layout.rows(shared, rows, dense_width(config));
  layout.rows(experts, pairs, config.moe_intermediate_size);
  most = std::max(most, layout.bytes());
  layout.back_to(common);
  layout.rows(fused, rows, 2 * config.hidden_size);
  layout.back_to(std::max(most, layout.bytes()));

  const int64_t query_group =
      config.num_key_value_heads > 0 ? config.num_attention_heads / config.num_key_value_heads : 0;
  for (Private& own : threads) {
    layout.rows(own.hidden, kTile, config.hidden_size);
    layout.rows(own.wide, kTile, std::max(config.d_inner(), 2 * config.hidden_size));
    for (StageBuffer& stage : own.stages) add_stage(layout, stage, kTile, largest.row_bytes);
    layout.add(own.linear_scratch, linear_scratch_bytes(largest.blocks));
    add_routing(layout, own.routing, config, kTile);
    add_mamba(layout, own.mamba, config);
    layout.add(own.attend, attend_work_floats(query_group, config.head_dim));
  }
  arena_ = layout.allocate();
}

}  // namespace levin::runtime::cpu
