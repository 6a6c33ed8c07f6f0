#include "bench/prediction.h"

#include "model/cost.h"

namespace levin::bench {

Prediction predict_decode(const model::Model& model, int64_t context, int k,
                          double acceptance_length) {
  const std::vector<model::SizedTensor> tensors =
      model::sized_tensors(model.config, *model.checkpoint);
  const model::StepOptions step{
      .sequences = 1,
      .tokens_per_sequence = 1 + k,
      .context = context,
      .types = model::state_types(model.config, model.checkpoint->quantization())};
  double bytes = model::total(model::step_operations(model.config, tensors, step)).memory_bytes();
  if (k == 0) return {bytes};
  bytes += model::total(model::draft_operations(model.config, tensors, step, k)).memory_bytes();
  return {bytes / acceptance_length};
}

}  // namespace levin::bench
