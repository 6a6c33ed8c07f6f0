#include "model/inventory.h"

#include <fmt/format.h>

#include <utility>

namespace levin::model {
namespace {

using Fill = checkpoint::TensorSpec::Fill;

// Collects the tensors of a model in order.
class Planner {
 public:
  explicit Planner(const Config& config) : config_(config) {}
  std::vector<TensorPlan> plan();

 private:
  TensorPlan& add(std::string name, Shape shape, TensorKind kind, Role role);
  void vector(std::string name, Shape shape, Role role, Fill fill);
  void linear(const std::string& module, int64_t out, int64_t in, Role role, bool bias,
              bool bias_required = true);
  void layer(BlockKind kind, const std::string& prefix);
  void mamba(const std::string& mixer);
  void attention(const std::string& mixer);
  void moe(const std::string& mixer);
  void mtp();

  const Config& config_;
  std::vector<TensorPlan> tensors_;
  bool in_mtp_ = false;
  int layer_ = -1;
  int64_t expert_ = -1;
  std::size_t mlp_layers_ = 0;
};

TensorPlan& Planner::add(std::string name, Shape shape, TensorKind kind, Role role) {
  TensorPlan tensor;
  tensor.name = std::move(name);
  tensor.shape = std::move(shape);
  tensor.kind = kind;
  tensor.role = role;
  tensor.mtp = in_mtp_;
  tensor.layer = layer_;
  tensor.expert = expert_;
  tensor.fill = Fill::kWeight;
  tensors_.push_back(std::move(tensor));
  return tensors_.back();
}

void Planner::vector(std::string name, Shape shape, Role role, Fill fill) {
  add(std::move(name), std::move(shape), TensorKind::kVector, role).fill = fill;
}

void Planner::linear(const std::string& module, int64_t out, int64_t in, Role role, bool bias,
                     bool bias_required) {
  add(module + ".weight", {out, in}, TensorKind::kLinear, role);
  if (!bias) return;
  vector(module + ".bias", {out}, role, Fill::kZero);
  tensors_.back().required = bias_required;
}

void Planner::mamba(const std::string& mixer) {
  const Config& c = config_;
  linear(mixer + ".in_proj", c.in_proj_rows(), c.hidden_size, Role::kMamba, c.mamba_proj_bias);
  vector(mixer + ".conv1d.weight", {c.conv_dim(), 1, c.conv_kernel}, Role::kMamba, Fill::kWeight);
  if (c.use_conv_bias) vector(mixer + ".conv1d.bias", {c.conv_dim()}, Role::kMamba, Fill::kZero);
  vector(mixer + ".A_log", {c.mamba_num_heads}, Role::kMamba, Fill::kALog);
  vector(mixer + ".D", {c.mamba_num_heads}, Role::kMamba, Fill::kOne);
  vector(mixer + ".dt_bias", {c.mamba_num_heads}, Role::kMamba, Fill::kDtBias);
  vector(mixer + ".norm.weight", {c.d_inner()}, Role::kMamba, Fill::kNorm);
  linear(mixer + ".out_proj", c.hidden_size, c.d_inner(), Role::kMamba, c.mamba_proj_bias);
}

void Planner::attention(const std::string& mixer) {
  const Config& c = config_;
  const bool bias = c.attention_bias;
  linear(mixer + ".q_proj", c.q_rows(), c.hidden_size, Role::kAttention, bias);
  linear(mixer + ".k_proj", c.kv_rows(), c.hidden_size, Role::kAttention, bias);
  linear(mixer + ".v_proj", c.kv_rows(), c.hidden_size, Role::kAttention, bias);
  linear(mixer + ".o_proj", c.hidden_size, c.q_rows(), Role::kAttention, bias);
}

void Planner::moe(const std::string& mixer) {
  const Config& c = config_;
  add(mixer + ".gate.weight", {c.n_routed_experts, c.hidden_size}, TensorKind::kMatrix,
      Role::kRouter);
  vector(mixer + ".gate.e_score_correction_bias", {c.n_routed_experts}, Role::kRouter, Fill::kZero);
  tensors_.back().dtype = DType::kF32;
  // With mlp_bias transformers' merged experts still have none, so theirs may be absent.
  for (expert_ = 0; expert_ < c.n_routed_experts; ++expert_) {
    const std::string expert = fmt::format("{}.experts.{}", mixer, expert_);
    linear(expert + ".up_proj", c.moe_intermediate_size, c.expert_width(), Role::kRoutedExperts,
           c.mlp_bias, false);
    linear(expert + ".down_proj", c.expert_width(), c.moe_intermediate_size, Role::kRoutedExperts,
           c.mlp_bias, false);
  }
  expert_ = -1;
  if (c.n_shared_experts > 0) {
    const std::string shared = mixer + ".shared_experts";
    linear(shared + ".up_proj", c.shared_intermediate(), c.hidden_size, Role::kSharedExperts,
           c.mlp_bias);
    linear(shared + ".down_proj", c.hidden_size, c.shared_intermediate(), Role::kSharedExperts,
           c.mlp_bias);
  }
  if (c.moe_latent_size > 0) {
    linear(mixer + ".fc1_latent_proj", c.moe_latent_size, c.hidden_size, Role::kLatent, c.mlp_bias,
           false);
    linear(mixer + ".fc2_latent_proj", c.hidden_size, c.moe_latent_size, Role::kLatent, c.mlp_bias,
           false);
  }
}

void Planner::layer(BlockKind kind, const std::string& prefix) {
  const Config& c = config_;
  const std::string mixer = prefix + ".mixer";
  vector(prefix + ".norm.weight", {c.hidden_size}, Role::kNorm, Fill::kNorm);
  switch (kind) {
    case BlockKind::kMamba:
      return mamba(mixer);
    case BlockKind::kAttention:
      return attention(mixer);
    case BlockKind::kMoe:
      return moe(mixer);
    case BlockKind::kMlp: {
      const int64_t width = c.intermediate_size.at(mlp_layers_++);
      linear(mixer + ".up_proj", width, c.hidden_size, Role::kMlp, c.mlp_bias);
      linear(mixer + ".down_proj", c.hidden_size, width, Role::kMlp, c.mlp_bias);
    }
  }
}

// enorm, hnorm and eh_proj sit on the first inner layer, final_layernorm on the last.
void Planner::mtp() {
  const Config& c = config_;
  in_mtp_ = true;
  for (std::size_t i = 0; i < c.mtp_layers.size(); ++i) {
    layer_ = static_cast<int>(i);
    const std::string prefix = fmt::format("mtp.layers.{}", i);
    if (i == 0) {
      vector(prefix + ".enorm.weight", {c.hidden_size}, Role::kNorm, Fill::kNorm);
      vector(prefix + ".hnorm.weight", {c.hidden_size}, Role::kNorm, Fill::kNorm);
      linear(prefix + ".eh_proj", c.hidden_size, 2 * c.hidden_size, Role::kMtpInput, false);
    }
    layer(c.mtp_layers[i], prefix);
    if (i + 1 == c.mtp_layers.size()) {
      vector(prefix + ".final_layernorm.weight", {c.hidden_size}, Role::kNorm, Fill::kNorm);
    }
  }
  layer_ = -1;
}

std::vector<TensorPlan> Planner::plan() {
  const Config& c = config_;
  add("backbone.embeddings.weight", {c.vocab_size, c.hidden_size}, TensorKind::kMatrix,
      Role::kEmbeddings);
  for (std::size_t i = 0; i < c.layers.size(); ++i) {
    layer_ = static_cast<int>(i);
    layer(c.layers[i], fmt::format("backbone.layers.{}", i));
  }
  layer_ = -1;
  vector("backbone.norm_f.weight", {c.hidden_size}, Role::kNorm, Fill::kNorm);
  if (!c.tie_word_embeddings) {
    linear("lm_head", c.vocab_size, c.hidden_size, Role::kLmHead, false);
  }
  if (!c.mtp_layers.empty()) mtp();
  return std::move(tensors_);
}

}  // namespace

std::string_view name_of(Role role) {
  switch (role) {
    case Role::kEmbeddings:
      return "embeddings";
    case Role::kMamba:
      return "mamba";
    case Role::kAttention:
      return "attention";
    case Role::kRouter:
      return "router";
    case Role::kRoutedExperts:
      return "routed experts";
    case Role::kSharedExperts:
      return "shared experts";
    case Role::kLatent:
      return "latent projections";
    case Role::kMlp:
      return "mlp";
    case Role::kMtpInput:
      return "eh_proj";
    case Role::kNorm:
      return "norms";
    case Role::kLmHead:
      return "lm_head";
  }
  return "?";
}

std::string_view TensorPlan::module() const {
  return std::string_view(name).substr(0, name.rfind('.'));
}

std::vector<TensorPlan> plan_tensors(const Config& config) {
  return Planner(config).plan();
}

}  // namespace levin::model
