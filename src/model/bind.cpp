#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "core/error.h"
#include "core/plural.h"
#include "core/thread_team.h"
#include "model/audit.h"
#include "model/inventory.h"
#include "model/model.h"
#include "model/values.h"

namespace levin::model {
namespace {

using checkpoint::Checkpoint;
using checkpoint::ModuleQuant;
using checkpoint::QuantAlgo;

// Turns names into views and numbers. Everything it asks for has passed the audit, so a tensor that
// is required is there with the right shape and type.
class Binder {
 public:
  Binder(const Config& config, const Checkpoint& checkpoint)
      : config_(config), checkpoint_(checkpoint) {
    for (TensorPlan& tensor : plan_tensors(config)) {
      std::string name = tensor.name;
      plans_.emplace(std::move(name), std::move(tensor));
    }
  }

  std::vector<float> vector(const std::string& name) const;
  Linear linear(const std::string& module) const;
  Layer layer(BlockKind kind, const std::string& prefix) const;
  Mtp mtp() const;
  Linear tied_head(const Linear& embeddings) const;

 private:
  float scalar(const std::string& name) const;
  std::vector<float> optional_vector(const std::string& name) const;
  void bind_nvfp4(Linear& linear, const ModuleQuant& quant) const;
  void bind_int4(Linear& linear) const;
  MambaBlock mamba(const std::string& mixer) const;
  AttentionBlock attention(const std::string& mixer) const;
  MoeBlock moe(const std::string& mixer) const;
  Expert expert(const std::string& prefix) const {
    return {.up_proj = linear(prefix + ".up_proj"), .down_proj = linear(prefix + ".down_proj")};
  }

