// Mixture of experts with a sigmoid router (DeepSeek-V3's, arXiv 2412.19437) and a shared expert.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/model.h"
#include "runtime/reference/context.h"

namespace levin::runtime::reference {

struct RoutedExpert {
  int32_t expert = 0;
  float weight = 0.0F;
};

// Chooses the experts of one token from its router logits [experts]. Scores are sigmoids; the
// correction bias takes part in choosing but not in weighting. With n_group > 1 only the topk_group
// groups whose two best biased scores sum highest are eligible. Ties go to the lower index.
// `chosen` has num_experts_per_tok entries, best first; `scratch` 2 * experts floats.
void route(const model::Config& config, std::span<const float> logits,
           std::span<const float> correction_bias, std::span<float> scratch,
           std::span<RoutedExpert> chosen);

// Work space of one pass, shared by all MoE layers.
struct MoeWork {
  explicit MoeWork(const Context& context);

  Buffer logits;   // [rows, experts]
  Buffer scratch;  // [2 * experts], for route()
  Buffer latent;   // [rows, latent]: input of the experts when they live in a narrower space
  Buffer routed;   // [rows, expert width]: weighted sum of the chosen experts
  Buffer widened;  // [rows, hidden]: fc2_latent_proj of it
  Buffer hidden;   // [rows, widest intermediate]
  Buffer input;    // [rows, expert width]: rows of one expert
  Buffer output;   // [rows, expert width]
  std::vector<RoutedExpert> chosen;  // [rows, num_experts_per_tok]
  std::vector<int32_t> members;      // rows of the current expert
  std::vector<float> weights;        // and their weights

  int64_t bytes() const {
    return logits.bytes() + latent.bytes() + routed.bytes() + widened.bytes() + hidden.bytes() +
           input.bytes() + output.bytes();
  }
};

// output [rows, hidden] = shared(input) + sum of the chosen experts, added in expert order.
void moe(Context& context, const model::MoeBlock& block, MoeWork& work,
         std::span<const float> input, int rows, std::span<float> output);

}  // namespace levin::runtime::reference
