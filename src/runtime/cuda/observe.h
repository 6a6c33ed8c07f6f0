// Copies what observers want to see of a pass to the host and calls them.
#pragma once

#include <vector>

#include "runtime/cuda/step.h"

namespace levin::runtime::cuda {

class PassObserver final : public StepObserver {
 public:
  // `hidden`: by layer, rows are appended; may be empty. `drafting`: the pass is a step of a draft.
  PassObserver(const model::Model& model, const Observer& observer, const Pass& pass, bool drafting,
               std::vector<std::vector<float>>& hidden, cudaStream_t stream);

  void hidden(int layer, const float* device) override;
  void input(const model::Linear& linear, const float* device) override;
  void expert_inputs(const std::vector<const model::Linear*>& linears, const int* experts,
                     const float* device, bool per_choice) override;

 private:
  std::vector<float> download(const float* device, std::size_t count) const;

  const model::Model& model_;
  const Observer& observer_;
  const Pass& pass_;
  bool drafting_;
  std::vector<std::vector<float>>& hidden_;
  cudaStream_t stream_;
};

// Buffers for observed passes.
ObservedBuffers place_observed(const model::Config& config, Arena& arena);

}  // namespace levin::runtime::cuda
