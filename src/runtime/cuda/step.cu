#include <algorithm>
#include <array>
#include <cmath>

#include "core/error.h"
#include "runtime/cuda/step_launch.h"

namespace levin::runtime::cuda {
namespace {

constexpr int kSmallestRing = kWarps * kFewestSlots * kSmallestSlot;
constexpr int kUsualRing = kWarps * kFewestSlots * kUsualSlot;
constexpr int kReservedShared = 1024;                // per block, by the driver
constexpr int kScanBesides = kReservedShared + 512;  // and what mamba_scan has of its own

}  // namespace

Step::Step(const model::Model& model, const Options& options, const DeviceModel& weights,
           const State& state, int blocks, const LoadedKernels& kernels, const CudaLimits& limits)
    : c_(model.config),
      options_(options),
      w_(weights),
      s_(state),
      blocks_(blocks),
      kernels_(kernels) {
  int device = 0;
  check(cudaGetDevice(&device));
  check(
      cudaDeviceGetAttribute(&shared_per_block_, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  check(cudaDeviceGetAttribute(&shared_per_multiprocessor_,
                               cudaDevAttrMaxSharedMemoryPerMultiprocessor, device));
  if (limits.shared_per_block > 0) shared_per_block_ = limits.shared_per_block;
  if (limits.shared_per_multiprocessor > 0) {
    shared_per_multiprocessor_ = limits.shared_per_multiprocessor;
  }
  allow_shared(embed_kernel(), 0);
  allow_shared(advance_draft_kernel(), 0);
  allow_shared(begin_round_kernel(), 0);
  allow_shared(begin_verify_kernel(), 0);
  allow_shared(end_round_kernel(), 0);
}

int Step::most_rows() {
  dry_ = true;
  int rows = kMaxRows;
  for (;; rows /= 2) {
    try {
      extend(nullptr, rows, true);
      if (w_.mtp) draft(nullptr, rows);
      break;
    } catch (const TooWide&) {
      if (rows == 1) throw;
    }
  }
  dry_ = false;
  return rows;
}

void Step::observe(StepObserver* observer, const ObservedBuffers& buffers) {
  observer_ = observer;
  buffers_ = buffers;
}

void Step::trace(uint64_t* stamps, std::size_t capacity, std::vector<TracedPhase>* phases) {
  stamps_ = stamps;
  stamps_left_ = capacity;
  phases_ = phases;
}

// Blocks of two phases fit on a multiprocessor, so that the next phase can fill its rings while
// this one works; but not two blocks of one phase, which would leave another multiprocessor idle.
// Nothing else says so to the device: phases that read what all blocks have made (exclusive) take
// more than half of the memory, and the others are launched while those are still there. A phase
// for which the one before leaves no room starts on multiprocessors as they become free, so it has
// to take more than half as well. Kernels that do not overlap have the device for themselves: they
// take all that they have a use for, and at least the larger half.
SharedLayout Step::layout(const Shape& shape, int rows) const {
  SharedLayout l;
  l.rows = rows;
  const int items = align(std::max(shape.items, 1) * static_cast<int>(sizeof(Item)));
  const int operands = align(shape.operands * rows * operand_stride(shape.operand_units));
  const int partials = align(Partials::bytes(shape.partials, rows));
  const int scratch = align(4 * (scratch_floats(rows) + kRowScales + rows * shape.groups));
  constexpr int kBarriers = kWarps * kMostSlots * 8;
  const int fixed = items + kBarriers + operands + partials + scratch + shape.extra;
  // With one token the recurrence's blocks fit besides, too: they are short, and the phase after
  // the next one would have to wait until they are gone. With several larger rings are worth more.
  const bool scan = rows == 1 && c_.ssm_state_size > 0;
  const int large = shared_per_multiprocessor_ / 100 * (scan ? 50 : 52);
  const int beside =
      scan ? mamba_scan_shared(static_cast<int>(c_.ssm_state_size)) + kScanBesides : 0;
  const int small = shared_per_multiprocessor_ - large - beside - 2 * kReservedShared;
  const bool alone = before_shared_ + small + 2 * kReservedShared > shared_per_multiprocessor_;
  const bool exclusive = shape.exclusive || alone || !kernels_.overlap;
  int most = exclusive ? large : small;
  // Among exclusive phases a large block is alone anyhow, and may as well have everything.
  if (most - fixed < kUsualRing) most = shape.among_exclusive ? shared_per_block_ : large;
  if (most - fixed < kSmallestRing || !kernels_.overlap) most = shared_per_block_;
  const int warps = std::clamp(shape.busy_warps, 1, kWarps);
  const int of_warp = (most - fixed) / warps;
  const int least = align(shape.unit_bytes);
  l.slots = std::clamp(of_warp / kUsualSlot, kFewestSlots, kMostSlots);
  if (of_warp / l.slots / 128 * 128 < least) l.slots = 1;  // a warp waits for each copy
  l.slot_bytes = std::min(of_warp / l.slots / 128 * 128, kUsualSlot);
  l.ahead = shape.ahead;
  const auto refuse = [&](int wanted) {
    throw TooWide({.what = "a layer is too wide for the shared memory of this device",
                   .where = "CUDA runtime",
                   .expected = "at most " + std::to_string(shared_per_block_) + " bytes",
                   .found = std::to_string(wanted) + " bytes",
                   .hint = "use --device cpu",
                   .exit_code = ExitCode::kMachine});
  };
  if (most < fixed || l.slot_bytes < least) refuse(fixed + warps * least);
  // reduce_candidates() in linear.cu takes the rings' place.
  const int candidates = kWarps * kMaxRows * static_cast<int>(sizeof(Candidate));
  l.items = std::max({l.slot_bytes * warps * l.slots, candidates, align(shape.ring_bytes)});
  l.barriers = l.items + items;
  l.operands = l.barriers + kBarriers;
  l.partials = l.operands + operands;
  l.scratch = l.partials + partials;
  l.row_scales = l.scratch + 4 * scratch_floats(rows);
  l.total = l.scratch + scratch + shape.extra;
  if (exclusive) l.total = std::max(l.total, large / 128 * 128);
  if (l.total > shared_per_block_) refuse(l.total);
  l.late = !kernels_.overlap ||
           before_shared_ + l.total + 2 * kReservedShared > shared_per_multiprocessor_;
  return l;
}

int Step::operand_index(Operand* operands, int& count, const Operand& operand) const {
  for (int i = 0; i < count; ++i) {
    if (operands[i].kind == operand.kind && operands[i].scale == operand.scale) return i;
  }
  operands[count] = operand;
  return count++;
}

void Step::add_part(NormLinear& p, const DeviceLinear& linear, const Output& output) {
  Part& part = p.parts[p.part_count++];
  part.matrix = linear.matrix;
  part.factor = linear.factor;
  part.operand = operand_index(p.operands, p.operand_count, linear.operand);
  part.output = output;
}

NormLinear Step::norm_input(const Pass* pass, const float* x, const float* norm) const {
  NormLinear p;
  p.pass = pass;
  p.width = static_cast<int>(c_.hidden_size);
  p.eps = static_cast<float>(c_.norm_eps);
  p.inputs[0] = {.x = x, .stride = p.width, .by_previous_row = false, .weight = norm, .column = 0};
  p.operand_count = 0;
  p.part_count = 0;
  if (observing()) {
    p.normed = buffers_.normed;
    p.normed_stride = p.width;
  }
  return p;
}

// Shares the linears of a phase out over blocks, and says how many those are and what they need.
int Step::share_out(Part* parts, int count, Shape& shape) const {
  int grid = 1;
  int start = 0;  // where the next part's first block is: after those that have a tile more
  for (int i = 0; i < count; ++i) grid = std::max(grid, std::min(parts[i].matrix.tiles, blocks_));
  for (int i = 0; i < count; ++i) {
    const PackedMatrix& m = parts[i].matrix;
    parts[i].share = Share(m.tiles, grid);
    parts[i].rotation = (grid - start) % grid;
    start = (start + parts[i].share.more) % grid;
    shape.unit_bytes = std::max(shape.unit_bytes, m.unit_bytes);
    shape.items += parts[i].share.most() * m.segments.value;
    if (m.segments.value > 1) shape.partials = shape.items;
  }
  shape.busy_warps = shape.items;
  return grid;
}

int Step::chunk_units(const SharedLayout& l, const PackedMatrix& m) {
  const int most = l.slot_bytes / m.unit_bytes;
  const int at_once = units_at_once(m.format);
  return most > at_once ? most / at_once * at_once : most;
}

void Step::norm_phase(const char* name, NormLinear& p) {
  p.units = (p.width * p.input_count + kUnitColumns - 1) / kUnitColumns;
  if (p.operand_count == 0) p.operands[p.operand_count++] = {};
  Shape shape = {.operand_units = p.units, .operands = p.operand_count};
  const int grid = share_out(p.parts, p.part_count, shape);
  double bytes = 0;
  FormatSet formats = 0;
  p.shared = layout(shape, rows_);
  for (int i = 0; i < p.part_count; ++i) {
    p.parts[i].chunk_units = chunk_units(p.shared, p.parts[i].matrix);
    bytes += static_cast<double>(p.parts[i].matrix.bytes());
    formats |= set_of(p.parts[i].matrix.format);
  }
  const Kernel<NormLinear> kernel = norm_linear_kernel(rows_, formats);
  allow_shared(kernel, shared_per_block_);
  launch(name, kernel, dim3(static_cast<unsigned>(grid)), kThreads, p.shared.total, p, bytes);
}

void Step::act_phase(const char* name, ActLinear& p, const DeviceLinear& linear,
                     const Output& output) {
  p.eps = static_cast<float>(c_.norm_eps);
  p.units = linear.matrix.units;
  p.operands[0] = linear.operand;
  p.operand_count = 1;
  p.parts[0].matrix = linear.matrix;
  p.parts[0].factor = linear.factor;
  p.parts[0].output = output;
  p.part_count = 1;
  if (observing()) p.observed = buffers_.acts;
  Shape shape = {.operand_units = p.units, .groups = p.groups, .exclusive = true};
  const int grid = share_out(p.parts, 1, shape);
  p.shared = layout(shape, rows_);
  p.parts[0].chunk_units = chunk_units(p.shared, linear.matrix);
  const Kernel<ActLinear> kernel = act_linear_kernel(rows_, set_of(linear.matrix.format));
  allow_shared(kernel, shared_per_block_);
  launch(name, kernel, dim3(static_cast<unsigned>(grid)), kThreads, p.shared.total, p,
         static_cast<double>(linear.matrix.bytes()));
  if (observing()) observer_->input(*linear.source, buffers_.acts);
}

Output Step::residual(float* h) const {
  Output output;
  output.kind = OutputKind::kAdd;
  output.data = h;
  output.stride = static_cast<int>(c_.hidden_size);
  return output;
}

void Step::embed_tokens(const Pass* pass, float* out) {
  Embed p;
  p.pass = pass;
  p.table = w_.embeddings;
  p.type = w_.embeddings_type;
  p.width = static_cast<int>(c_.hidden_size);
  p.out = out;
  p.epoch = s_.epoch;
  launch("embed", embed_kernel(), dim3(static_cast<unsigned>(rows_)), kThreads, 0, p);
}

void Step::mamba(const DeviceMamba& m, const float* norm, int index) {
  NormLinear in = norm_input(s_.pass, s_.h, norm);
  Output projected;
  projected.data = s_.projected;
  projected.stride = static_cast<int>(c_.in_proj_rows());
  add_part(in, m.in_proj, projected);
  norm_phase("mamba in_proj", in);
  if (observing()) observer_->input(*m.in_proj.source, buffers_.normed);

  MambaScan scan = mamba_scan_of(c_, options_, m, s_.mamba[static_cast<std::size_t>(index)], index);
  scan.pass = s_.pass;
  scan.projected = s_.projected;
  scan.y = s_.y;
  scan.squares = s_.squares;
  const Kernel<MambaScan> kernel = mamba_scan_kernel(rows_, scan.states, scan.half_state);
  const int shared = mamba_scan_shared(scan.states);
  allow_shared(kernel, shared);
  const dim3 grid(static_cast<unsigned>(scan.heads * scan.pieces()),
                  static_cast<unsigned>(std::min(rows_, options_.max_num_seqs)));
  const double state =
      static_cast<double>(c_.d_inner() * c_.ssm_state_size) * (scan.half_state ? 2 : 4);
  launch("mamba scan", kernel, grid, kScanThreads, shared, scan, 2 * state);

  ActLinear out;
  out.pass = s_.pass;
  out.kind = InputKind::kGatedNorm;
  out.x = s_.y;
  out.width = static_cast<int>(c_.d_inner());
  out.weight = m.norm;
  out.squares = s_.squares;
  out.pieces = scan.heads * scan.pieces();
  out.groups = scan.groups;
  out.inverse_group_width = static_cast<float>(c_.n_groups) / static_cast<float>(c_.d_inner());
  act_phase("mamba out_proj", out, m.out_proj, residual(s_.h));
}

void Step::attention(const DeviceAttention& a, const float* norm, const Pass* pass, float* h,
                     const KvCaches& kv, int position_offset) {
  NormLinear in = norm_input(pass, h, norm);
  Output queries;
  queries.data = s_.queries;
  queries.stride = static_cast<int>(c_.q_rows());
  Output keys;
  keys.kind = OutputKind::kKey;
  keys.cache = kv.keys;
  keys.position_offset = position_offset;
  Output values = keys;
  values.kind = OutputKind::kValue;
  values.cache = kv.values;
  add_part(in, a.q, queries);
  add_part(in, a.k, keys);
  add_part(in, a.v, values);
  norm_phase("attention qkv", in);
  if (observing()) {
    for (const DeviceLinear* linear : {&a.k, &a.v, &a.q})
      observer_->input(*linear->source, buffers_.normed);
  }

  Attention p;
  p.pass = pass;
  p.queries = s_.queries;
  p.keys = kv.keys;
  p.values = kv.values;
  p.position_offset = position_offset;
  p.heads = static_cast<int>(c_.num_attention_heads);
  p.chunks = s_.chunks;
  p.max_chunks = s_.max_chunks;
  constexpr double kLog2E = 1.4426950408889634;
  p.scale = static_cast<float>(kLog2E / std::sqrt(static_cast<double>(c_.head_dim)) *
                               (kv.keys.fp8 ? static_cast<double>(kv.keys.scale) : 1.0));
  p.sums = s_.sums;
  p.weights = s_.weights;
  p.out = s_.attended;
  const int shared = attend_shared(kv.keys);
  const Kernel<Attention> attend = attend_kernel(kv.keys, rows_);
  allow_shared(attend, shared);
  launch("attend", attend, dim3(static_cast<unsigned>(2 * blocks_)),
         32 * kAttentionWarps * attention_teams(rows_), shared, p);
  allow_shared(merge_chunks_kernel(kv.keys), 0);
  launch("merge chunks", merge_chunks_kernel(kv.keys),
         dim3(static_cast<unsigned>(p.heads * kv.keys.padded_dim / kMergeDims),
              static_cast<unsigned>(rows_)),
         kMergeThreads, 0, p);

  ActLinear out;
  out.pass = pass;
  out.x = s_.attended;
  out.width = static_cast<int>(c_.q_rows());
  act_phase("attention o_proj", out, a.o, residual(h));
}

void Step::mlp(const DeviceMlp& m, const float* norm, const Pass* pass, float* h) {
  NormLinear up = norm_input(pass, h, norm);
  Output output;
  output.kind = OutputKind::kRelu2;
  output.data = s_.mlp;
  output.stride = m.up.matrix.rows;
  add_part(up, m.up, output);
  norm_phase("mlp up", up);
  if (observing()) observer_->input(*m.up.source, buffers_.normed);
  ActLinear down;
  down.pass = pass;
  down.x = s_.mlp;
  down.width = m.up.matrix.rows;
  act_phase("mlp down", down, m.down, residual(h));
}

void Step::layer(const DeviceLayer& layer, int index, const Pass* pass, float* h,
                 const KvCaches& kv, int position_offset, uint64_t* router_words) {
  if (const auto* m = std::get_if<DeviceMamba>(&layer.mixer)) {
    mamba(*m, layer.norm, index);
  } else if (const auto* e = std::get_if<DeviceMoe>(&layer.mixer)) {
    moe(*e, layer.norm, pass, h, router_words);
  } else if (const auto* a = std::get_if<DeviceAttention>(&layer.mixer)) {
    attention(*a, layer.norm, pass, h, kv, position_offset);
  } else {
    mlp(std::get<DeviceMlp>(layer.mixer), layer.norm, pass, h);
  }
}

// Final norm, and lm_head when logits are wanted.
void Step::head(const Pass* pass, const float* h, const float* norm, bool logits, float* logits_to,
                float* normed, bool by_hidden_row) {
  NormLinear p = norm_input(pass, h, norm);
  p.normed = normed;
  p.normed_stride = p.width;
  p.normed_by_hidden_row = by_hidden_row;
  if (logits) {
    Output output;
    output.kind = OutputKind::kLogits;
    output.data = logits_to;
    output.stride = static_cast<int>(c_.vocab_size);
    add_part(p, w_.lm_head, output);
    p.candidates = s_.candidates;
  }
  norm_phase(logits ? "lm_head" : "final norm", p);
}

void Step::extend(cudaStream_t stream, int rows, bool with_head) {
  stream_ = stream;
  rows_ = rows;
  first_ = true;
  embed_tokens(s_.pass, s_.h);
  const auto layers = static_cast<int>(w_.layers.size());
  for (int i = 0; i < layers; ++i) {
    const auto index = static_cast<std::size_t>(i);
    if (observing()) observer_->hidden(i, s_.h);
    layer(w_.layers[index], i, s_.pass, s_.h, s_.kv[index], 0, s_.router_words[index]);
  }
  if (observing()) {
    // By token, for the observer; the draft head's copy is made below.
    head(s_.pass, s_.h, w_.norm_f, false, nullptr, buffers_.normed, false);
    observer_->hidden(layers, buffers_.normed);
    if (with_head) observer_->input(*w_.lm_head.source, buffers_.normed);
  }
  if (with_head || w_.mtp) {
    head(s_.pass, s_.h, w_.norm_f, with_head, s_.logits, w_.mtp ? s_.hidden : nullptr, true);
  }
  if (w_.mtp) mtp_keys_and_values();
}

// mtp_h = eh_proj(norm(embedding of the token), norm(hidden state of the token before)).
void Step::mtp_input(const Pass* pass) {
  const DeviceMtp& mtp = *w_.mtp;
  embed_tokens(pass, s_.embedding);
  NormLinear p = norm_input(pass, s_.embedding, mtp.enorm);
  p.input_count = 2;
  p.inputs[1] = {.x = s_.hidden,
                 .stride = p.width,
                 .by_previous_row = true,
                 .weight = mtp.hnorm,
                 .column = p.width};
  p.normed_stride = 2 * p.width;
  Output output;
  output.data = s_.mtp_h;
  output.stride = p.width;
  add_part(p, mtp.eh_proj, output);
  norm_phase("mtp eh_proj", p);
  if (observing()) observer_->input(*mtp.eh_proj.source, buffers_.normed);
}

// The draft head's cache entries of the tokens before those of the pass, whose successors are known
// now.
void Step::mtp_keys_and_values() {
  mtp_input(s_.pass);
  const DeviceLayer& first = w_.mtp->layers.front();
  const auto& a = std::get<DeviceAttention>(first.mixer);
  NormLinear p = norm_input(s_.pass, s_.mtp_h, first.norm);
  Output keys;
  keys.kind = OutputKind::kKey;
  keys.cache = s_.mtp_kv.keys;
  keys.position_offset = -1;
  Output values = keys;
  values.kind = OutputKind::kValue;
  values.cache = s_.mtp_kv.values;
  add_part(p, a.k, keys);
  add_part(p, a.v, values);
  norm_phase("mtp kv", p);
  if (observing()) {
    observer_->input(*a.k.source, buffers_.normed);
    observer_->input(*a.v.source, buffers_.normed);
  }
}

void Step::draft(cudaStream_t stream, int rows) {
  stream_ = stream;
  rows_ = rows;
  first_ = true;
  mtp_input(s_.draft_pass);
  for (std::size_t i = 0; i < w_.mtp->layers.size(); ++i) {
    layer(w_.mtp->layers[i], -1, s_.draft_pass, s_.mtp_h, s_.mtp_kv, -1,
          s_.router_words[w_.layers.size() + i]);
  }
  float* left = s_.hidden + static_cast<int64_t>(s_.hidden_rows) * c_.hidden_size;
  head(s_.draft_pass, s_.mtp_h, w_.mtp->final_layernorm, true, s_.draft_logits, left, false);
  if (observing()) observer_->input(*w_.lm_head.source, left);
  AdvanceDraft p;
  p.pass = s_.draft_pass;
  p.candidates = s_.candidates;
  p.blocks = std::min(w_.lm_head.matrix.tiles, blocks_);
  p.vocab = static_cast<int>(c_.vocab_size);
  p.hidden_base = s_.hidden_rows;
  p.drafts = s_.drafts;
  launch("advance draft", advance_draft_kernel(), dim3(1), 32 * kMaxRows, 0, p);
}

}  // namespace levin::runtime::cuda