  const Config& config_;
  const Checkpoint& checkpoint_;
  std::unordered_map<std::string, TensorPlan> plans_;
};

std::vector<float> Binder::vector(const std::string& name) const {
  const TensorView view = checkpoint_.view(name);
  check_finite(view, name);
  return to_float(view, name);
}

std::vector<float> Binder::optional_vector(const std::string& name) const {
  return checkpoint_.find(name) != nullptr ? vector(name) : std::vector<float>{};
}

// A scale, stored as [] or [1].
float Binder::scalar(const std::string& name) const {
  const std::vector<float> values = to_float(checkpoint_.view(name), name);
  check_scales(values, name);
  return values.front();
}

void Binder::bind_nvfp4(Linear& linear, const ModuleQuant& quant) const {
  const bool reciprocal = dialect_of(checkpoint_.quantization()) == Dialect::kCompressedTensors;
  const std::string& name = linear.name;
  linear.weight = checkpoint_.view(name + (reciprocal ? ".weight_packed" : ".weight"));
  linear.scales = checkpoint_.view(name + ".weight_scale");
  check_block_scales(linear.scales, name + ".weight_scale");
  const auto multiplier = [&](const char* direct, const char* inverse) {
    if (!reciprocal) return scalar(name + direct);
    const float value = 1.0F / scalar(name + inverse);
    check_scales(std::span(&value, 1), name + inverse);
    return value;
  };
  linear.global_scale = multiplier(".weight_scale_2", ".weight_global_scale");
  if (quant.algo == QuantAlgo::kNvfp4) {
    linear.input_scale = multiplier(".input_scale", ".input_global_scale");
  }
}

void Binder::bind_int4(Linear& linear) const {
  const std::string& name = linear.name;
  linear.weight = checkpoint_.view(name + ".weight_packed");
  linear.scales = checkpoint_.view(name + ".weight_scale");
  check_scales(to_float(linear.scales, name), name + ".weight_scale");
  int64_t shape[2];
  const TensorView stored = checkpoint_.view(name + ".weight_shape");
  std::memcpy(shape, stored.bytes.data(), sizeof(shape));
  if (shape[0] == linear.out && shape[1] == linear.in) return;
  throw Error({.what = "weight_shape disagrees with the model",
               .where = name + ".weight_shape",
               .expected = to_string(Shape{linear.out, linear.in}),
               .found = to_string(Shape{shape[0], shape[1]}),
               .hint = {}});
}

Linear Binder::linear(const std::string& module) const {
  const TensorPlan& plan = plans_.at(module + ".weight");
  const ModuleQuant quant = quant_of(plan, checkpoint_.quantization());
  Linear linear;
  linear.name = module;
  linear.out = plan.shape[0];
  linear.in = plan.shape[1];
  linear.format = weight_format(quant);
  linear.activation = activation_format(quant);
  linear.group_size = quant.group_size;
  linear.bias = optional_vector(module + ".bias");
  switch (quant.algo) {
    case QuantAlgo::kNvfp4:
    case QuantAlgo::kW4A16Nvfp4:
      bind_nvfp4(linear, quant);
      return linear;
    case QuantAlgo::kInt4Packed:
      bind_int4(linear);
      return linear;
    default:
      break;
  }
  linear.weight = checkpoint_.view(plan.name);
  if (quant.algo == QuantAlgo::kFp8) {
    linear.global_scale = scalar(module + ".weight_scale");
    linear.input_scale = scalar(module + ".input_scale");
  } else if (quant.algo == QuantAlgo::kFp8PerChannelPerToken) {
    linear.scales = checkpoint_.view(module + ".weight_scale");
    check_scales(to_float(linear.scales, module), module + ".weight_scale");
  } else if (linear.weight.dtype == DType::kF32) {
    linear.format = WeightFormat::kF32;
  } else if (linear.weight.dtype == DType::kF16) {
    linear.format = WeightFormat::kF16;
  }
  return linear;
}

MambaBlock Binder::mamba(const std::string& mixer) const {
  MambaBlock block;
  block.in_proj = linear(mixer + ".in_proj");
  block.conv_weight = vector(mixer + ".conv1d.weight");
  block.conv_bias = config_.use_conv_bias
                        ? vector(mixer + ".conv1d.bias")
                        : std::vector<float>(static_cast<std::size_t>(config_.conv_dim()), 0.0F);
  block.a = vector(mixer + ".A_log");
  for (float& value : block.a) value = -std::exp(value);
  block.d = vector(mixer + ".D");
  block.dt_bias = vector(mixer + ".dt_bias");
  block.norm = vector(mixer + ".norm.weight");
  block.out_proj = linear(mixer + ".out_proj");
  const auto overflow = std::find_if_not(block.a.begin(), block.a.end(),
                                         [](float value) { return std::isfinite(value); });
  if (overflow != block.a.end()) {
    throw Error({.what = "A_log is too large",
                 .where = mixer + ".A_log",
                 .expected = "values whose exponential is finite",
                 .found = fmt::format("element {}", overflow - block.a.begin()),
                 .hint = "the checkpoint is damaged"});
  }
  return block;
}

AttentionBlock Binder::attention(const std::string& mixer) const {
  AttentionBlock block = {.q_proj = linear(mixer + ".q_proj"),
                          .k_proj = linear(mixer + ".k_proj"),
                          .v_proj = linear(mixer + ".v_proj"),
                          .o_proj = linear(mixer + ".o_proj")};
  const std::string k_scale = mixer + ".k_proj.k_scale";
  const std::string v_scale = mixer + ".v_proj.v_scale";
  if (checkpoint_.find(k_scale) != nullptr) block.k_scale = scalar(k_scale);
  if (checkpoint_.find(v_scale) != nullptr) block.v_scale = scalar(v_scale);
  return block;
}

MoeBlock Binder::moe(const std::string& mixer) const {
  MoeBlock block;
  block.gate = linear(mixer + ".gate");
  check_finite(block.gate.weight, mixer + ".gate.weight");
  block.e_score_correction_bias = vector(mixer + ".gate.e_score_correction_bias");
  block.experts.reserve(static_cast<std::size_t>(config_.n_routed_experts));
  for (int64_t i = 0; i < config_.n_routed_experts; ++i) {
    block.experts.push_back(expert(fmt::format("{}.experts.{}", mixer, i)));
  }
  if (config_.n_shared_experts > 0) block.shared = expert(mixer + ".shared_experts");
  if (config_.moe_latent_size > 0) {
    block.fc1_latent = linear(mixer + ".fc1_latent_proj");
    block.fc2_latent = linear(mixer + ".fc2_latent_proj");
  }
  return block;
}

Layer Binder::layer(BlockKind kind, const std::string& prefix) const {
  const std::string mixer = prefix + ".mixer";
  Layer layer = {.kind = kind, .norm = vector(prefix + ".norm.weight"), .mixer = {}};
  switch (kind) {
    case BlockKind::kMamba:
      layer.mixer = mamba(mixer);
      break;
    case BlockKind::kAttention:
      layer.mixer = attention(mixer);
      break;
    case BlockKind::kMoe:
      layer.mixer = moe(mixer);
      break;
    case BlockKind::kMlp:
      layer.mixer = MlpBlock{.up_proj = linear(mixer + ".up_proj"),
                             .down_proj = linear(mixer + ".down_proj")};
      break;
  }
  return layer;
}

Mtp Binder::mtp() const {
  Mtp head;
  const std::string first = "mtp.layers.0";
  head.enorm = vector(first + ".enorm.weight");
  head.hnorm = vector(first + ".hnorm.weight");
  head.eh_proj = linear(first + ".eh_proj");
  for (std::size_t i = 0; i < config_.mtp_layers.size(); ++i) {
    head.layers.push_back(layer(config_.mtp_layers[i], fmt::format("mtp.layers.{}", i)));
  }
  head.final_layernorm =
      vector(fmt::format("mtp.layers.{}.final_layernorm.weight", config_.mtp_layers.size() - 1));
  return head;
}

// A tied checkpoint may store the head a second time, but not a different one.
Linear Binder::tied_head(const Linear& embeddings) const {
  if (checkpoint_.find("lm_head.weight") == nullptr) return embeddings;
  const TensorView head = checkpoint_.view("lm_head.weight");
  if (std::equal(head.bytes.begin(), head.bytes.end(), embeddings.weight.bytes.begin(),
                 embeddings.weight.bytes.end())) {
    return embeddings;
  }
  throw Error({.what = "lm_head differs from the embeddings it is tied to",
               .where = "lm_head.weight",
               .expected = "no such tensor, or the bytes of backbone.embeddings.weight",
               .found = {},
               .hint = "set tie_word_embeddings to false in config.json if the head is its own"});
}

void refuse_contradictions(const Checkpoint& checkpoint) {
  const std::vector<std::string>& found = checkpoint.quantization().contradictions;
  if (found.empty()) return;
  throw Error({.what = "quantization metadata contradicts itself",
               .where = checkpoint.folder().string(),
               .expected = {},
               .found = found.size() == 1
                            ? found.front()
                            : fmt::format("{} (and {} more)", found.front(), found.size() - 1),
               .hint = "levin inspect lists every contradiction"});
}

void refuse_problems(const Audit& audit, const Checkpoint& checkpoint) {
  if (audit.problems.empty()) return;
  ErrorParts first = audit.problems.front();
  first.where = fmt::format("{}, {}", checkpoint.folder().string(), first.where);
  if (audit.problems.size() > 1) {
    const std::size_t more = audit.problems.size() - 1;
    first.hint += fmt::format("{}{}: levin inspect lists {}", first.hint.empty() ? "" : "; ",
                              counted(more, "more problem"), more == 1 ? "it" : "them");
  }
  throw Error(first);
}

void check_matrices(const Model& model, const BindOptions& options) {
  const bool small = model.checkpoint->total_bytes() <= kAutoCheckBytes;
  if (options.check == ValueCheck::kScales || (options.check == ValueCheck::kAuto && !small))
    return;
  ThreadTeam team(available_cores());
  check_weights(model.linears(), team);
}

void bind_tensors(Model& model, const BindOptions& options) {
  const Binder binder(model.config, *model.checkpoint);
  model.embeddings = binder.linear("backbone.embeddings");
  for (std::size_t i = 0; i < model.config.layers.size(); ++i) {
    model.layers.push_back(
        binder.layer(model.config.layers[i], fmt::format("backbone.layers.{}", i)));
  }
  model.norm_f = binder.vector("backbone.norm_f.weight");
  model.lm_head = model.config.tie_word_embeddings ? binder.tied_head(model.embeddings)
                                                   : binder.linear("lm_head");
  if (!model.config.mtp_layers.empty()) model.mtp = binder.mtp();
  check_matrices(model, options);
}

}  // namespace

std::shared_ptr<const Model> bind_model(std::shared_ptr<const Checkpoint> checkpoint,
                                        const BindOptions& options) {
  auto model = std::make_shared<Model>();
  model->checkpoint = std::move(checkpoint);
  const Checkpoint& source = *model->checkpoint;
  const std::string folder = source.folder().string();
  model->config = parse_config(source.config(), (source.folder() / "config.json").string());
  refuse_contradictions(source);
  const Audit result = audit(model->config, source, options);
  refuse_problems(result, source);
  if (result.other_modality_tensors > 0) {
    spdlog::info("{}: not used, outside language_model.*: {}", folder,
                 counted(int64_t{result.other_modality_tensors}, "tensor"));
  }
  if (options.mtp && result.mtp_absent) {
    spdlog::warn("{}: config.json announces an MTP head, the checkpoint has none: no speculation",
                 folder);
  }
  if (!options.mtp || result.mtp_absent) model->config.mtp_layers.clear();

  try {
    bind_tensors(*model, options);
  } catch (const Error& error) {  // which names the tensor, and is one of two checkpoints at times
    ErrorParts parts = error.parts();
    parts.where = fmt::format("{}, {}", folder, parts.where);
    throw Error(parts);
  }
  return model;
}

}  // namespace levin::model
