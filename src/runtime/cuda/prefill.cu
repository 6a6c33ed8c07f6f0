#include <algorithm>
#include <array>
#include <cmath>

#include "runtime/cuda/prefill.h"

namespace levin::runtime::cuda {
namespace {

double operations_of(const PackedMatrix& m, int rows) {
  return 2.0 * m.rows * m.columns * rows;
}

}  // namespace

Prefill::Prefill(const model::Model& model, const Options& options, const DeviceModel& weights,
                 const State& state, const PrefillSpace& space, int blocks)
    : c_(model.config), options_(options), w_(weights), s_(state), p_(space), blocks_(blocks) {}

void Prefill::mark(const char* phase) {
  if (marks_ == nullptr) return;
  marks_->push_back({phase, Event(Event::Kind::kTiming), 0});
  check(cudaEventRecord(marks_->back().event.get(), stream_));
}

void Prefill::launch(const Gemm& gemm, GemmShape shape, double operations) {
  launch_gemm(stream_, gemm, shape, blocks_);
  if (marks_ != nullptr) marks_->back().operations += operations;
}

ChunkRows Prefill::rows() const {
  const ChunkArrays& a = p_.arrays;
  return {chunk_.rows, a.token, a.slot, a.position, a.previous, a.kept};
}

Prefill::Inputs Prefill::plain(const float* x, int64_t width) const {
  Inputs inputs;
  inputs.kind = MakeOperands::Kind::kPlain;
  inputs.width = static_cast<int>(width);
  inputs.inputs[0].x = x;
  inputs.inputs[0].stride = width;
  inputs.eps = static_cast<float>(c_.norm_eps);
  return inputs;
}

Prefill::Inputs Prefill::norm_of(const float* x, const float* weight) const {
  Inputs inputs = plain(x, c_.hidden_size);
  inputs.kind = MakeOperands::Kind::kNorm;
  inputs.inputs[0].weight = weight;
  return inputs;
}

int Prefill::need(Inputs& inputs, const Operand& operand) const {
  int i = 0;
  for (; i < inputs.operand_count; ++i) {
    const Operand& other = inputs.operands[i].operand;
    if (other.kind == operand.kind && other.scale == operand.scale) return i;
  }
  inputs.operands[i] = {operand, p_.operands[i], p_.row_scales[i]};
  return inputs.operand_count++;
}

// Products of one input, together where they have one format and one operand.
void Prefill::multiply(std::initializer_list<Product> products, int rows) {
  std::array<bool, kMaxParts> done{};
  const auto* all = products.begin();
  for (std::size_t i = 0; i < products.size(); ++i) {
    if (done[i]) continue;
    Gemm gemm;
    gemm.rows = rows;
    gemm.part_count = 0;
    double operations = 0;
    for (std::size_t j = i; j < products.size(); ++j) {
      const Product& product = all[j];
      const PackedMatrix& matrix = product.linear->matrix;
      if (done[j] || product.operand != all[i].operand ||
          matrix.format != all[i].linear->matrix.format) {
        continue;
      }
      done[j] = true;
      operations += operations_of(matrix, rows);
      GemmPart& part = gemm.parts[gemm.part_count++];
      part.matrix = matrix;
      part.factor = product.linear->factor;
      part.input = p_.operands[product.operand];
      if (product.linear->operand.kind == OperandKind::kFp8Token) {
        part.row_scales = p_.row_scales[product.operand];
      }
      part.output = product.output;
      part.data = product.data;
      part.stride = static_cast<int>(product.stride);
    }
    launch(gemm, gemm_shape(gemm, rows, blocks_), operations);
  }
}

// relu^2 of a projection as the operand of the next.
void Prefill::activate(const DeviceLinear& up, int operand, const DeviceLinear& down) {
  Gemm gemm;
  gemm.rows = chunk_.rows;
  GemmPart& part = gemm.parts[0];
  part.matrix = up.matrix;
  part.factor = up.factor;
  part.input = p_.operands[operand];
  if (up.operand.kind == OperandKind::kFp8Token) part.row_scales = p_.row_scales[operand];
  part.output = GemmOutput::kRelu2;
  part.panels = p_.activations;
  part.kind = down.operand.kind;
  part.inverse = down.operand.inverse;
  launch(gemm, gemm_shape(gemm, chunk_.rows, blocks_), operations_of(part.matrix, chunk_.rows));
}

void Prefill::add_activated(const DeviceLinear& down) {
  Gemm gemm;
  gemm.rows = chunk_.rows;
  GemmPart& part = gemm.parts[0];
  part.matrix = down.matrix;
  part.factor = down.factor;
  part.input = p_.activations;
  part.output = GemmOutput::kAdd;
  part.data = p_.h;
  part.stride = static_cast<int>(c_.hidden_size);
  launch(gemm, gemm_shape(gemm, chunk_.rows, blocks_), operations_of(part.matrix, chunk_.rows));
}

void Prefill::mamba(const DeviceMamba& m, const float* norm, int index) {
  mark("norm");
  Inputs in = norm_of(p_.h, norm);
  const int operand = need(in, m.in_proj.operand);
  launch_make_operands(stream_, in, chunk_.rows);
  mark("mamba in_proj");
  multiply({{&m.in_proj, operand, GemmOutput::kStore, p_.wide, c_.in_proj_rows()}}, chunk_.rows);

  PrefillMamba p;
  p.mixer = mamba_scan_of(c_, options_, m, s_.mamba[static_cast<std::size_t>(index)], index);
  p.mixer.projected = p_.wide;
  p.mixer.y = p_.mixed;
  p.segments = p_.arrays.segments;
  p.segment_count = chunk_.segments;
  p.longest = chunk_.longest;
  p.convolved = p_.convolved;
  mark("convolution");
  launch_convolution(stream_, p);
  mark("recurrence");
  launch_prefill_scan(stream_, p);

  mark("gated norm");
  Inputs out = plain(p_.mixed, c_.d_inner());
  out.kind = MakeOperands::Kind::kGroupNorm;
  out.groups = p.mixer.groups;
  out.inputs[0].weight = m.norm;
  const int gated = need(out, m.out_proj.operand);
  launch_make_operands(stream_, out, chunk_.rows);
  mark("mamba out_proj");
  multiply({{&m.out_proj, gated, GemmOutput::kAdd, p_.h, c_.hidden_size}}, chunk_.rows);
}

void Prefill::commit_logs(cudaStream_t stream, const Pass* pass, int segments) {
  for (std::size_t i = 0; i < w_.layers.size(); ++i) {
    const auto* m = std::get_if<DeviceMamba>(&w_.layers[i].mixer);
    if (m == nullptr) continue;
    MambaScan scan = mamba_scan_of(c_, options_, *m, s_.mamba[i], static_cast<int>(i));
    scan.pass = pass;
    scan.projected = s_.projected;
    scan.y = s_.y;
    scan.squares = s_.squares;
    const dim3 grid(static_cast<unsigned>(scan.heads * scan.pieces()),
                    static_cast<unsigned>(segments));
    const auto shared = static_cast<std::size_t>(mamba_scan_shared(scan.states));
    mamba_scan_kernel(kMaxRows, scan.states,
                      scan.half_state)<<<grid, kScanThreads, shared, stream>>>(scan);
    check(cudaGetLastError());
  }
}

void Prefill::attention(const DeviceAttention& a, const float* norm, int index) {
  mark("norm");
  Inputs in = norm_of(p_.h, norm);
  const int q = need(in, a.q.operand);
  const int k = need(in, a.k.operand);
  const int v = need(in, a.v.operand);
  launch_make_operands(stream_, in, chunk_.rows);
  mark("attention qkv");
  multiply({{&a.q, q, GemmOutput::kStore, p_.wide, c_.q_rows()},
            {&a.k, k, GemmOutput::kStore, p_.keys, c_.kv_rows()},
            {&a.v, v, GemmOutput::kStore, p_.values, c_.kv_rows()}},
           chunk_.rows);
  mark("attention");
  const KvCaches& kv = s_.kv[static_cast<std::size_t>(index)];
  launch_store_kv(stream_, {rows(), p_.keys, p_.values, kv.keys, kv.values, 0});
  PrefillAttention p;
  p.segments = p_.arrays.segments;
  p.segment_count = chunk_.segments;
  p.queries = p_.wide;
  p.keys = kv.keys;
  p.values = kv.values;
  p.heads = static_cast<int>(c_.num_attention_heads);
  constexpr double kLog2E = 1.4426950408889634;
  p.scale = static_cast<float>(kLog2E / std::sqrt(static_cast<double>(c_.head_dim)) *
                               (kv.keys.fp8 ? static_cast<double>(kv.keys.scale) : 1.0));
  p.out = p_.mixed;
  launch_prefill_attention(stream_, p, chunk_.attention_blocks);
  mark("attention o_proj");
  Inputs out = plain(p_.mixed, c_.q_rows());
  const int o = need(out, a.o.operand);
  launch_make_operands(stream_, out, chunk_.rows);
  multiply({{&a.o, o, GemmOutput::kAdd, p_.h, c_.hidden_size}}, chunk_.rows);
}

// Choices of experts from the normalized rows, and the experts' rows in the list.
void Prefill::route(const DeviceMoe& m) {
  RouterLogits logits;
  logits.x = p_.normed;
  logits.rows = chunk_.rows;
  logits.width = static_cast<int>(c_.hidden_size);
  logits.gate = {m.gate, m.gate_bf16};
  logits.experts = static_cast<int>(c_.n_routed_experts);
  logits.words = p_.router_words;
  logits.epoch = s_.epoch;
  launch_router_logits(stream_, logits);
  Router router;
  router.words = p_.router_words;
  router.epoch = s_.epoch;
  router.bias = m.bias;
  router.experts = logits.experts;
  router.chosen = static_cast<int>(c_.num_experts_per_tok);
  router.groups = static_cast<int>(c_.n_group);
  router.chosen_groups = static_cast<int>(c_.topk_group);
  router.scale = static_cast<float>(c_.routed_scaling_factor);
  router.normalize = c_.norm_topk_prob;
  launch_choose(stream_, router, chunk_.rows, p_.pairs);
}

// The routed experts' weighted sum over operand `operand`.
void Prefill::experts(const DeviceMoe& m, int operand, float* out, bool add) {
  const auto chosen = static_cast<int>(c_.num_experts_per_tok);
  const auto count = static_cast<int>(c_.n_routed_experts);
  const int each = std::max(1, chunk_.rows * chosen / count);
  const auto gemm_of = [&](const ExpertMatrices& matrices) {
    Gemm gemm;
    gemm.parts[0].matrix = matrices.first;
    gemm.experts = count;
    gemm.expert_rows = p_.pairs.rows();
    gemm.expert_stride = matrices.stride;
    gemm.expert_factors = matrices.factor;
    gemm.row_stride = matrices.row_stride;
    return gemm;
  };
  Gemm up = gemm_of(m.up.matrices);
  const GemmShape up_shape = gemm_shape(up, each, blocks_);
  mark("sorting tokens");
  launch_place_experts(stream_, p_.pairs, count, up_shape.tokens);
  GatherRows gather;
  gather.pairs = p_.pairs;
  gather.chosen = chosen;
  gather.units = m.up.matrices.first.units;
  gather.from = p_.operands[operand];
  gather.to = p_.sorted_inputs;
  if (m.up.operand.kind == OperandKind::kFp8Token) {
    gather.row_scales = p_.row_scales[operand];
    gather.sorted_scales = p_.sorted_scales;
  }
  launch_gather(stream_, gather, chunk_.rows);

  mark("experts up");
  GemmPart& to = up.parts[0];
  to.input = p_.sorted_inputs;
  to.row_scales = gather.sorted_scales;
  to.output = GemmOutput::kRelu2;
  to.panels = p_.sorted_activations;
  to.kind = m.down.activations.kind;
  to.inverse = m.down.activations.inverse;
  up.expert_inverses = m.down.activations.expert_inverses;
  launch(up, up_shape, operations_of(m.up.matrices.first, chunk_.rows * chosen));

  mark("experts down");
  Gemm down = gemm_of(m.down.matrices);
  const int width = down.parts[0].matrix.rows;
  down.parts[0].input = p_.sorted_activations;
  down.parts[0].output = GemmOutput::kStore;
  down.parts[0].data = p_.expert_outputs;
  down.parts[0].stride = width;
  launch(down, gemm_shape(down, each, blocks_, up_shape.tokens),
         operations_of(m.down.matrices.first, chunk_.rows * chosen));
  mark("weighted sum");
  launch_combine(stream_, {p_.pairs, chosen, p_.expert_outputs, width, out, add}, chunk_.rows);
}

void Prefill::moe(const DeviceMoe& m, const float* norm) {
  mark("norm");
  const bool latent = m.fc1.exists();
  const bool shared = m.shared_up.exists();
  Inputs in = norm_of(p_.h, norm);
  in.out = p_.normed;
  const int routed = need(in, latent ? m.fc1.operand : m.up.operand);
  const int of_shared = shared ? need(in, m.shared_up.operand) : 0;
  launch_make_operands(stream_, in, chunk_.rows);
  mark("router");
  route(m);
  if (shared) {
    mark("shared expert up");
    activate(m.shared_up, of_shared, m.shared_down);
    mark("shared expert down");
    add_activated(m.shared_down);
  }
  if (!latent) return experts(m, routed, p_.h, true);
  mark("latent");
  multiply({{&m.fc1, routed, GemmOutput::kStore, p_.wide, c_.moe_latent_size}}, chunk_.rows);
  Inputs narrow = plain(p_.wide, c_.moe_latent_size);
  const int operand = need(narrow, m.up.operand);
  launch_make_operands(stream_, narrow, chunk_.rows);
  experts(m, operand, p_.mixed, false);
  mark("latent");
  Inputs sum = plain(p_.mixed, c_.moe_latent_size);
  const int of_sum = need(sum, m.fc2.operand);
  launch_make_operands(stream_, sum, chunk_.rows);
  multiply({{&m.fc2, of_sum, GemmOutput::kAdd, p_.h, c_.hidden_size}}, chunk_.rows);
}

void Prefill::mlp(const DeviceMlp& m, const float* norm) {
  mark("dense block");
  Inputs in = norm_of(p_.h, norm);
  const int operand = need(in, m.up.operand);
  launch_make_operands(stream_, in, chunk_.rows);
  activate(m.up, operand, m.down);
  add_activated(m.down);
}

void Prefill::layer(const DeviceLayer& layer, int index) {
  if (const auto* m = std::get_if<DeviceMamba>(&layer.mixer)) {
    mamba(*m, layer.norm, index);
  } else if (const auto* e = std::get_if<DeviceMoe>(&layer.mixer)) {
    moe(*e, layer.norm);
  } else if (const auto* a = std::get_if<DeviceAttention>(&layer.mixer)) {
    attention(*a, layer.norm, index);
  } else {
    mlp(std::get<DeviceMlp>(layer.mixer), layer.norm);
  }
}

// The draft head's cache entries of the tokens before those of the chunk, as
// Step::mtp_keys_and_values; then the hidden states that later calls need are kept.
void Prefill::mtp_keys_and_values() {
  mark("mtp");
  const DeviceMtp& mtp = *w_.mtp;
  launch_embed_rows(stream_, {rows(), w_.embeddings, w_.embeddings_type,
                              static_cast<int>(c_.hidden_size), p_.wide});
  Inputs in = norm_of(p_.wide, mtp.enorm);
  in.input_count = 2;
  in.inputs[1].x = p_.normed;
  in.inputs[1].stride = c_.hidden_size;
  in.inputs[1].row = p_.arrays.previous;
  in.inputs[1].kept_x = s_.hidden;
  in.inputs[1].weight = mtp.hnorm;
  const int both = need(in, mtp.eh_proj.operand);
  launch_make_operands(stream_, in, chunk_.rows);
  launch_keep_rows(stream_, rows(), p_.normed, s_.hidden, static_cast<int>(c_.hidden_size));
  // The residual stream of the model is not needed any more.
  multiply({{&mtp.eh_proj, both, GemmOutput::kStore, p_.h, c_.hidden_size}}, chunk_.rows);
  const DeviceLayer& first = mtp.layers.front();
  const auto& a = std::get<DeviceAttention>(first.mixer);
  Inputs kv = norm_of(p_.h, first.norm);
  const int k = need(kv, a.k.operand);
  const int v = need(kv, a.v.operand);
  launch_make_operands(stream_, kv, chunk_.rows);
  multiply({{&a.k, k, GemmOutput::kStore, p_.keys, c_.kv_rows()},
            {&a.v, v, GemmOutput::kStore, p_.values, c_.kv_rows()}},
           chunk_.rows);
  launch_store_kv(stream_, {rows(), p_.keys, p_.values, s_.mtp_kv.keys, s_.mtp_kv.values, -1});
}

void Prefill::logits() {
  mark("lm_head");
  Inputs in = plain(p_.normed, c_.hidden_size);
  in.inputs[0].row = p_.arrays.wanted;
  const int operand = need(in, w_.lm_head.operand);
  launch_make_operands(stream_, in, chunk_.wanted);
  float* to = s_.logits + static_cast<int64_t>(chunk_.first_logits_row) * c_.vocab_size;
  multiply({{&w_.lm_head, operand, GemmOutput::kStore, to, c_.vocab_size}}, chunk_.wanted);
}

void Prefill::run(cudaStream_t stream, const Chunk& chunk) {
  stream_ = stream;
  chunk_ = chunk;
  mark("embed");
  launch_embed_rows(
      stream_, {rows(), w_.embeddings, w_.embeddings_type, static_cast<int>(c_.hidden_size), p_.h});
  for (std::size_t i = 0; i < w_.layers.size(); ++i) {
    layer(w_.layers[i], static_cast<int>(i));
  }
  if (chunk_.wanted > 0 || w_.mtp) {
    mark("norm");
    Inputs final_norm = norm_of(p_.h, w_.norm_f);
    final_norm.out = p_.normed;
    launch_make_operands(stream_, final_norm, chunk_.rows);
  }
  if (chunk_.wanted > 0) logits();
  if (w_.mtp) mtp_keys_and_values();
  mark("end");
}

}  // namespace levin::runtime::cuda
