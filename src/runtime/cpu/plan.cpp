#include "runtime/cpu/plan.h"

#include <fmt/format.h>

#include <map>
#include <string>

namespace levin::runtime::cpu {
namespace {

using model::ActivationFormat;
using model::WeightFormat;

std::string stored_as(const model::Linear& linear) {
  const std::string name(model::name_of(linear.format));
  if (linear.format == WeightFormat::kInt4) return fmt::format("{} g{}", name, linear.group_size);
  if (linear.format == WeightFormat::kNvfp4) {
    return name + (linear.activation == ActivationFormat::kNvfp4 ? " W4A4" : " W4A16");
  }
  if (linear.activation == ActivationFormat::kNone) return name;
  return fmt::format("{}, {} inputs", name, model::name_of(linear.activation));
}

std::string weights_as(PanelFormat format) {
  switch (format) {
    case PanelFormat::kBf16:
    case PanelFormat::kBf16ByF32:
      return "bf16";
    case PanelFormat::kFp8:
      return "e4m3";
    case PanelFormat::kNvfp4:
      return "e2m1";
    case PanelFormat::kInt4:
      return "int4";
    case PanelFormat::kF16ByF32:
      return "f16";
    case PanelFormat::kF32ByF32:
      break;
  }
  return "f32";
}

std::string inputs_as(const Matrix& matrix) {
  if (matrix.panels.digits == 2) return "int16 (16 under a scale)";
  switch (matrix.input) {
    case PackAs::kBf16:
      return "bf16";
    case PackAs::kF32:
      return "f32";
    case PackAs::kFp8Static:
    case PackAs::kFp8PerToken:
      return "e4m3";
    case PackAs::kNvfp4:
      break;
  }
  return "e2m1";
}

std::string kernel_of(PanelFormat format, Isa isa) {
  return fmt::format("{} panels of 16 rows, {}", weights_as(format), name_of(isa));
}

// Why a linear is not computed in the format it is stored in.
std::string why(const Matrix& matrix) {
  const WeightFormat stored = matrix.source->format;
  const PanelFormat format = matrix.panels.format;
  if (stored == WeightFormat::kF32 && format != PanelFormat::kF32ByF32) {
    return "all float32 weights are BF16 numbers";
  }
  if (matrix.panels.digits == 2) return "at most 2^-15 of the largest of 16 away, finer than BF16";
  if (matrix.panels.digits == 1) return "exact products of the quantized values, as integers";
  if (matrix.input == PackAs::kNvfp4 || matrix.input == PackAs::kFp8Static ||
      matrix.input == PackAs::kFp8PerToken) {
    return "exact products of the quantized values; BF16 holds both factors";
  }
  if (format == PanelFormat::kBf16ByF32) return "the router's input is not rounded";
  return {};
}

}  // namespace

std::vector<PlanEntry> describe_plan(const model::Model& model, const Weights& weights, Isa isa) {
  std::map<const model::Linear*, const Matrix*> matrices;
  for (const Matrix* matrix : weights.matrices()) matrices[matrix->source] = matrix;
  // Tied embeddings are listed once, as a table that is multiplied with too.
  if (model.lm_head.name == model.embeddings.name) {
    matrices[&model.embeddings] = &weights.lm_head;
  }
  std::vector<PlanEntry> entries;
  for (const model::Linear* linear : model.linears()) {
    PlanEntry& entry = entries.emplace_back();
    entry.linear = linear->name;
    entry.stored_as = stored_as(*linear);
    const auto found = matrices.find(linear);
    if (found == matrices.end()) {
      const bool table = linear == &model.embeddings;
      entry.computed_as = table ? "rows widened to f32" : "not computed";
      entry.kernel = table ? "table" : "none";
      if (!table) entry.why = "speculation is off";
      continue;
    }
    const Matrix& matrix = *found->second;
    entry.computed_as = fmt::format("{} x {} products, f32 sums", weights_as(matrix.panels.format),
                                    inputs_as(matrix));
    entry.kernel = kernel_of(matrix.panels.format, isa);
    entry.why = why(matrix);
  }
  return entries;
}

}  // namespace levin::runtime::cpu
