// What a configuration says must be in a checkpoint: every tensor with its shape and role, first as
// the unquantized model has it, then as a quantized module stores it. Binding, the dummy source,
// the quantizer's planner and the cost model all read this one list.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "model/config.h"
#include "model/linear.h"

namespace levin::model {

// What a tensor is for; sums by role are what tables show.
enum class Role : uint8_t {
  kEmbeddings,
  kMamba,
  kAttention,
  kRouter,
  kRoutedExperts,
  kSharedExperts,
  kLatent,  // fc1/fc2 around the routed experts
  kMlp,
  kMtpInput,  // eh_proj
  kNorm,      // pre-norms, norm_f, enorm, hnorm, final_layernorm
  kLmHead
};
std::string_view name_of(Role role);

enum class TensorKind : uint8_t {
  kLinear,  // [out, in], the weight of a module that quantization may replace
  kMatrix,  // router and embeddings: a matrix that stays a float matrix
  kVector   // norms, convolution, biases, Mamba's per-head parameters
};

// A tensor of the unquantized model.
struct TensorPlan {
  std::string name;  // "backbone.layers.0.mixer.in_proj.weight"
  Shape shape;
  TensorKind kind = TensorKind::kVector;
  Role role = Role::kNorm;
  bool mtp = false;
  int layer = -1;              // index into Config::layers (or mtp_layers); -1 outside of layers
  int64_t expert = -1;         // routed expert, -1 elsewhere
  bool required = true;        // false: may be absent
  DType dtype = DType::kBF16;  // what a dummy checkpoint makes; others may be accepted
  checkpoint::TensorSpec::Fill fill = checkpoint::TensorSpec::Fill::kNorm;

  // The name without its last part: the linear that a ".weight" or ".bias" belongs to.
  std::string_view module() const;
  int64_t elements() const { return element_count(shape).value_or(0); }
};

// All tensors in the order of the model. With mtp_layers the MTP head's come last.
std::vector<TensorPlan> plan_tensors(const Config& config);

// How tensors of one quantization format are named and read; follows from the metadata's method.
enum class Dialect : uint8_t { kModelOpt, kCompressedTensors };
Dialect dialect_of(const checkpoint::QuantMetadata& metadata);

// A tensor that a checkpoint must or may hold for a TensorPlan.
struct StoredPlan {
  std::string name;
  Shape shape;
  std::vector<DType> dtypes;  // accepted; the first is what a dummy checkpoint makes
  bool required = true;
  bool scalar = false;  // [] and [1] are both accepted
  checkpoint::TensorSpec::Fill fill = checkpoint::TensorSpec::Fill::kWeight;
  int64_t fan_in = 1;
  float value = 1.0F;             // of Fill::kScale
  std::vector<int64_t> integers;  // of Fill::kIntegers
};

// `tensor` as stored by `quant`: itself, or packed weight and scales. Throws Error when the group
// size does not divide the input width.
std::vector<StoredPlan> stored_as(const TensorPlan& tensor, const checkpoint::ModuleQuant& quant,
                                  Dialect dialect);

// k_scale and v_scale of an FP8 KV cache, all optional.
std::vector<StoredPlan> kv_scales(const Config& config);

// What the metadata promises for `tensor`: only linears are ever quantized. Throws Error when the
// metadata names a module that must stay a float matrix (router, embeddings).
checkpoint::ModuleQuant quant_of(const TensorPlan& tensor,
                                 const checkpoint::QuantMetadata& metadata);

// "NVFP4 W4A4", "NVFP4 W4A16", "FP8 W8A8", "FP8 per channel", "INT4 g64", "float"
std::string format_name(const checkpoint::ModuleQuant& quant);

WeightFormat weight_format(const checkpoint::ModuleQuant& quant);
ActivationFormat activation_format(const checkpoint::ModuleQuant& quant);

// Everything a checkpoint of this configuration and metadata holds, for Checkpoint::dummy.
std::vector<checkpoint::TensorSpec> dummy_specs(const Config& config,
                                                const checkpoint::QuantMetadata& metadata);

}  // namespace levin::model
