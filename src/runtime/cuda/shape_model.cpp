// A model without bytes (make_shape_model in make_cuda_runtime.h).
#include <cmath>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "core/files.h"
#include "core/philox.h"
#include "runtime/cuda/make_cuda_runtime.h"

namespace levin::runtime {
namespace {

using checkpoint::ModuleQuant;
using checkpoint::QuantAlgo;
using Fill = checkpoint::TensorSpec::Fill;

// Scales that give random codes the usual size of weights, as dummy checkpoints have them: the root
// mean squares of random NVFP4 codes with block scales from 128 to 448, and of random FP8 codes.
constexpr float kNvfp4Rms = 2.93F * 275.0F;
constexpr float kFp8Rms = 64.0F;
constexpr float kInputScale = 8.0F;  // dummy activation scales are for inputs up to about this

class ShapeBuilder {
 public:
  ShapeBuilder(const model::Config& config,
               const std::function<ModuleQuant(const model::TensorPlan&)>& quant_of)
      : quant_of_(quant_of) {
    for (model::TensorPlan& plan : model::plan_tensors(config)) {
      std::string name = plan.name;
      plans_.emplace(std::move(name), std::move(plan));
    }
  }

  std::vector<float> vector(const std::string& name);
  model::Linear linear(const std::string& module);
  model::Layer layer(const model::Config& config, model::BlockKind kind, const std::string& prefix);

 private:
  model::MambaBlock mamba(const model::Config& config, const std::string& mixer);
  model::MoeBlock moe(const model::Config& config, const std::string& mixer);

  const std::function<ModuleQuant(const model::TensorPlan&)>& quant_of_;
  std::unordered_map<std::string, model::TensorPlan> plans_;
  uint64_t stream_ = 0;
};

std::vector<float> ShapeBuilder::vector(const std::string& name) {
  const auto found = plans_.find(name);
  if (found == plans_.end()) return {};
  const model::TensorPlan& plan = found->second;
  std::vector<float> values(static_cast<std::size_t>(plan.elements()));
  ++stream_;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto words = philox(0, i, 10, stream_);
    const auto u = static_cast<float>(uniform_open_closed(words[0], words[1]));
    switch (plan.fill) {
      case Fill::kNorm:
        values[i] = 0.97F + 0.06F * u;
        break;
      case Fill::kWeight:
        values[i] = (u - 0.5F) * 3.46F / std::sqrt(static_cast<float>(plan.shape.back()));
        break;
      case Fill::kALog:
        values[i] = std::log(1.0F + 15.0F * u);
        break;
      case Fill::kDtBias: {
        const float dt = 0.001F * std::pow(100.0F, u);
        values[i] = dt + std::log(-std::expm1(-dt));
        break;
      }
      case Fill::kOne:
        values[i] = 1.0F;
        break;
      default:
        values[i] = 0.0F;
    }
  }
  return values;
}

model::Linear ShapeBuilder::linear(const std::string& module) {
  const auto found = plans_.find(module + ".weight");
  if (found == plans_.end()) return {};
  const model::TensorPlan& plan = found->second;
  const ModuleQuant quant =
      plan.kind == model::TensorKind::kLinear ? quant_of_(plan) : ModuleQuant{};
  model::Linear linear;
  linear.name = module;
  linear.format = model::weight_format(quant);
  linear.activation = model::activation_format(quant);
  linear.out = plan.shape[0];
  linear.in = plan.shape[1];
  linear.group_size = quant.group_size;
  linear.bias = vector(module + ".bias");
  const float root = std::sqrt(static_cast<float>(linear.in));
  if (linear.format == model::WeightFormat::kNvfp4) {
    linear.global_scale = 1.0F / (kNvfp4Rms * root);
    linear.input_scale = kInputScale / 2688.0F;
  } else if (linear.format == model::WeightFormat::kFp8) {
    linear.global_scale = 1.0F / (kFp8Rms * root);
    linear.input_scale = kInputScale / 448.0F;
  }
  return linear;
}

model::MambaBlock ShapeBuilder::mamba(const model::Config& config, const std::string& mixer) {
  model::MambaBlock block;
  block.in_proj = linear(mixer + ".in_proj");
  block.conv_weight = vector(mixer + ".conv1d.weight");
  block.conv_bias = vector(mixer + ".conv1d.bias");
  if (block.conv_bias.empty()) block.conv_bias.resize(static_cast<std::size_t>(config.conv_dim()));
  block.a = vector(mixer + ".A_log");
  for (float& value : block.a) value = -std::exp(value);
  block.d = vector(mixer + ".D");
  block.dt_bias = vector(mixer + ".dt_bias");
  block.norm = vector(mixer + ".norm.weight");
  block.out_proj = linear(mixer + ".out_proj");
  return block;
}

model::MoeBlock ShapeBuilder::moe(const model::Config& config, const std::string& mixer) {
  model::MoeBlock block;
  block.gate = linear(mixer + ".gate");
  block.e_score_correction_bias = vector(mixer + ".gate.e_score_correction_bias");
  for (int64_t i = 0; i < config.n_routed_experts; ++i) {
    const std::string expert = mixer + ".experts." + std::to_string(i);
    block.experts.push_back({linear(expert + ".up_proj"), linear(expert + ".down_proj")});
  }
  if (config.n_shared_experts > 0) {
    const std::string shared = mixer + ".shared_experts";
    block.shared = {linear(shared + ".up_proj"), linear(shared + ".down_proj")};
  }
  block.fc1_latent = linear(mixer + ".fc1_latent_proj");
  block.fc2_latent = linear(mixer + ".fc2_latent_proj");
  return block;
}

model::Layer ShapeBuilder::layer(const model::Config& config, model::BlockKind kind,
                                 const std::string& prefix) {
  const std::string mixer = prefix + ".mixer";
  model::Layer layer = {.kind = kind, .norm = vector(prefix + ".norm.weight"), .mixer = {}};
  switch (kind) {
    case model::BlockKind::kMamba:
      layer.mixer = mamba(config, mixer);
      break;
    case model::BlockKind::kMoe:
      layer.mixer = moe(config, mixer);
      break;
    case model::BlockKind::kAttention:
      layer.mixer = model::AttentionBlock{linear(mixer + ".q_proj"), linear(mixer + ".k_proj"),
                                          linear(mixer + ".v_proj"), linear(mixer + ".o_proj")};
      break;
    case model::BlockKind::kMlp:
      layer.mixer = model::MlpBlock{linear(mixer + ".up_proj"), linear(mixer + ".down_proj")};
      break;
  }
  return layer;
}

}  // namespace

