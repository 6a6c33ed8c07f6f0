// How tensors are stored under each quantization format (second half of model/inventory.h).
//
// Tensor names and shapes: NVIDIA ModelOpt modelopt/torch/export/unified_export_hf.py and
// quant_utils.py; compressed-tensors compressors/pack_quantized and compressors/nvfp4.
#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "core/error.h"
#include "model/inventory.h"

namespace levin::model {
namespace {

using checkpoint::ModuleQuant;
using checkpoint::QuantAlgo;
using Fill = checkpoint::TensorSpec::Fill;

constexpr int64_t kInt4PerWord = 8;

// Root mean square of what Fill::kCodes and kBlockScale make, for dummy scales that give weights
// the usual standard deviation: uniform E2M1 codes times E4M3 scales from 128 to 448; E4M3 codes of
// standard deviation 64; uniform int4 codes.
constexpr float kNvfp4Rms = 2.93F * 275.0F;
constexpr float kFp8Rms = 64.0F;
constexpr float kInt4Rms = 4.64F;
// Dummy activation scales: for inputs up to about 8.
constexpr float kDummyNvfp4Input = 8.0F / 2688.0F;
constexpr float kDummyFp8Input = 8.0F / 448.0F;

float weight_scale(const TensorPlan& tensor, float rms) {
  return 1.0F / (rms * std::sqrt(static_cast<float>(tensor.shape[1])));
}

StoredPlan scalar(const std::string& name, float value) {
  StoredPlan stored;
  stored.name = name;
  stored.dtypes = {DType::kF32};
  stored.scalar = true;
  stored.fill = Fill::kScale;
  stored.value = value;
  return stored;
}

StoredPlan array(const std::string& name, Shape shape, DType dtype, Fill fill, float value = 1.0F) {
  StoredPlan stored;
  stored.name = name;
  stored.shape = std::move(shape);
  stored.dtypes = {dtype};
  stored.fill = fill;
  stored.value = value;
  return stored;
}

void check_divides(const TensorPlan& tensor, int64_t group) {
  if (group > 0 && tensor.shape[1] % group == 0) return;
  throw Error({.what = "group size does not divide the input width of a quantized module",
               .where = std::string(tensor.module()),
               .expected = fmt::format("a divisor of {}", tensor.shape[1]),
               .found = fmt::format("group size {}", group),
               .hint = {}});
}

// compressed-tensors stores the reciprocals of ModelOpt's per-tensor scales.
std::vector<StoredPlan> nvfp4(const TensorPlan& tensor, const ModuleQuant& quant, Dialect dialect) {
  const std::string module(tensor.module());
  const int64_t out = tensor.shape[0];
  const int64_t in = tensor.shape[1];
  check_divides(tensor, quant.group_size);
  const float global = weight_scale(tensor, kNvfp4Rms);
  const Shape codes = {out, in / 2};
  const Shape scales = {out, in / quant.group_size};
  std::vector<StoredPlan> stored;
  if (dialect == Dialect::kCompressedTensors) {
    stored = {array(module + ".weight_packed", codes, DType::kU8, Fill::kCodes),
              array(module + ".weight_scale", scales, DType::kF8E4M3, Fill::kBlockScale),
              scalar(module + ".weight_global_scale", 1.0F / global)};
    if (quant.algo == QuantAlgo::kNvfp4) {
      stored.push_back(scalar(module + ".input_global_scale", 1.0F / kDummyNvfp4Input));
    }
    return stored;
  }
  stored = {array(tensor.name, codes, DType::kU8, Fill::kCodes),
            array(module + ".weight_scale", scales, DType::kF8E4M3, Fill::kBlockScale),
            scalar(module + ".weight_scale_2", global)};
  if (quant.algo == QuantAlgo::kNvfp4) {
    stored.push_back(scalar(module + ".input_scale", kDummyNvfp4Input));
  }
  return stored;
}

std::vector<StoredPlan> int4(const TensorPlan& tensor, const ModuleQuant& quant) {
  const std::string module(tensor.module());
  const int64_t out = tensor.shape[0];
  const int64_t in = tensor.shape[1];
  check_divides(tensor, quant.group_size);
  check_divides(tensor, kInt4PerWord);
  StoredPlan shape = array(module + ".weight_shape", {2}, DType::kI64, Fill::kIntegers);
  shape.integers = {out, in};
  return {array(module + ".weight_packed", {out, in / kInt4PerWord}, DType::kI32, Fill::kCodes),
          array(module + ".weight_scale", {out, in / quant.group_size}, DType::kBF16, Fill::kScale,
                weight_scale(tensor, kInt4Rms)),
          shape};
}

std::vector<StoredPlan> unquantized(const TensorPlan& tensor) {
  StoredPlan stored;
  stored.name = tensor.name;
  stored.shape = tensor.shape;
  stored.required = tensor.required;
  stored.fill = tensor.fill;
  // The convolution is depthwise: each output sees the taps of its own channel.
  stored.fan_in = tensor.shape.back();
  const bool router = tensor.role == Role::kRouter && tensor.kind == TensorKind::kMatrix;
  stored.dtypes = {tensor.dtype};
  for (const DType dtype : {DType::kBF16, DType::kF32, DType::kF16}) {
    if (dtype != tensor.dtype && !(router && dtype == DType::kF16)) stored.dtypes.push_back(dtype);
  }
  return {stored};
}

}  // namespace

Dialect dialect_of(const checkpoint::QuantMetadata& metadata) {
  return metadata.method == "compressed-tensors" ? Dialect::kCompressedTensors : Dialect::kModelOpt;
}

std::vector<StoredPlan> stored_as(const TensorPlan& tensor, const ModuleQuant& quant,
                                  Dialect dialect) {
  const std::string module(tensor.module());
  switch (quant.algo) {
    case QuantAlgo::kNone:
      return unquantized(tensor);
    case QuantAlgo::kFp8:
      return {array(tensor.name, tensor.shape, DType::kF8E4M3, Fill::kCodes),
              scalar(module + ".weight_scale", weight_scale(tensor, kFp8Rms)),
              scalar(module + ".input_scale", kDummyFp8Input)};
    case QuantAlgo::kFp8PerChannelPerToken:
      return {array(tensor.name, tensor.shape, DType::kF8E4M3, Fill::kCodes),
              array(module + ".weight_scale", {tensor.shape[0]}, DType::kF32, Fill::kScale,
                    weight_scale(tensor, kFp8Rms))};
    case QuantAlgo::kNvfp4:
    case QuantAlgo::kW4A16Nvfp4:
      return nvfp4(tensor, quant, dialect);
    case QuantAlgo::kInt4Packed:
      return int4(tensor, quant);
  }
  return {};
}

std::vector<StoredPlan> kv_scales(const Config& config) {
  std::vector<StoredPlan> scales;
  const auto add = [&](const std::vector<BlockKind>& layers, std::string_view prefix) {
    for (std::size_t i = 0; i < layers.size(); ++i) {
      if (layers[i] != BlockKind::kAttention) continue;
      for (const char* name : {"k_proj.k_scale", "v_proj.v_scale"}) {
        scales.push_back(scalar(fmt::format("{}.{}.mixer.{}", prefix, i, name), 1.0F));
        scales.back().required = false;
      }
    }
  };
  add(config.layers, "backbone.layers");
  add(config.mtp_layers, "mtp.layers");
  return scales;
}

ModuleQuant quant_of(const TensorPlan& tensor, const checkpoint::QuantMetadata& metadata) {
  if (tensor.kind == TensorKind::kVector) return {};
  const std::string_view module = tensor.module();
  if (tensor.kind == TensorKind::kLinear) return metadata.for_module(module);
  const auto named = metadata.modules.find(module);
  if (named == metadata.modules.end() || named->second.algo == QuantAlgo::kNone) return {};
  throw Error({.what = "metadata quantizes a module that must stay a float matrix",
               .where = std::string(module),
               .expected = fmt::format("{} in BF16 or F32", name_of(tensor.role)),
               .found = std::string(checkpoint::name_of(named->second.algo)),
               .hint = {}});
}

std::string format_name(const ModuleQuant& quant) {
  switch (quant.algo) {
    case QuantAlgo::kNone:
      return "float";
    case QuantAlgo::kFp8:
      return "FP8 W8A8";
    case QuantAlgo::kFp8PerChannelPerToken:
      return "FP8 per channel";
    case QuantAlgo::kNvfp4:
      return "NVFP4 W4A4";
    case QuantAlgo::kW4A16Nvfp4:
      return "NVFP4 W4A16";
    case QuantAlgo::kInt4Packed:
      break;
  }
  return fmt::format("INT4 g{}", quant.group_size);
}

WeightFormat weight_format(const ModuleQuant& quant) {
  switch (quant.algo) {
    case QuantAlgo::kNone:
      return WeightFormat::kBf16;
    case QuantAlgo::kFp8:
      return WeightFormat::kFp8;
    case QuantAlgo::kFp8PerChannelPerToken:
      return WeightFormat::kFp8Channel;
    case QuantAlgo::kNvfp4:
    case QuantAlgo::kW4A16Nvfp4:
      return WeightFormat::kNvfp4;
    case QuantAlgo::kInt4Packed:
      return WeightFormat::kInt4;
  }
  return WeightFormat::kBf16;
}

ActivationFormat activation_format(const ModuleQuant& quant) {
  switch (quant.algo) {
    case QuantAlgo::kFp8:
      return ActivationFormat::kFp8Static;
    case QuantAlgo::kFp8PerChannelPerToken:
      return ActivationFormat::kFp8PerToken;
    case QuantAlgo::kNvfp4:
      return ActivationFormat::kNvfp4;
    default:
      return ActivationFormat::kNone;
  }
}

std::vector<checkpoint::TensorSpec> dummy_specs(const Config& config,
                                                const checkpoint::QuantMetadata& metadata) {
  std::vector<checkpoint::TensorSpec> specs;
  const auto add = [&](const StoredPlan& stored) {
    specs.push_back({.name = stored.name,
                     .dtype = stored.dtypes.front(),
                     .shape = stored.shape,
                     .fill = stored.fill,
                     .fan_in = stored.fan_in,
                     .value = stored.value,
                     .integers = stored.integers});
  };
  for (const TensorPlan& tensor : plan_tensors(config)) {
    if (!tensor.required) continue;
    const auto quant = quant_of(tensor, metadata);
    for (const StoredPlan& stored : stored_as(tensor, quant, dialect_of(metadata))) add(stored);
  }
  if (metadata.kv_cache == checkpoint::KvCacheQuant::kFp8) {
    // As in the public releases: the draft head's cache has none.
    for (const StoredPlan& stored : kv_scales(config)) {
      if (!stored.name.starts_with("mtp.")) add(stored);
    }
  }
  return specs;
}

}  // namespace levin::model
