// Quantized checkpoints: each format bound and dequantized, each way to be wrong refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/small_floats.h"
#include "model/audit.h"
#include "support/dummy_tensors.h"

namespace levin::model {
namespace {

using nlohmann::json;
using test::dummy_tensors;
using test::erase_tensor;
using test::filled_tensor;
using test::make_tensor;
using test::small_config;
using test::tensor_named;
using test::TestTensor;
using ::testing::HasSubstr;

using Tensors = std::vector<TestTensor>;

const std::string kInProj = "backbone.layers.0.mixer.in_proj";
const std::string kExpert = "backbone.layers.1.mixer.experts.2.up_proj";
const std::string kMtpExpert = "mtp.layers.1.mixer.experts.1.down_proj";

// Everything at once: FP8 Mamba, per-channel FP8 attention, W4A4 experts (MTP's too), W4A16 head.
json mixed_config() {
  json layers;
  for (const char* name : {"in_proj", "out_proj"}) {
    layers[std::string("backbone.layers.0.mixer.") + name] = {{"quant_algo", "FP8"}};
  }
  for (const char* name : {"q_proj", "k_proj", "v_proj", "o_proj"}) {
    layers[std::string("backbone.layers.2.mixer.") + name] = {
        {"quant_algo", "FP8_PER_CHANNEL_PER_TOKEN"}};
  }
  for (const char* block : {"backbone.layers.1", "backbone.layers.4", "mtp.layers.1"}) {
    for (int expert = 0; expert < 4; ++expert) {
      for (const char* name : {"up_proj", "down_proj"}) {
        layers[std::string(block) + ".mixer.experts." + std::to_string(expert) + "." + name] = {
            {"quant_algo", "NVFP4"}, {"group_size", 16}};
      }
    }
  }
  layers["lm_head"] = {{"quant_algo", "W4A16_NVFP4"}, {"group_size", 16}};
  json config = small_config();
  config["quantization_config"] = {
      {"quant_method", "modelopt"},
      {"quant_algo", "MIXED_PRECISION"},
      {"quantized_layers", layers},
      {"ignore", json::array()},
      {"kv_cache_scheme", {{"type", "float"}, {"num_bits", 8}, {"dynamic", false}}}};
  return config;
}

json compressed_config(const json& weights, const std::string& format) {
  json config = small_config();
  config["quantization_config"] = {
      {"quant_method", "compressed-tensors"},
      {"format", format},
      {"ignore", {"lm_head", "re:.*mtp.*"}},
      {"config_groups", {{"group_0", {{"targets", {"Linear"}}, {"weights", weights}}}}}};
  return config;
}

json int4_config() {
  return compressed_config({{"num_bits", 4},
                            {"type", "int"},
                            {"symmetric", true},
                            {"strategy", "group"},
                            {"group_size", 32}},
                           "pack-quantized");
}

json ct_nvfp4_config() {
  return compressed_config({{"num_bits", 4},
                            {"type", "float"},
                            {"symmetric", true},
                            {"strategy", "tensor_group"},
                            {"group_size", 16}},
                           "nvfp4-pack-quantized");
}

std::shared_ptr<const Model> load(const json& config, const Tensors& tensors) {
  const test::TempFolder folder;
  test::write_checkpoint(folder.path(), config, tensors);
  return load_model(folder.path());
}

std::string refusal(const json& config, const Tensors& tensors) {
  return test::error_of([&] { load(config, tensors); }).what();
}

std::string refusal(const std::function<void(Tensors&)>& change) {
  Tensors tensors = dummy_tensors(mixed_config());
  change(tensors);
  return refusal(mixed_config(), tensors);
}

const Linear& linear_named(const Model& model, const std::string& name) {
  for (const Linear* linear : model.linears()) {
    if (linear->name == name) return *linear;
  }
  throw std::runtime_error("no linear " + name);
}

double rms(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += double{value} * value;
  return std::sqrt(sum / static_cast<double>(values.size()));
}

TEST(Quantized, MixedCheckpointBinds) {
  const auto model = load(mixed_config(), dummy_tensors(mixed_config()));
  const Linear& fp8 = linear_named(*model, kInProj);
  EXPECT_EQ(fp8.format, WeightFormat::kFp8);
  EXPECT_EQ(fp8.activation, ActivationFormat::kFp8Static);
  EXPECT_GT(fp8.input_scale, 0.0F);
  const Linear& channel = linear_named(*model, "backbone.layers.2.mixer.q_proj");
  EXPECT_EQ(channel.format, WeightFormat::kFp8Channel);
  EXPECT_EQ(channel.activation, ActivationFormat::kFp8PerToken);
  for (const std::string& name : {kExpert, kMtpExpert}) {
    const Linear& expert = linear_named(*model, name);
    EXPECT_EQ(expert.format, WeightFormat::kNvfp4);
    EXPECT_EQ(expert.activation, ActivationFormat::kNvfp4);
    EXPECT_EQ(expert.group_size, 16);
    EXPECT_EQ(expert.bytes(), expert.out * expert.in / 2 + expert.out * expert.in / 16);
  }
  const Linear& head = linear_named(*model, "lm_head");
  EXPECT_EQ(head.format, WeightFormat::kNvfp4);
  EXPECT_EQ(head.activation, ActivationFormat::kNone);
  EXPECT_EQ(linear_named(*model, "backbone.layers.1.mixer.shared_experts.up_proj").format,
            WeightFormat::kBf16);
}

// Dummy scales are made so that a quantized layer behaves like the BF16 one.
TEST(Quantized, DummyWeightsHaveTheUsualDeviation) {
  for (const json& config : {mixed_config(), int4_config(), ct_nvfp4_config()}) {
    const auto model = load(config, dummy_tensors(config));
    for (const Linear* linear : model->linears()) {
      EXPECT_NEAR(rms(dequantize(*linear)) * std::sqrt(static_cast<double>(linear->in)), 1, 0.15)
          << linear->name << " " << name_of(linear->format);
    }
  }
}

TEST(Quantized, Nvfp4DequantizesByItsDefinition) {
  const auto model = load(mixed_config(), dummy_tensors(mixed_config()));
  const Linear& linear = linear_named(*model, kExpert);
  std::vector<float> row(static_cast<std::size_t>(linear.in));
  for (int64_t r = 0; r < linear.out; ++r) {
    dequantize_row(linear, r, row);
    for (int64_t c = 0; c < linear.in; ++c) {
      const uint8_t byte =
          linear.weight.as<uint8_t>()[static_cast<std::size_t>(r * linear.in / 2 + c / 2)];
      const uint8_t code = c % 2 == 0 ? byte & 15 : byte >> 4;
      const float scale = e4m3_to_float(
          linear.scales.as<uint8_t>()[static_cast<std::size_t>(r * linear.in / 16 + c / 16)]);
      EXPECT_EQ(row[static_cast<std::size_t>(c)],
                kE2M1Values[code] * (scale * linear.global_scale));
    }
  }
}

TEST(Quantized, Fp8DequantizesByItsDefinition) {
  const auto model = load(mixed_config(), dummy_tensors(mixed_config()));
  for (const std::string& name : {kInProj, std::string("backbone.layers.2.mixer.k_proj")}) {
    const Linear& linear = linear_named(*model, name);
    std::vector<float> row(static_cast<std::size_t>(linear.in));
    for (int64_t r = 0; r < linear.out; ++r) {
      dequantize_row(linear, r, row);
      const float scale = linear.format == WeightFormat::kFp8
                              ? linear.global_scale
                              : linear.scales.as<float>()[static_cast<std::size_t>(r)];
      for (int64_t c = 0; c < linear.in; ++c) {
        const auto index = static_cast<std::size_t>(r * linear.in + c);
        EXPECT_EQ(row[static_cast<std::size_t>(c)],
                  e4m3_to_float(linear.weight.as<uint8_t>()[index]) * scale);
      }
    }
  }
}

TEST(Quantized, Int4DequantizesByItsDefinition) {
  const auto model = load(int4_config(), dummy_tensors(int4_config()));
  const Linear& linear = linear_named(*model, kExpert);
  EXPECT_EQ(linear.format, WeightFormat::kInt4);
  EXPECT_EQ(linear.group_size, 32);
  const std::vector<float> all = dequantize(linear);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto word = static_cast<uint32_t>(linear.weight.as<int32_t>()[i / 8]);
    const int nibble = static_cast<int>(word >> (4 * (i % 8)) & 15);
    EXPECT_EQ(all[i],
              static_cast<float>(nibble - 8) * bf16_to_float(linear.scales.as<uint16_t>()[i / 32]));
  }
  EXPECT_EQ(linear_named(*model, "lm_head").format, WeightFormat::kBf16);
  EXPECT_EQ(linear_named(*model, kMtpExpert).format, WeightFormat::kBf16);
}

TEST(Quantized, CompressedTensorsStoresReciprocalScales) {
  Tensors tensors = dummy_tensors(ct_nvfp4_config());
  tensor_named(tensors, kExpert + ".weight_global_scale") =
      make_tensor<float>(kExpert + ".weight_global_scale", DType::kF32, {1}, {512.0F});
  const auto model = load(ct_nvfp4_config(), tensors);
  EXPECT_EQ(linear_named(*model, kExpert).global_scale, 1.0F / 512.0F);
  tensor_named(tensors, kExpert + ".weight_global_scale") =
      make_tensor<float>(kExpert + ".weight_global_scale", DType::kF32, {1}, {1e-45F});
  EXPECT_THAT(refusal(ct_nvfp4_config(), tensors), HasSubstr("scale is out of range"));
}

TEST(Quantized, ScalarsMayHaveShapeOne) {
  Tensors tensors = dummy_tensors(mixed_config());
  for (const char* suffix : {".weight_scale_2", ".input_scale"}) {
    tensor_named(tensors, kExpert + suffix).shape = {1};
  }
  EXPECT_NO_THROW(load(mixed_config(), tensors));
  tensor_named(tensors, kExpert + ".input_scale") =
      make_tensor<float>(kExpert + ".input_scale", DType::kF32, {2}, {1.0F, 1.0F});
  EXPECT_THAT(refusal(mixed_config(), tensors), HasSubstr("wrong shape"));
}

TEST(Quantized, KvScales) {
  Tensors tensors = dummy_tensors(mixed_config());
  const std::string k_scale = "backbone.layers.2.mixer.k_proj.k_scale";
  tensor_named(tensors, k_scale) = make_tensor<float>(k_scale, DType::kF32, {1}, {0.125F});
  const auto model = load(mixed_config(), tensors);
  const auto& attention = std::get<AttentionBlock>(model->layers[2].mixer);
  EXPECT_EQ(attention.k_scale, 0.125F);
  EXPECT_EQ(attention.v_scale, 1.0F);
  // All missing are 1; one missing is a loss.
  erase_tensor(tensors, k_scale);
  EXPECT_THAT(refusal(mixed_config(), tensors), HasSubstr("KV cache scale is missing"));
  const std::string v_scale = "backbone.layers.2.mixer.v_proj.v_scale";
  const test::TestTensor v = tensor_named(tensors, v_scale);
  erase_tensor(tensors, v_scale);
  EXPECT_EQ(std::get<AttentionBlock>(load(mixed_config(), tensors)->layers[2].mixer).k_scale, 1.0F);
  tensors.push_back(v);
  tensors.push_back(make_tensor<float>(k_scale, DType::kF32, {}, {0.0F}));
  EXPECT_THAT(refusal(mixed_config(), tensors), HasSubstr("scale is out of range"));
}

// Every companion of every format is needed, with its shape and type.
TEST(QuantizedInventory, EveryMissingCompanionIsNamed) {
  for (const json& config : {mixed_config(), int4_config(), ct_nvfp4_config()}) {
    const Tensors tensors = dummy_tensors(config);
    for (const TestTensor& tensor : tensors) {
      if (tensor.name.find("scale") == std::string::npos &&
          tensor.name.find("weight_shape") == std::string::npos) {
        continue;
      }
      if (tensor.name.ends_with("k_scale") || tensor.name.ends_with("v_scale")) continue;
      Tensors without = tensors;
      erase_tensor(without, tensor.name);
      EXPECT_THAT(refusal(config, without), HasSubstr(tensor.name));
      Tensors reshaped = tensors;
      TestTensor& target = tensor_named(reshaped, tensor.name);
      Shape shape = tensor.shape;
      if (shape.empty()) shape.push_back(1);
      shape.back() += 1;
      target = filled_tensor(tensor.name, tensor.dtype, shape, 0x38);
      EXPECT_THAT(refusal(config, reshaped),
                  AllOf(HasSubstr("wrong shape"), HasSubstr(tensor.name)));
      Tensors retyped = tensors;
      tensor_named(retyped, tensor.name) =
          filled_tensor(tensor.name, DType::kF16, tensor.shape, 0x38);
      EXPECT_THAT(refusal(config, retyped), AllOf(HasSubstr("wrong type"), HasSubstr(tensor.name)));
    }
  }
}

TEST(QuantizedInventory, W4A4ExpertsWithoutInputScaleAreListed) {
  const std::string message = refusal([](Tensors& tensors) {
    for (const char* expert : {"1", "3"}) {
      erase_tensor(tensors, std::string("backbone.layers.1.mixer.experts.") + expert +
                                ".up_proj.input_scale");
    }
  });
  EXPECT_THAT(message, HasSubstr("backbone.layers.1.mixer.experts.{1,3}.up_proj.input_scale"));
  EXPECT_THAT(message, HasSubstr("NVFP4"));
}

TEST(QuantizedInventory, PackedWeightsWhereMetadataSaysBf16) {
  json config = mixed_config();
  config["quantization_config"]["quantized_layers"].erase(kExpert);
  const std::string message = refusal(config, dummy_tensors(mixed_config()));
  EXPECT_THAT(message, HasSubstr("checkpoint and metadata disagree"));
  EXPECT_THAT(message, HasSubstr(kExpert));
  EXPECT_THAT(message, HasSubstr("not quantized"));
  EXPECT_THAT(message, HasSubstr("weight U8"));
}

TEST(QuantizedInventory, Bf16WeightsWhereMetadataSaysPacked) {
  const std::string message = refusal([](Tensors& tensors) {
    tensor_named(tensors, kExpert + ".weight") =
        filled_tensor(kExpert + ".weight", DType::kBF16, {32, 64});
  });
  EXPECT_THAT(message, HasSubstr("checkpoint and metadata disagree"));
  EXPECT_THAT(message, HasSubstr("weight BF16"));
  EXPECT_THAT(message, Not(HasSubstr("more problems")));
}

TEST(QuantizedInventory, TheWholeCheckpointWithoutItsMetadata) {
  json config = mixed_config();
  config.erase("quantization_config");
  const test::TempFolder folder;
  test::write_checkpoint(folder.path(), config, dummy_tensors(mixed_config()));
  const auto checkpoint = open_checkpoint(folder.path(), LoadFormat::kAuto);
  const auto problems = audit(parse_config(config, "config.json"), *checkpoint).problems;
  // One per module, experts of a layer and projection together: 2 + 4 + 3 * 2 + 1.
  EXPECT_EQ(problems.size(), 13U);
  for (const ErrorParts& problem : problems) {
    EXPECT_THAT(problem.what, HasSubstr("checkpoint and metadata disagree"));
  }
}

TEST(QuantizedInventory, UnknownSuffixesAreNotSkipped) {
  EXPECT_THAT(refusal([](Tensors& tensors) {
                tensors.push_back(filled_tensor(kExpert + ".weight_zero_point", DType::kI32, {1}));
              }),
              AllOf(HasSubstr("not part of the model"), HasSubstr("weight_zero_point")));
  EXPECT_THAT(refusal([](Tensors& tensors) {
                tensors.push_back(filled_tensor("lm_head.input_scale", DType::kF32, {}));
              }),
              HasSubstr("lm_head.input_scale"));
}

TEST(QuantizedInventory, RouterAndEmbeddingsStayFloat) {
  for (const char* module : {"backbone.layers.1.mixer.gate", "backbone.embeddings"}) {
    json config = mixed_config();
    config["quantization_config"]["quantized_layers"][module] = {{"quant_algo", "FP8"}};
    EXPECT_THAT(refusal(config, dummy_tensors(mixed_config())),
                AllOf(HasSubstr("must stay a float matrix"), HasSubstr(module)));
  }
  // A deny-list that forgets the router does not make it a quantized module.
  json uniform = small_config();
  uniform["quantization_config"] = {
      {"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}, {"ignore", {"lm_head"}}};
  EXPECT_NO_THROW(load(uniform, dummy_tensors(uniform)));
}

TEST(QuantizedInventory, Fp8EmbeddingsAreRefused) {
  EXPECT_THAT(refusal([](Tensors& tensors) {
                tensor_named(tensors, "backbone.embeddings.weight") =
                    filled_tensor("backbone.embeddings.weight", DType::kF8E4M3, {96, 64});
              }),
              HasSubstr("backbone.embeddings"));
}

TEST(QuantizedInventory, GroupSizeMustDivide) {
  json config = int4_config();
  config["quantization_config"]["config_groups"]["group_0"]["weights"]["group_size"] = 48;
  EXPECT_THAT(refusal(config, dummy_tensors(int4_config())),
              HasSubstr("group size does not divide"));
}

TEST(QuantizedInventory, MetadataThatContradictsItselfIsRefused) {
  json config = mixed_config();
  config["quantization_config"]["ignore"] = {"mtp*"};
  EXPECT_THAT(refusal(config, dummy_tensors(mixed_config())),
              AllOf(HasSubstr("contradicts itself"), HasSubstr("mtp*")));
}

TEST(QuantizedValues, BlockScalesOutOfRange) {
  for (const char byte : {'\x7f', '\xff', '\x80', '\xb8'}) {
    for (const std::string& name : {kExpert, kMtpExpert, std::string("lm_head")}) {
      EXPECT_THAT(
          refusal([&](Tensors& tensors) {
            tensor_named(tensors, name + ".weight_scale").bytes[3] = byte;
          }),
          AllOf(HasSubstr("block scale is out of range"), HasSubstr(name), HasSubstr("element 3")));
    }
  }
  Tensors tensors = dummy_tensors(mixed_config());
  tensor_named(tensors, kExpert + ".weight_scale").bytes[0] = '\x7e';
  tensor_named(tensors, kExpert + ".weight_scale").bytes[1] = '\x00';
  EXPECT_NO_THROW(load(mixed_config(), tensors));
}

TEST(QuantizedValues, ScalesOutOfRange) {
  for (const float value : {0.0F, -1.0F, INFINITY, NAN}) {
    for (const std::string& name : {kExpert + ".weight_scale_2", kExpert + ".input_scale",
                                    kInProj + ".weight_scale", kInProj + ".input_scale"}) {
      EXPECT_THAT(refusal([&](Tensors& tensors) {
                    tensor_named(tensors, name) =
                        make_tensor<float>(name, DType::kF32, {}, {value});
                  }),
                  AllOf(HasSubstr("scale is out of range"), HasSubstr(name)));
    }
    const std::string channel = "backbone.layers.2.mixer.k_proj.weight_scale";
    EXPECT_THAT(refusal([&](Tensors& tensors) {
                  std::memcpy(tensor_named(tensors, channel).bytes.data() + 8, &value, 4);
                }),
                AllOf(HasSubstr("scale is out of range"), HasSubstr("element 2")));
  }
}

TEST(QuantizedValues, Fp8WeightNan) {
  EXPECT_THAT(refusal([](Tensors& tensors) {
                tensor_named(tensors, kInProj + ".weight").bytes[7] = '\x7f';
              }),
              AllOf(HasSubstr("not finite"), HasSubstr(kInProj)));
}

TEST(QuantizedValues, Int4ShapeAndScales) {
  Tensors tensors = dummy_tensors(int4_config());
  tensor_named(tensors, kExpert + ".weight_shape") =
      make_tensor<int64_t>(kExpert + ".weight_shape", DType::kI64, {2}, {64, 32});
  EXPECT_THAT(refusal(int4_config(), tensors),
              AllOf(HasSubstr("weight_shape disagrees"), HasSubstr("levin_test_")));
  tensors = dummy_tensors(int4_config());
  TestTensor& scale = tensor_named(tensors, kExpert + ".weight_scale");
  scale.bytes.assign(scale.bytes.size(), 0);
  EXPECT_THAT(refusal(int4_config(), tensors), HasSubstr("scale is out of range"));
}

}  // namespace
}  // namespace levin::model
