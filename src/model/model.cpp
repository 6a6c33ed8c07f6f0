#include "model/model.h"

#include <nlohmann/json.hpp>

#include "core/files.h"
#include "model/inventory.h"

namespace levin::model {
namespace {

void append(std::vector<const Linear*>& linears, const Linear& linear) {
  if (linear.exists()) linears.push_back(&linear);
}

void append(std::vector<const Linear*>& linears, const Expert& expert) {
  append(linears, expert.up_proj);
  append(linears, expert.down_proj);
}

void append(std::vector<const Linear*>& linears, const Layer& layer) {
  if (const auto* mamba = std::get_if<MambaBlock>(&layer.mixer)) {
    append(linears, mamba->in_proj);
    append(linears, mamba->out_proj);
  } else if (const auto* attention = std::get_if<AttentionBlock>(&layer.mixer)) {
    append(linears, attention->q_proj);
    append(linears, attention->k_proj);
    append(linears, attention->v_proj);
    append(linears, attention->o_proj);
  } else if (const auto* moe = std::get_if<MoeBlock>(&layer.mixer)) {
    append(linears, moe->gate);
    for (const Expert& expert : moe->experts) append(linears, expert);
    if (moe->shared) append(linears, *moe->shared);
    append(linears, moe->fc1_latent);
    append(linears, moe->fc2_latent);
  } else if (const auto* mlp = std::get_if<MlpBlock>(&layer.mixer)) {
    append(linears, mlp->up_proj);
    append(linears, mlp->down_proj);
  }
}

}  // namespace

std::vector<const Linear*> Model::linears() const {
  std::vector<const Linear*> linears;
  append(linears, embeddings);
  for (const Layer& layer : layers) append(linears, layer);
  if (lm_head.name != embeddings.name) append(linears, lm_head);
  if (mtp) {
    append(linears, mtp->eh_proj);
    for (const Layer& layer : mtp->layers) append(linears, layer);
  }
  return linears;
}

std::shared_ptr<const checkpoint::Checkpoint> open_checkpoint(const std::filesystem::path& folder,
                                                              LoadFormat format) {
  if (format == LoadFormat::kAuto) return checkpoint::Checkpoint::open(folder);
  const std::filesystem::path path = folder / "config.json";
  const nlohmann::json json = read_json(path);
  const Config config = parse_config(json, path.string());
  return checkpoint::Checkpoint::dummy(
      folder, dummy_specs(config, checkpoint::read_quant_metadata(folder, json)), 0);
}

std::shared_ptr<const Model> load_model(const std::filesystem::path& folder, LoadFormat format,
                                        const BindOptions& options) {
  return bind_model(open_checkpoint(folder, format), options);
}

}  // namespace levin::model