std::shared_ptr<const model::Model> make_shape_model(
    const model::Config& config,
    const std::function<ModuleQuant(const model::TensorPlan&)>& quant_of) {
  ShapeBuilder builder(config, quant_of);
  auto model = std::make_shared<model::Model>();
  model->config = config;
  model->embeddings = builder.linear("backbone.embeddings");
  for (std::size_t i = 0; i < config.layers.size(); ++i) {
    model->layers.push_back(
        builder.layer(config, config.layers[i], "backbone.layers." + std::to_string(i)));
  }
  model->norm_f = builder.vector("backbone.norm_f.weight");
  model->lm_head = config.tie_word_embeddings ? model->embeddings : builder.linear("lm_head");
  if (config.mtp_layers.empty()) return model;
  model::Mtp& mtp = model->mtp.emplace();
  mtp.enorm = builder.vector("mtp.layers.0.enorm.weight");
  mtp.hnorm = builder.vector("mtp.layers.0.hnorm.weight");
  mtp.eh_proj = builder.linear("mtp.layers.0.eh_proj");
  for (std::size_t i = 0; i < config.mtp_layers.size(); ++i) {
    mtp.layers.push_back(
        builder.layer(config, config.mtp_layers[i], "mtp.layers." + std::to_string(i)));
  }
  mtp.final_layernorm = builder.vector(
      "mtp.layers." + std::to_string(config.mtp_layers.size() - 1) + ".final_layernorm.weight");
  return model;
}

std::shared_ptr<const model::Model> make_shape_model(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "config.json";
  const nlohmann::json json = read_json(path);
  const checkpoint::QuantMetadata metadata = checkpoint::read_quant_metadata(folder, json);
  const auto shape = make_shape_model(
      model::parse_config(json, path.string()),
      [&](const model::TensorPlan& plan) { return model::quant_of(plan, metadata); });
  model::Model model = *shape;
  // Only its catalogue is looked at: nothing is made on the host.
  model.checkpoint = model::open_checkpoint(folder, model::LoadFormat::kDummy);
  return std::make_shared<const model::Model>(std::move(model));
}

}  // namespace levin::runtime
