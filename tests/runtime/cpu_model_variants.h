// Copies of the bundled model in every format that the CPU runtime multiplies, for its tests.
#pragma once

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "model/model.h"
#include "runtime/cpu_random_linear.h"
#include "runtime/runtime.h"

namespace levin::runtime::cpu {

inline std::shared_ptr<const model::Model> tiny_model() {
  static const auto model =
      model::load_model(std::filesystem::path(LEVIN_SOURCE_DIR) / "models/tiny");
  return model;
}

struct Variant {
  std::string name;
  model::WeightFormat weights = model::WeightFormat::kBf16;
  model::ActivationFormat activations = model::ActivationFormat::kNone;
  int group = 0;
  KvCacheDType kv = KvCacheDType::kBf16;
};

inline std::vector<Variant> all_variants() {
  using model::ActivationFormat;
  using model::WeightFormat;
  return {
      {"bf16"},
      {"bf16_kv_fp8", WeightFormat::kBf16, ActivationFormat::kNone, 0, KvCacheDType::kFp8},
      {"bf16_kv_f32", WeightFormat::kBf16, ActivationFormat::kNone, 0, KvCacheDType::kF32},
      {"f16", WeightFormat::kF16, ActivationFormat::kNone},
      {"f32", WeightFormat::kF32, ActivationFormat::kNone},
      {"fp8", WeightFormat::kFp8, ActivationFormat::kFp8Static},
      {"fp8_per_channel", WeightFormat::kFp8Channel, ActivationFormat::kFp8PerToken},
      {"nvfp4_w4a16", WeightFormat::kNvfp4, ActivationFormat::kNone, 16},
      {"nvfp4_w4a4", WeightFormat::kNvfp4, ActivationFormat::kNvfp4, 16},
      {"int4_g64", WeightFormat::kInt4, ActivationFormat::kNone, 64},
  };
}

// Largest magnitude that each linear of the bundled model sees in `tokens`.
inline std::map<std::string, float> input_maxima(std::span<const int32_t> tokens) {
  std::map<std::string, float> maxima;
  const auto runtime = make_reference_runtime(
      tiny_model(), {.max_model_len = 512, .max_extend_tokens = static_cast<int>(tokens.size())});
  runtime->set_observer(
      {.hidden = {},
       .linear_input = [&](const model::Linear& linear, std::span<const float> input, int) {
         float& maximum = maxima[linear.name];
         for (const float x : input) maximum = std::max(maximum, std::fabs(x));
       }});
  runtime->extend(std::vector<Extend>{{.tokens = tokens}});
  return maxima;
}

// A model of its own and the bytes of its matrices.
struct VariantModel {
  std::shared_ptr<model::Model> model;
  std::vector<std::unique_ptr<OwnedLinear>> storage;
};

// Every linear but the routers in the variant's format, MTP's included; experts that `maxima` has
// not seen get the largest scale of all.
inline VariantModel make_variant(const model::Model& base, const Variant& variant,
                                 const std::map<std::string, float>& maxima) {
  using model::ActivationFormat;
  using model::WeightFormat;
  VariantModel result;
  result.model = std::make_shared<model::Model>(base);
  if (variant.weights == WeightFormat::kBf16) return result;
  float largest = 1.0F;
  for (const auto& [name, maximum] : maxima) largest = std::max(largest, maximum);
  std::mt19937 random(5);
  for (const model::Linear* original : result.model->linears()) {
    const bool router = original->name.ends_with("mixer.gate");
    if (router || original == &result.model->embeddings) continue;
    auto weights = model::dequantize(*original);
    if (variant.weights == WeightFormat::kF32) {
      // Values that are no BF16 numbers.
      std::uniform_real_distribution<float> noise(-0x1p-9F, 0x1p-9F);
      for (float& w : weights) w *= 1.0F + noise(random);
    }
    auto owned = std::make_unique<OwnedLinear>(
        encode_linear(variant.weights, original->out, original->in, weights, variant.group));
    owned->linear.name = original->name;
    owned->linear.bias = original->bias;
    owned->linear.activation = variant.activations;
    const auto seen = maxima.find(original->name);
    const float maximum = seen == maxima.end() ? largest : seen->second;
    if (variant.activations == ActivationFormat::kFp8Static)
      owned->linear.input_scale = maximum / 448;
    if (variant.activations == ActivationFormat::kNvfp4) owned->linear.input_scale = maximum / 2688;
    // linears() points into our own copy.
    *const_cast<model::Linear*>(original) = owned->linear;
    result.storage.push_back(std::move(owned));
  }
  return result;
}

}  // namespace levin::runtime::cpu
