#include <algorithm>
#include <cmath>
#include <string>

#include "core/error.h"
#include "runtime/cuda/decode.cuh"
#include "runtime/cuda/mamba.h"
#include "runtime/cuda/weights.h"

namespace levin::runtime::cuda {
namespace {

using model::ActivationFormat;
using model::WeightFormat;

// relu^2 grows quickly; this keeps float16 activations of down projections in range up to 10^6.
constexpr float kRelu2Scale = 16.0F;

[[noreturn]] void unsupported(std::string what, std::string where, std::string expected,
                              std::string found) {
  throw Error({.what = std::move(what),
               .where = std::move(where),
               .expected = std::move(expected),
               .found = std::move(found),
               .hint = "use --device cpu"});
}

bool is_fp8(WeightFormat format) {
  return format == WeightFormat::kFp8 || format == WeightFormat::kFp8Channel;
}

Operand make_operand(OperandKind kind, float scale) {
  return {kind, scale, 1.0F / scale};
}

// How a linear's input reaches the tensor cores. `relu2`: it is the square of something.
Operand operand_of(const model::Linear& linear, bool relu2) {
  if (linear.format == WeightFormat::kBf16) return make_operand(OperandKind::kBf16, 1.0F);
  if (is_fp8(linear.format) && linear.activation == ActivationFormat::kFp8Static) {
    return make_operand(OperandKind::kFp8Static, linear.input_scale);
  }
  if (is_fp8(linear.format) && linear.activation == ActivationFormat::kFp8PerToken && !relu2) {
    return make_operand(OperandKind::kFp8Token, 1.0F);
  }
  return make_operand(OperandKind::kF16, relu2 ? kRelu2Scale : 1.0F);
}

// What the sums of products are to be multiplied with, besides row and token scales.
float factor_of(const model::Linear& linear, const Operand& operand) {
  float factor = operand.kind == OperandKind::kFp8Token ? 1.0F : operand.scale;
  if (linear.format == WeightFormat::kNvfp4) factor *= kNvfp4Factor * linear.global_scale;
  if (linear.format == WeightFormat::kFp8) factor *= linear.global_scale;
  return factor;
}

std::string stored_as(const model::Linear& linear) {
  std::string text(model::name_of(linear.format));
  switch (linear.activation) {
    case ActivationFormat::kNone:
      if (linear.format == WeightFormat::kNvfp4 || linear.format == WeightFormat::kInt4)
        text += " W4A16";
      break;
    case ActivationFormat::kNvfp4:
      text += " W4A4";
      break;
    default:
      text += ", inputs " + std::string(model::name_of(linear.activation));
  }
  return text;
}

PlanEntry plan_entry(const model::Linear& linear, const Operand& operand, const char* kernel) {
  PlanEntry entry;
  entry.linear = linear.name;
  entry.stored_as = stored_as(linear);
  const bool bf16 = operand.kind == OperandKind::kBf16;
  const bool fp8 =
      operand.kind == OperandKind::kFp8Static || operand.kind == OperandKind::kFp8Token;
  entry.computed_as = bf16  ? "bf16 x bf16, f32 sums"
                      : fp8 ? "e4m3 x e4m3, f32 sums"
                            : "decoded exactly to f16 x f16, f32 sums";
  entry.kernel = kernel;
  if (linear.activation == ActivationFormat::kNvfp4) {
    entry.why = "no FP4 units before Blackwell: inputs are not quantized (W4A16)";
  } else if (linear.activation != ActivationFormat::kNone && !fp8) {
    entry.why = "inputs are not quantized: this phase has no kernel for " +
                std::string(model::name_of(linear.activation));
  }
  return entry;
}

class Placer {
 public:
  Placer(const model::Model& model, int blocks, Arena& arena, Uploader* uploader)
      : model_(model), config_(model.config), blocks_(blocks), arena_(arena), uploader_(uploader) {}

  DeviceModel place(bool mtp);

