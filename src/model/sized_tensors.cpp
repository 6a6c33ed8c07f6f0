// Bytes of tensors in a checkpoint and under a hypothetical quantization (model/cost.h).
#include <algorithm>

#include "model/cost.h"

namespace levin::model {
namespace {

using checkpoint::ModuleQuant;
using checkpoint::QuantAlgo;

std::string format_of(const ModuleQuant& quant, DType dtype) {
  return quant.algo == QuantAlgo::kNone ? std::string(name_of(dtype)) : format_name(quant);
}

double bytes_of(const StoredPlan& stored) {
  return static_cast<double>(element_count(stored.shape).value_or(0)) *
         static_cast<double>(size_of(stored.dtypes.front()));
}

}  // namespace

SizedTensor sized_tensor(const TensorPlan& plan, const ModuleQuant& quant, Dialect dialect) {
  SizedTensor sized = {.plan = plan, .format = {}, .bytes = 0, .stored_tensors = 0};
  const std::vector<StoredPlan> stored = stored_as(plan, quant, dialect);
  sized.format = format_of(quant, stored.front().dtypes.front());
  for (const StoredPlan& part : stored) {
    sized.bytes += bytes_of(part);
    ++sized.stored_tensors;
  }
  return sized;
}

std::vector<SizedTensor> sized_tensors(const Config& config,
                                       const checkpoint::Checkpoint& checkpoint) {
  std::vector<SizedTensor> tensors;
  const Dialect dialect = dialect_of(checkpoint.quantization());
  for (const TensorPlan& plan : plan_tensors(config)) {
    const ModuleQuant quant = quant_of(plan, checkpoint.quantization());
    SizedTensor sized = {.plan = plan, .format = {}, .bytes = 0, .stored_tensors = 0};
    for (const StoredPlan& part : stored_as(plan, quant, dialect)) {
      const checkpoint::TensorInfo* info = checkpoint.find(part.name);
      if (info == nullptr) continue;
      if (sized.stored_tensors == 0) sized.format = format_of(quant, info->dtype);
      sized.bytes += static_cast<double>(info->bytes);
      ++sized.stored_tensors;
    }
    if (sized.stored_tensors > 0) tensors.push_back(std::move(sized));
  }
  return tensors;
}

}  // namespace levin::model
