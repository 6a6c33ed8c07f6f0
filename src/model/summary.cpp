#include "model/summary.h"

#include <map>
#include <utility>

namespace levin::model {
namespace {

PartSummary& operator+=(PartSummary& sum, const PartSummary& part) {
  sum.linears += part.linears;
  sum.tensors += part.tensors;
  sum.parameters += part.parameters;
  sum.bytes += part.bytes;
  return sum;
}

PartSummary summary_of(const SizedTensor& tensor) {
  return {
      .part = std::string(tensor.plan.mtp ? "mtp " : "") + std::string(name_of(tensor.plan.role)),
      .format = tensor.format,
      .linears = tensor.plan.kind == TensorKind::kVector ? 0 : 1,
      .tensors = tensor.stored_tensors,
      .parameters = tensor.plan.elements(),
      .bytes = tensor.bytes};
}

PartSummary kv_scale_summary(const Config& config, const checkpoint::Checkpoint& checkpoint) {
  PartSummary part = {.part = "KV cache scales", .format = "F32"};
  for (const StoredPlan& scale : kv_scales(config)) {
    const checkpoint::TensorInfo* info = checkpoint.find(scale.name);
    if (info == nullptr) continue;
    ++part.tensors;
    part.bytes += static_cast<double>(info->bytes);
  }
  return part;
}

void add_parts(const std::vector<SizedTensor>& tensors, Summary& summary) {
  std::map<std::pair<std::string, std::string>, std::size_t> places;
  for (const SizedTensor& tensor : tensors) {
    PartSummary part = summary_of(tensor);
    const auto [place, inserted] =
        places.emplace(std::pair(part.part, part.format), summary.parts.size());
    if (inserted) {
      summary.parts.push_back(std::move(part));
    } else {
      summary.parts[place->second] += part;
    }
  }
  summary.total.part = "total";
  for (const PartSummary& part : summary.parts) summary.total += part;
}

}  // namespace

Summary summarize(const Config& config, const checkpoint::Checkpoint& checkpoint,
                  const SummaryOptions& options) {
  Summary summary = summarize(config, sized_tensors(config, checkpoint), options);
  PartSummary scales = kv_scale_summary(config, checkpoint);
  if (scales.tensors == 0) return summary;
  summary.total += scales;
  summary.parts.push_back(std::move(scales));
  return summary;
}

Summary summarize(const Config& config, const std::vector<SizedTensor>& tensors,
                  const SummaryOptions& options) {
  Summary summary;
  summary.options = options;
  add_parts(tensors, summary);
  summary.active_parameters = active_parameters(config);
  StepOptions step = {.sequences = options.sequences,
                      .tokens_per_sequence = 1,
                      .context = options.context,
                      .types = options.types};
  const std::vector<Operation> operations = step_operations(config, tensors, step);
  summary.step = by_class(operations);
  summary.step_total = total(operations);
  const int max_draft = config.mtp_layers.empty() ? 0 : options.max_draft;
  for (int k = 0; k <= max_draft; ++k) {
    step.tokens_per_sequence = 1 + k;
    summary.rounds.push_back({.k = k,
                              .verify = total(step_operations(config, tensors, step)),
                              .draft = total(draft_operations(config, tensors, step, k))});
  }
  summary.state = state_size(config, options.types);
  summary.state_total = state_bytes(summary.state, options.sequences, options.context);
  return summary;
}

}  // namespace levin::model