 private:
  const float* vector(const std::vector<float>& values);
  DeviceLinear linear(const model::Linear& source, const char* kernel, bool relu2 = false,
                      int segments = 0);
  DeviceExperts experts(const model::MoeBlock& block, bool down);
  DeviceMamba mamba(const model::MambaBlock& block);
  DeviceAttention attention(const model::AttentionBlock& block);
  DeviceMoe moe(const model::MoeBlock& block);
  DeviceLayer layer(const model::Layer& source);
  void gate(const model::Linear& source, DeviceMoe& moe);
  void item_lists(DeviceMoe& moe);
  void upload(const std::vector<uint8_t>& bytes, ItemLists& lists);
  int tiles_of_block(const model::Linear& linear) const;
  int segments_of(const model::Linear& linear) const;
  int expert_segments(const model::Linear& linear, bool down) const;

  const model::Model& model_;
  const model::Config& config_;
  int blocks_;
  Arena& arena_;
  Uploader* uploader_;
  std::vector<PlanEntry> plan_;
};

const float* Placer::vector(const std::vector<float>& values) {
  if (values.empty()) return nullptr;
  float* place = arena_.take<float>(values.size());
  if (uploader_ != nullptr) uploader_->copy(values.data(), place, values.size() * sizeof(float));
  return place;
}

// Into how many segments to cut tiles so that all of `warps` have as much to do, where a block has
// `tiles`: items cost their units and about two more.
int segments_for(int tiles, int units, int warps) {
  constexpr int kMost = 8;
  constexpr int kMostItems = 64;  // their sums take memory
  constexpr int kItemCost = 2;
  int best = 1;
  int least = 0;
  for (int segments = 1; segments <= std::min(kMost, units); ++segments) {
    if (segments > 1 && tiles * segments > kMostItems) break;
    const int items = (tiles * segments + warps - 1) / warps;
    const int cost = items * ((units + segments - 1) / segments + kItemCost);
    if (segments == 1 || cost < least) {
      best = segments;
      least = cost;
    }
  }
  return best;
}
int units_of(const model::Linear& linear) {
  return static_cast<int>((linear.in + kUnitColumns - 1) / kUnitColumns);
}

// Tiles of a linear that a block has, at most.
int Placer::tiles_of_block(const model::Linear& linear) const {
  return (tiles_of(linear) + blocks_ - 1) / blocks_;
}
// Of a linear that has a phase of its own.
int Placer::segments_of(const model::Linear& linear) const {
  return segments_for(tiles_of_block(linear), units_of(linear), kWarps);
}

// `segments`: 0 for the usual number.
DeviceLinear Placer::linear(const model::Linear& source, const char* kernel, bool relu2,
                            int segments) {
  DeviceLinear placed;
  placed.source = &source;
  placed.operand = operand_of(source, relu2);
  placed.factor = factor_of(source, placed.operand);
  placed.matrix = packed_shape(source, segments > 0 ? segments : segments_of(source));
  placed.matrix.bias = vector(source.bias);
  float* row_scale = nullptr;
  if (source.format == WeightFormat::kInt4 || source.format == WeightFormat::kFp8Channel) {
    row_scale = arena_.take<float>(static_cast<std::size_t>(source.out));
  }
  placed.matrix.row_scale = row_scale;
  placed.matrix.data = arena_.take<uint8_t>(static_cast<std::size_t>(placed.matrix.bytes()));
  if (uploader_ != nullptr) uploader_->repack(source, placed.matrix, row_scale);
  plan_.push_back(plan_entry(source, placed.operand, kernel));
  return placed;
}

// Of the linears of experts, which share their phase. Measured for 1 to 8 tokens of the 30B-A3B
// shape: twice as many cost a token nothing, and eight tokens 7 %.
constexpr int kUpSegments = 2;
constexpr int kDownSegments = 1;
// Items of BF16 are the longest: two segments take 1.6 % less for one token, and the same for
// several. (Of the coverage recipe they take 1 to 2 % more.)
constexpr int kDownSegmentsBf16 = 2;
constexpr int kSharedDownSegments = 4;

// A pass of one token reads a few experts, and one of many tokens many: their sums must fit into a
// block's memory.
int Placer::expert_segments(const model::Linear& linear, bool down) const {
  constexpr int kMostItems = 384;  // of a block
  const int64_t experts =
      std::min(kMaxRows * config_.num_experts_per_tok, config_.n_routed_experts);
  const int64_t tiles =
      down ? kDownRows * config_.num_experts_per_tok * ((tiles_of(linear) + blocks_ - 1) / blocks_)
           : experts * tiles_of(linear) / blocks_;
  const int of_down = linear.format == WeightFormat::kBf16 ? kDownSegmentsBf16 : kDownSegments;
  int segments = down ? of_down : kUpSegments;
  while (segments > 1 && tiles * segments > kMostItems) segments /= 2;
  return segments;
}

DeviceExperts Placer::experts(const model::MoeBlock& block, bool down) {
  DeviceExperts placed;
  for (const model::Expert& expert : block.experts) {
    placed.sources.push_back(down ? &expert.down_proj : &expert.up_proj);
  }
  const model::Linear& first = *placed.sources.front();
  placed.operand = operand_of(first, down);
  bool same_scale = true;
  for (const model::Linear* source : placed.sources) {
    if (source->format != first.format || source->group_size != first.group_size ||
        source->activation != first.activation || source->bias.empty() != first.bias.empty()) {
      unsupported("experts of one layer are stored in different formats", source->name,
                  stored_as(first), stored_as(*source));
    }
    same_scale &= source->input_scale == first.input_scale;
  }
  // An up projection's input is made once for all experts.
  if (!down && placed.operand.kind == OperandKind::kFp8Static && !same_scale) {
    placed.operand = make_operand(OperandKind::kF16, 1.0F);
  }

  ExpertMatrices& m = placed.matrices;
  m.first = packed_shape(first, expert_segments(first, down));
  m.row_stride = static_cast<int>(first.out);
  m.stride = (m.first.bytes() + 255) / 256 * 256;
  const std::size_t count = placed.sources.size();
  const auto rows = static_cast<std::size_t>(first.out);
  float* row_scale = nullptr;
  if (first.format == WeightFormat::kInt4 || first.format == WeightFormat::kFp8Channel) {
    row_scale = arena_.take<float>(count * rows);
  }
  m.first.row_scale = row_scale;
  auto* data = arena_.take<uint8_t>(count * static_cast<std::size_t>(m.stride));
  m.first.data = data;

  std::vector<float> factors;
  std::vector<float> inverses;
  std::vector<float> biases;
  for (std::size_t e = 0; e < count; ++e) {
    const model::Linear& source = *placed.sources[e];
    Operand operand = placed.operand;
    if (operand.kind == OperandKind::kFp8Static) operand.scale = source.input_scale;
    factors.push_back(factor_of(source, operand));
    inverses.push_back(1.0F / operand.scale);
    biases.insert(biases.end(), source.bias.begin(), source.bias.end());
    PackedMatrix matrix = m.first;
    matrix.data = data + e * static_cast<std::size_t>(m.stride);
    float* own_scales = row_scale == nullptr ? nullptr : row_scale + e * rows;
    matrix.row_scale = own_scales;
    if (uploader_ != nullptr) uploader_->repack(source, matrix, own_scales);
    plan_.push_back(plan_entry(source, placed.operand, down ? "moe_down" : "moe_up"));
  }
  m.factor = vector(factors);
  m.first.bias = vector(biases);
  if (down) {
    placed.activations.kind = placed.operand.kind;
    placed.activations.inverse = placed.operand.inverse;
    if (placed.operand.kind == OperandKind::kFp8Static) {
      placed.activations.expert_inverses = vector(inverses);
    }
  }
  return placed;
}

DeviceMamba Placer::mamba(const model::MambaBlock& block) {
  DeviceMamba placed;
  placed.in_proj = linear(block.in_proj, "norm_linear");
  placed.out_proj = linear(block.out_proj, "act_linear");
  const auto taps = static_cast<std::size_t>(config_.conv_kernel);
  std::vector<float> weights(static_cast<std::size_t>(config_.conv_dim()) * kMaxTaps, 0.0F);
  for (std::size_t c = 0; c < weights.size() / kMaxTaps; ++c) {
    for (std::size_t k = 0; k < taps; ++k) {
      weights[c * kMaxTaps + kMaxTaps - taps + k] = block.conv_weight[c * taps + k];
    }
  }
  placed.conv_weight = vector(weights);
  placed.conv_bias = vector(block.conv_bias);
  placed.a = vector(block.a);
  placed.d = vector(block.d);
  placed.dt_bias = vector(block.dt_bias);
  placed.norm = vector(block.norm);
  return placed;
}

DeviceAttention Placer::attention(const model::AttentionBlock& block) {
  DeviceAttention placed;
  // Blocks have a tile of k or v besides.
  const int segments =
      segments_for(tiles_of_block(block.q_proj) + 1, units_of(block.q_proj), kWarps);
  placed.q = linear(block.q_proj, "norm_linear", false, segments);
  placed.k = linear(block.k_proj, "norm_linear", false, segments);
  placed.v = linear(block.v_proj, "norm_linear", false, segments);
  placed.o = linear(block.o_proj, "act_linear");
  placed.k_scale = block.k_scale;
  placed.v_scale = block.v_scale;
  return placed;
}

// The router stays as it is: it is small, and its result decides.
void Placer::gate(const model::Linear& source, DeviceMoe& moe) {
  if (source.format != WeightFormat::kF32 && source.format != WeightFormat::kBf16) {
    unsupported("the CUDA runtime has no kernel for this router", source.name, "F32 or BF16",
                std::string(model::name_of(source.format)));
  }
  moe.gate_bf16 = source.format == WeightFormat::kBf16;
  const std::size_t element = moe.gate_bf16 ? 2 : 4;
  auto* place = arena_.take<std::byte>(static_cast<std::size_t>(source.out * source.in) * element);
  if (uploader_ != nullptr) uploader_->table(source, place);
  moe.gate = place;
  PlanEntry entry;
  entry.linear = source.name;
  entry.stored_as = model::name_of(source.format);
  entry.computed_as = "f32";
  entry.kernel = "moe_router";
  plan_.push_back(entry);
}

void Placer::upload(const std::vector<uint8_t>& bytes, ItemLists& lists) {
  auto* place = arena_.take<uint8_t>(bytes.size());
  if (uploader_ != nullptr) uploader_->copy(bytes.data(), place, bytes.size());
  lists.data = place;
}

void Placer::item_lists(DeviceMoe& moe) {
  const auto chosen = static_cast<int>(config_.num_experts_per_tok);
  const PackedMatrix none;
  const bool latent = moe.fc1.exists();
  const PackedMatrix& shared_up = moe.shared_up.matrix;
  const PackedMatrix& shared_down = moe.shared_down.matrix;
  upload(up_items(shared_up, moe.up.matrices.first, chosen, blocks_, moe.up_items), moe.up_items);
  upload(down_items(latent ? none : shared_down, moe.down.matrices.first, chosen, blocks_,
                    moe.down_items),
         moe.down_items);
  if (latent && moe.shared_down.exists()) {
    upload(down_items(shared_down, none, 0, blocks_, moe.shared_down_items), moe.shared_down_items);
  }
}

DeviceMoe Placer::moe(const model::MoeBlock& block) {
  DeviceMoe placed;
  if (config_.num_experts_per_tok > kMaxChosen) {
    unsupported("more experts per token than the CUDA runtime chooses", block.gate.name,
                "at most " + std::to_string(kMaxChosen),
                std::to_string(config_.num_experts_per_tok));
  }
  placed.source = &block;
  gate(block.gate, placed);
  placed.bias = vector(block.e_score_correction_bias);
  placed.up = experts(block, false);
  placed.down = experts(block, true);
  if (block.fc1_latent.exists()) {
    placed.fc1 = linear(block.fc1_latent, "norm_linear");
    placed.fc2 = linear(block.fc2_latent, "act_linear");
  }
  if (block.shared) {
    // The experts' segments: more of them gain nothing where both are shared out together.
    placed.shared_up = linear(block.shared->up_proj, "moe_up", false, kUpSegments);
    placed.shared_down = linear(block.shared->down_proj, "moe_down", true, kSharedDownSegments);
    placed.shared_activations.kind = placed.shared_down.operand.kind;
    placed.shared_activations.inverse = placed.shared_down.operand.inverse;
  }
  item_lists(placed);
  return placed;
}

DeviceLayer Placer::layer(const model::Layer& source) {
  DeviceLayer placed;
  placed.norm = vector(source.norm);
  if (const auto* mamba_block = std::get_if<model::MambaBlock>(&source.mixer)) {
    placed.mixer = mamba(*mamba_block);
  } else if (const auto* moe_block = std::get_if<model::MoeBlock>(&source.mixer)) {
    placed.mixer = moe(*moe_block);
  } else if (const auto* attention_block = std::get_if<model::AttentionBlock>(&source.mixer)) {
    placed.mixer = attention(*attention_block);
  } else {
    const auto& mlp = std::get<model::MlpBlock>(source.mixer);
    placed.mixer =
        DeviceMlp{linear(mlp.up_proj, "norm_linear"), linear(mlp.down_proj, "act_linear", true)};
  }
  return placed;
}

DeviceModel Placer::place(bool with_mtp) {
  DeviceModel placed;
  const model::Linear& embeddings = model_.embeddings;
  placed.embeddings_type = embeddings.format == WeightFormat::kF32   ? TableType::kF32
                           : embeddings.format == WeightFormat::kF16 ? TableType::kF16
                                                                     : TableType::kBf16;
  const std::size_t element = placed.embeddings_type == TableType::kF32 ? 4 : 2;
  auto* table =
      arena_.take<std::byte>(static_cast<std::size_t>(embeddings.out * embeddings.in) * element);
  if (uploader_ != nullptr) uploader_->table(embeddings, table);
  placed.embeddings = table;
  PlanEntry entry;
  entry.linear = embeddings.name;
  entry.stored_as = model::name_of(embeddings.format);
  entry.computed_as = "look-up";
  entry.kernel = "embed";
  plan_.push_back(entry);

  for (const model::Layer& source : model_.layers) placed.layers.push_back(layer(source));
  placed.norm_f = vector(model_.norm_f);
  placed.lm_head = linear(model_.lm_head, "norm_linear", false, 1);
  // A tied head is the same linear as the embeddings, which have their entry.
  if (model_.lm_head.name == embeddings.name) plan_.pop_back();
  if (model_.mtp && with_mtp) {
    DeviceMtp& mtp = placed.mtp.emplace();
    mtp.enorm = vector(model_.mtp->enorm);
    mtp.hnorm = vector(model_.mtp->hnorm);
    mtp.eh_proj = linear(model_.mtp->eh_proj, "norm_linear");
    if (mtp.eh_proj.operand.kind == OperandKind::kFp8Token) {
      // Its row scale would span both halves of the input.
      mtp.eh_proj.operand = make_operand(OperandKind::kF16, 1.0F);
      plan_.back() = plan_entry(model_.mtp->eh_proj, mtp.eh_proj.operand, "norm_linear");
    }
    for (const model::Layer& source : model_.mtp->layers) mtp.layers.push_back(layer(source));
    mtp.final_layernorm = vector(model_.mtp->final_layernorm);
  }
  placed.plan = std::move(plan_);
  return placed;
}

}  // namespace

DeviceModel place_weights(const model::Model& model, bool mtp, int blocks, Arena& arena,
                          Uploader* uploader) {
  return Placer(model, blocks, arena, uploader).place(mtp);
}

}  // namespace levin::runtime::cuda
