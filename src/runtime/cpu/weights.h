// The model's weights as the CPU runtime reads them: matrices repacked into one arena, small
// vectors where the model keeps them.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "core/thread_team.h"
#include "model/model.h"
#include "runtime/cpu/arena.h"
#include "runtime/cpu/panels.h"

namespace levin::runtime::cpu {

struct MambaWeights {
  Matrix in_proj, out_proj;
  const model::MambaBlock* block = nullptr;
  std::vector<float> conv_weight;  // [conv_kernel, conv_dim]: a tap's channels side by side
};

struct AttentionWeights {
  Matrix q_proj, k_proj, v_proj, o_proj;
  float k_scale = 1.0F;
  float v_scale = 1.0F;
};

// relu(up x)^2, then down: an expert or a dense block.
struct FeedForward {
  Matrix up_proj, down_proj;
};

struct MoeWeights {
  Matrix gate;
  const float* correction_bias = nullptr;  // [experts]
  std::vector<FeedForward> experts;
  std::optional<FeedForward> shared;
  std::optional<Matrix> fc1_latent, fc2_latent;
};

struct LayerWeights {
  const float* norm = nullptr;  // [hidden]
  std::variant<MambaWeights, MoeWeights, AttentionWeights, FeedForward> mixer;
};

struct MtpWeights {
  const model::Mtp* mtp = nullptr;
  Matrix eh_proj;
  std::vector<LayerWeights> layers;
};

class Weights {
 public:
  // What is executed how, without memory yet. Throws Error when a linear has no kernel. `model`
  // must outlive this. `integer_products`: of the Kernels.
  Weights(const model::Model& model, bool mtp, bool integer_products);
  // Repacks everything, each thread of `team` the rows that it will multiply.
  void pack(ThreadTeam& team);
  Weights(const Weights&) = delete;
  Weights& operator=(const Weights&) = delete;

  std::vector<LayerWeights> layers;
  Matrix lm_head;
  std::optional<MtpWeights> mtp;

  // All matrices.
  const std::vector<Matrix*>& matrices() const { return matrices_; }
  int64_t bytes() const { return arena_plan_.bytes(); }

 private:
  struct Places {
    Place<uint8_t> data;
    Place<float> row_scale, bias;
  };
  void collect();
  void lay_out();

  std::vector<Matrix*> matrices_;
  std::vector<Places> places_;  // of each matrix
  ArenaPlan arena_plan_;
  Arena arena_;
};

}  // namespace levin::runtime::cpu
