#include "runtime/cpu/weights.h"

#include <algorithm>

#include "core/progress.h"

namespace levin::runtime::cpu {
namespace {

// Repacking less than this takes no time worth a progress bar.
constexpr int64_t kShowProgress = int64_t{1} << 30;

// How each block is executed by kernels that multiply 4-bit weights as integers, or do not.
struct Planner {
  bool integer_products;

  Matrix operator()(const model::Linear& linear) const {
    return plan_matrix(linear, /*exact_input=*/false, integer_products);
  }

  FeedForward operator()(const model::Linear& up, const model::Linear& down) const {
    return {(*this)(up), (*this)(down)};
  }

  MambaWeights operator()(const model::MambaBlock& block) const {
    MambaWeights weights;
    weights.in_proj = (*this)(block.in_proj);
    weights.out_proj = (*this)(block.out_proj);
    weights.block = &block;
    const std::size_t channels = block.conv_bias.size();
    const std::size_t taps = block.conv_weight.size() / channels;
    weights.conv_weight.resize(block.conv_weight.size());
    for (std::size_t c = 0; c < channels; ++c) {
      for (std::size_t k = 0; k < taps; ++k) {
        weights.conv_weight[k * channels + c] = block.conv_weight[c * taps + k];
      }
    }
    return weights;
  }

  AttentionWeights operator()(const model::AttentionBlock& block) const {
    return {(*this)(block.q_proj), (*this)(block.k_proj), (*this)(block.v_proj),
            (*this)(block.o_proj), block.k_scale,         block.v_scale};
  }

  MoeWeights operator()(const model::MoeBlock& block) const {
    MoeWeights weights;
    // The router decides by small differences: its input is not rounded.
    weights.gate = plan_matrix(block.gate, /*exact_input=*/true, integer_products);
    weights.correction_bias = block.e_score_correction_bias.data();
    for (const model::Expert& expert : block.experts) {
      weights.experts.push_back((*this)(expert.up_proj, expert.down_proj));
    }
    if (block.shared) weights.shared = (*this)(block.shared->up_proj, block.shared->down_proj);
    if (block.fc1_latent.exists()) {
      weights.fc1_latent = (*this)(block.fc1_latent);
      weights.fc2_latent = (*this)(block.fc2_latent);
    }
    return weights;
  }

  LayerWeights operator()(const model::Layer& layer) const {
    LayerWeights weights;
    weights.norm = layer.norm.data();
    if (const auto* mamba = std::get_if<model::MambaBlock>(&layer.mixer)) {
      weights.mixer = (*this)(*mamba);
    } else if (const auto* moe = std::get_if<model::MoeBlock>(&layer.mixer)) {
      weights.mixer = (*this)(*moe);
    } else if (const auto* attention = std::get_if<model::AttentionBlock>(&layer.mixer)) {
      weights.mixer = (*this)(*attention);
    } else {
      const auto& mlp = std::get<model::MlpBlock>(layer.mixer);
      weights.mixer = (*this)(mlp.up_proj, mlp.down_proj);
    }
    return weights;
  }
};

// Calls visit(matrix) for every matrix of a layer.
template <typename Visit>
void visit_matrices(LayerWeights& layer, Visit&& visit) {
  if (auto* mamba = std::get_if<MambaWeights>(&layer.mixer)) {
    visit(mamba->in_proj);
    visit(mamba->out_proj);
  } else if (auto* attention = std::get_if<AttentionWeights>(&layer.mixer)) {
    visit(attention->q_proj);
    visit(attention->k_proj);
    visit(attention->v_proj);
    visit(attention->o_proj);
  } else if (auto* mlp = std::get_if<FeedForward>(&layer.mixer)) {
    visit(mlp->up_proj);
    visit(mlp->down_proj);
  } else {
    auto& moe = std::get<MoeWeights>(layer.mixer);
    visit(moe.gate);
    if (moe.fc1_latent) visit(*moe.fc1_latent);
    if (moe.fc2_latent) visit(*moe.fc2_latent);
    if (moe.shared) {
      visit(moe.shared->up_proj);
      visit(moe.shared->down_proj);
    }
    for (FeedForward& expert : moe.experts) visit(expert.up_proj);
    for (FeedForward& expert : moe.experts) visit(expert.down_proj);
  }
}

}  // namespace

Weights::Weights(const model::Model& model, bool with_mtp, bool integer_products) {
  const Planner plan{integer_products};
  lm_head = plan(model.lm_head);
  for (const model::Layer& layer : model.layers) layers.push_back(plan(layer));
  if (with_mtp) {
    mtp.emplace();
    mtp->mtp = &*model.mtp;
    mtp->eh_proj = plan(model.mtp->eh_proj);
    for (const model::Layer& layer : model.mtp->layers) mtp->layers.push_back(plan(layer));
  }
  collect();
  lay_out();
}

void Weights::collect() {
  const auto add = [this](Matrix& matrix) { matrices_.push_back(&matrix); };
  for (LayerWeights& layer : layers) visit_matrices(layer, add);
  add(lm_head);
  if (!mtp) return;
  add(mtp->eh_proj);
  for (LayerWeights& layer : mtp->layers) visit_matrices(layer, add);
}

void Weights::lay_out() {
  for (const Matrix* matrix : matrices_) {
    const int64_t rows = matrix->panels.panels * kLanes;
    places_.push_back({arena_plan_.add<uint8_t>(matrix->weight_bytes()),
                       arena_plan_.add<float>(rows),
                       arena_plan_.add<float>(matrix->source->bias.empty() ? 0 : rows)});
  }
}

void Weights::pack(ThreadTeam& team) {
  arena_ = Arena(bytes());
  std::optional<Progress> progress;
  if (bytes() >= kShowProgress) progress.emplace("repacking weights", bytes(), "B");

  team.run([&](int thread) {
    for (std::size_t i = 0; i < matrices_.size(); ++i) {
      const Matrix& matrix = *matrices_[i];
      const Range range = share(matrix.panels.panels, thread, team.size());
      pack_panels(matrix, range.begin, range.end, arena_.at(places_[i].data),
                  arena_.at(places_[i].row_scale),
                  places_[i].bias.count > 0 ? arena_.at(places_[i].bias) : nullptr);
      if (thread == 0 && progress) progress->advance(matrix.weight_bytes());
    }
  });
  for (std::size_t i = 0; i < matrices_.size(); ++i) {
    PanelMatrix& panels = matrices_[i]->panels;
    panels.data = arena_.at(places_[i].data);
    panels.row_scale = arena_.at(places_[i].row_scale);
    panels.bias = places_[i].bias.count > 0 ? arena_.at(places_[i].bias) : nullptr;
  }
}

}  // namespace levin::runtime::cpu
