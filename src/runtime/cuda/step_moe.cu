// The phases of a mixture-of-experts layer (step.h).
#include <algorithm>

#include "runtime/cuda/step_launch.h"

namespace levin::runtime::cuda {
namespace {

Activations with_memory(Activations activations, uint8_t* data, int stride) {
  activations.data = data;
  activations.stride = stride;
  return activations;
}

double bytes_of(const PackedMatrix& m) {
  return static_cast<double>(m.bytes());
}

// Bytes: what the scouts say, then a barrier for the list of items and one for each input.
constexpr int kAnnouncement = 512;

}  // namespace

Router Step::make_router(const DeviceMoe& m, uint64_t* words) const {
  Router r;
  r.words = words;
  r.epoch = s_.epoch;
  r.touched = s_.experts_touched;
  r.bias = m.bias;
  r.experts = static_cast<int>(c_.n_routed_experts);
  r.chosen = static_cast<int>(c_.num_experts_per_tok);
  r.groups = static_cast<int>(c_.n_group);
  r.chosen_groups = static_cast<int>(c_.topk_group);
  r.scale = static_cast<float>(c_.routed_scaling_factor);
  r.normalize = c_.norm_topk_prob;
  return r;
}

void Step::moe(const DeviceMoe& m, const float* norm, const Pass* pass, float* h, uint64_t* words) {
  const auto width = static_cast<int>(c_.hidden_size);
  const auto latent_width = static_cast<int>(c_.moe_latent_size);
  const bool latent = m.fc1.exists();
  if (latent) {
    NormLinear fc1 = norm_input(pass, h, norm);
    Output output;
    output.data = s_.latent;
    output.stride = latent_width;
    add_part(fc1, m.fc1, output);
    norm_phase("moe fc1", fc1);
    if (observing()) observer_->input(*m.fc1.source, buffers_.normed);
  }
  Router router = make_router(m, words);
  if (rows_ > 1 && rows_ <= kDownRows) router.choice = words + int64_t{kMaxRows} * router.experts;
  moe_up_phase(m, norm, pass, h, router);
  const bool shared = m.shared_up.exists();
  if (!latent) {
    moe_down_phase(m, pass, router, h, width, true, true, shared);
    return;
  }
  moe_down_phase(m, pass, router, s_.latent_sum, latent_width, false, true, false);
  ActLinear fc2;
  fc2.pass = pass;
  fc2.x = s_.latent_sum;
  fc2.width = latent_width;
  act_phase("moe fc2", fc2, m.fc2, residual(h));
  if (shared) moe_down_phase(m, pass, router, h, width, true, false, true);
}

void Step::moe_up_phase(const DeviceMoe& m, const float* norm, const Pass* pass, float* h,
                        const Router& router) {
  const auto width = static_cast<int>(c_.hidden_size);
  const bool latent = m.fc1.exists();
  MoeUp up;
  up.pass = pass;
  up.input = {.x = h, .stride = width, .by_previous_row = false, .weight = norm, .column = 0};
  up.width = width;
  up.eps = static_cast<float>(c_.norm_eps);
  up.units = (width + kUnitColumns - 1) / kUnitColumns;
  up.operand_count = 0;
  up.router = router;
  up.gate = {m.gate, m.gate_bf16};
  up.items = m.up_items;
  up.experts = m.up.matrices;
  const PackedMatrix& expert = up.experts.first;
  double bytes = bytes_of(expert) * router.chosen +
                 static_cast<double>(router.experts) * width * (m.gate_bf16 ? 2 : 4);
  FormatSet formats = set_of(expert.format);
  Shape shape;
  const bool one = rows_ == 1;
  // The phase before is short: with one copy at a time the rings of two tokens would not be full
  // when it ends. (With one the list comes first, and with more nothing fits beside.)
  shape.ahead = rows_ == 2 ? 2 : 1;
  shape.busy_warps = kWarps;
  shape.unit_bytes = expert.unit_bytes;
  // With several tokens the rings need the whole memory: bytes of many experts, all after the
  // routing (4 tokens: 3 % of a pass in the coverage recipe, 10 % in 4 bits, 25 % in BF16).
  shape.among_exclusive = rows_ >= 2;
  shape.items =
      Share(std::min(rows_ * router.chosen, router.experts) * expert.tiles, blocks_).most() *
      expert.segments.value;
  if (m.shared_up.exists()) {
    up.shared_parts = 1;
    up.shared_part.matrix = m.shared_up.matrix;
    up.shared_part.factor = m.shared_up.factor;
    up.shared_part.operand = operand_index(up.operands, up.operand_count, m.shared_up.operand);
    up.shared_out = with_memory(m.shared_activations, s_.shared_acts, s_.shared_stride);
    up.shared_part.share = Share(m.shared_up.matrix.tiles, blocks_);
    shape.partials = up.shared_part.share.most() * m.shared_up.matrix.segments.value;
    shape.items += shape.partials;
    shape.unit_bytes = std::max(shape.unit_bytes, m.shared_up.matrix.unit_bytes);
    bytes += bytes_of(m.shared_up.matrix);
    formats |= set_of(m.shared_up.matrix.format);
  }
  if (one || expert.segments.value > 1) shape.partials = shape.items;
  ++shape.items;  // the head of a list
  if (latent) {
    up.latent = s_.latent;
    up.latent_width = static_cast<int>(c_.moe_latent_size);
    up.latent_units = (up.latent_width + kUnitColumns - 1) / kUnitColumns;
    up.latent_operand = m.up.operand;
  } else {
    up.routed_operand = operand_index(up.operands, up.operand_count, m.up.operand);
  }
  if (up.operand_count == 0) up.operands[up.operand_count++] = {};
  up.routed_out = with_memory(m.down.activations, s_.routed_acts, s_.routed_stride);
  const int routing = align(Routing::bytes(rows_, router.chosen, router.experts, router.groups));
  const int latent_bytes = latent ? align(rows_ * operand_stride(up.latent_units)) : 0;
  shape.operand_units = up.units;
  shape.operands = up.operand_count;
  const int factors =
      align(std::min(rows_ * router.chosen, router.experts) * static_cast<int>(2 * sizeof(float)));
  shape.extra = factors + routing + latent_bytes + kAnnouncement;
  up.shared = layout(shape, rows_);
  up.tiles = Divisor(expert.tiles);
  up.blocks = Divisor(blocks_);
  up.experts.chunk_units = chunk_units(up.shared, expert);
  if (up.shared_parts > 0) up.shared_part.chunk_units = chunk_units(up.shared, m.shared_up.matrix);
  up.barrier = up.shared.total - kAnnouncement;
  up.latent_offset = up.barrier - latent_bytes;
  up.routing_offset = up.latent_offset - routing;
  up.factors = up.routing_offset - factors;
  if (observing()) {
    up.normed = buffers_.normed;
    up.observed_shared = buffers_.shared;
    up.observed_routed = buffers_.routed;
    up.observed_experts = buffers_.experts;
  }
  const Kernel<MoeUp> kernel =
      one ? moe_up_one_kernel(formats) : moe_up_several_kernel(rows_, formats);
  allow_shared(kernel, shared_per_block_);
  launch("moe up", kernel, dim3(static_cast<unsigned>(blocks_)), kThreads, up.shared.total, up,
         bytes);
  if (!observing()) return;
  observer_->input(m.source->gate, buffers_.normed);
  observer_->expert_inputs(m.up.sources, buffers_.experts, latent ? s_.latent : buffers_.normed,
                           false);
  observer_->expert_inputs(m.down.sources, buffers_.experts, buffers_.routed, true);
  if (m.shared_up.exists()) {
    observer_->input(*m.shared_up.source, buffers_.normed);
    observer_->input(*m.shared_down.source, buffers_.shared);
  }
}

void Step::moe_down_phase(const DeviceMoe& m, const Pass* pass, const Router& router, float* out,
                          int stride, bool add, bool routed, bool shared) {
  MoeDown p;
  p.pass = pass;
  p.routed = routed;
  p.items = routed ? m.down_items : m.shared_down_items;
  p.router = router;
  p.experts = m.down.matrices;
  const PackedMatrix& any = routed ? p.experts.first : m.shared_down.matrix;
  // As many tokens at a time as there is room for their activations beside rings worth having.
  const int of_token = (shared ? operand_stride(m.shared_down.matrix.units) : 0) +
                       (routed ? router.chosen * operand_stride(p.experts.first.units) : 0);
  const int rows = std::clamp(shared_per_block_ / 5 * 3 / of_token, 1, std::min(rows_, kDownRows));
  p.most_tokens = rows;
  if (rows < rows_) p.router.choice = nullptr;  // of all tokens, which is another list of experts
  const int grid = std::min(any.tiles, blocks_);
  p.rows = any.rows;
  p.share = Share(any.tiles, grid);
  const int tiles = p.share.most();
  const int distinct = routed ? std::min(rows * router.chosen, router.experts) : 0;
  double bytes = routed ? bytes_of(p.experts.first) * router.chosen : 0;
  FormatSet formats = set_of(any.format);
  int shared_rows = 0;
  Shape shape;
  shape.operands = 0;
  shape.exclusive = true;
  shape.busy_warps = kWarps;
  shape.unit_bytes = any.unit_bytes;
  shape.items = distinct * tiles * p.experts.first.segments.value;
  if (shared) {
    p.shared_parts = 1;
    p.shared_part.matrix = m.shared_down.matrix;
    p.shared_part.factor = m.shared_down.factor;
    p.shared_in = with_memory(m.shared_activations, s_.shared_acts, s_.shared_stride);
    shared_rows = align(rows * operand_stride(m.shared_down.matrix.units));
    shape.unit_bytes = std::max(shape.unit_bytes, m.shared_down.matrix.unit_bytes);
    bytes += bytes_of(m.shared_down.matrix);
    formats |= set_of(m.shared_down.matrix.format);
    p.shared_part.share = p.share;
    shape.items += tiles * m.shared_down.matrix.segments.value;
  }
  shape.partials = shape.items;
  // write_down() leaves there what each part adds.
  shape.ring_bytes = rows * tiles * kTileRows * (1 + distinct) * static_cast<int>(sizeof(float));
  ++shape.items;  // the head of a list
  p.routed_in = with_memory(m.down.activations, s_.routed_acts, s_.routed_stride);
  p.out = out;
  p.out_stride = stride;
  p.add = add;
  const int routing = align(Routing::bytes(rows, router.chosen, router.experts, router.groups));
  const int routed_rows =
      routed ? align(rows * router.chosen * operand_stride(p.experts.first.units)) : 0;
  const int factors = align(distinct * kDownRows * static_cast<int>(sizeof(float)));
  shape.extra = kAnnouncement + routing + shared_rows + routed_rows + factors;
  p.shared = layout(shape, rows);
  p.experts.chunk_units = chunk_units(p.shared, p.experts.first);
  if (shared) p.shared_part.chunk_units = chunk_units(p.shared, m.shared_down.matrix);
  p.barrier = p.shared.total - kAnnouncement;
  p.routing_offset = p.barrier - routing;
  p.shared_rows = p.routing_offset - shared_rows;
  p.routed_rows = p.shared_rows - routed_rows;
  p.factors = p.routed_rows - factors;
  const Kernel<MoeDown> kernel =
      rows == 1 ? moe_down_one_kernel(formats) : moe_down_several_kernel(formats);
  allow_shared(kernel, shared_per_block_);
  for (p.first_token = 0; p.first_token < rows_; p.first_token += rows) {
    launch("moe down", kernel, dim3(static_cast<unsigned>(grid)), kThreads, p.shared.total, p,
           bytes);
  }
}

}  // namespace levin::runtime::cuda
