// Binding small checkpoints that are right, and refusing those that are wrong in one way.
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

std::shared_ptr<const Model> load(const json& config, const Tensors& tensors,
                                  const BindOptions& options = {}) {
  const test::TempFolder folder;
  test::write_checkpoint(folder.path(), config, tensors);
  return load_model(folder.path(), LoadFormat::kAuto, options);
}

std::string refusal(const json& config, const Tensors& tensors) {
  return test::error_of([&] { load(config, tensors); }).what();
}

// The small model with `change` applied to its tensors.
std::string refusal(const std::function<void(Tensors&)>& change) {
  Tensors tensors = dummy_tensors(small_config());
  change(tensors);
  return refusal(small_config(), tensors);
}

std::vector<ErrorParts> problems_of(const json& config, const Tensors& tensors) {
  const test::TempFolder folder;
  test::write_checkpoint(folder.path(), config, tensors);
  const auto checkpoint = open_checkpoint(folder.path(), LoadFormat::kAuto);
  return audit(parse_config(checkpoint->config(), "config.json"), *checkpoint).problems;
}

constexpr const char* kExpertUp = "backbone.layers.1.mixer.experts.2.up_proj";

TEST(Bind, SmallModelWithEveryBlock) {
  const auto model = load(small_config(), dummy_tensors(small_config()));
  ASSERT_EQ(model->layers.size(), 5U);
  EXPECT_TRUE(std::holds_alternative<MambaBlock>(model->layers[0].mixer));
  EXPECT_TRUE(std::holds_alternative<MoeBlock>(model->layers[1].mixer));
  EXPECT_TRUE(std::holds_alternative<AttentionBlock>(model->layers[2].mixer));
  EXPECT_TRUE(std::holds_alternative<MlpBlock>(model->layers[3].mixer));
  EXPECT_EQ(std::get<MlpBlock>(model->layers[3].mixer).up_proj.out, 96);
  ASSERT_TRUE(model->mtp.has_value());
  EXPECT_EQ(model->mtp->eh_proj.in, 128);
  EXPECT_EQ(model->mtp->layers.size(), 2U);
}

TEST(Bind, AIsMinusExpOfALog) {
  Tensors tensors = dummy_tensors(small_config());
  tensor_named(tensors, "backbone.layers.0.mixer.A_log") = make_tensor<float>(
      "backbone.layers.0.mixer.A_log", DType::kF32, {4}, {0.0F, 1.0F, -1.0F, 2.0F});
  const auto model = load(small_config(), tensors);
  const auto& a = std::get<MambaBlock>(model->layers[0].mixer).a;
  EXPECT_FLOAT_EQ(a[0], -1.0F);
  EXPECT_FLOAT_EQ(a[3], -std::exp(2.0F));
}

// Inventory accounting: every tensor is needed, and none beyond them is accepted.
TEST(Inventory, EveryMissingTensorIsNamed) {
  const Tensors tensors = dummy_tensors(small_config());
  for (const TestTensor& tensor : tensors) {
    Tensors without = tensors;
    erase_tensor(without, tensor.name);
    EXPECT_THAT(refusal(small_config(), without),
                AllOf(HasSubstr("tensor is missing"), HasSubstr(tensor.name)));
  }
}

TEST(Inventory, EverySurplusTensorIsNamed) {
  for (const std::string name :
       {"backbone.layers.5.norm.weight", "backbone.layers.0.mixer.in_proj.bias",
        "backbone.layers.1.mixer.experts.4.up_proj.weight", "backbone.layers.0.mixer.weight_scale",
        "rotary.inv_freq", "mtp.layers.2.norm.weight", "lm_head.bias",
        "backbone.layers.1.mixer.fc1_latent_proj.weight"}) {
    EXPECT_THAT(refusal([&](Tensors& tensors) {
                  tensors.push_back(filled_tensor(name, DType::kBF16, {2}));
                }),
                AllOf(HasSubstr("not part of the model"), HasSubstr(name)));
  }
}

TEST(Inventory, EveryWrongShapeIsNamed) {
  const Tensors tensors = dummy_tensors(small_config());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    Tensors wrong = tensors;
    Shape shape = wrong[i].shape;
    shape.back() += 1;
    wrong[i] = filled_tensor(wrong[i].name, wrong[i].dtype, shape);
    EXPECT_THAT(refusal(small_config(), wrong),
                AllOf(HasSubstr("wrong shape"), HasSubstr(tensors[i].name)));
  }
}

TEST(Inventory, EveryWrongTypeIsNamed) {
  const Tensors tensors = dummy_tensors(small_config());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    for (const DType dtype : {DType::kI8, DType::kF64, DType::kF8E5M2}) {
      Tensors wrong = tensors;
      wrong[i] = filled_tensor(wrong[i].name, dtype, wrong[i].shape);
      EXPECT_THROW(load(small_config(), wrong), Error) << wrong[i].name;
    }
  }
}

TEST(Inventory, FloatTypesMayDiffer) {
  Tensors tensors = dummy_tensors(small_config());
  for (const char* name : {"backbone.layers.0.mixer.D", "backbone.norm_f.weight",
                           "backbone.layers.1.mixer.gate.weight", "lm_head.weight"}) {
    TestTensor& tensor = tensor_named(tensors, name);
    tensor = filled_tensor(name, DType::kF32, tensor.shape);
  }
  const auto model = load(small_config(), tensors);
  EXPECT_EQ(std::get<MoeBlock>(model->layers[1].mixer).gate.format, WeightFormat::kF32);
  EXPECT_EQ(model->lm_head.format, WeightFormat::kF32);
  TestTensor& gate = tensor_named(tensors, "backbone.layers.1.mixer.gate.weight");
  gate = filled_tensor(gate.name, DType::kF16, gate.shape);
  EXPECT_THAT(refusal(small_config(), tensors), HasSubstr("BF16 or F32"));
}

TEST(Inventory, SameFaultOfManyExpertsIsOneProblem) {
  Tensors tensors = dummy_tensors(small_config());
  for (const char* expert : {"0", "2", "3"}) {
    erase_tensor(tensors,
                 std::string("backbone.layers.4.mixer.experts.") + expert + ".down_proj.weight");
  }
  const auto problems = problems_of(small_config(), tensors);
  ASSERT_EQ(problems.size(), 1U);
  EXPECT_EQ(problems[0].where, "backbone.layers.4.mixer.experts.{0,2,3}.down_proj.weight");
}

TEST(Inventory, ForeignTensorsAreListedUpToALimit) {
  Tensors tensors = dummy_tensors(small_config());
  for (int i = 0; i < 1500; ++i) {
    tensors.push_back(filled_tensor("foreign." + std::to_string(i), DType::kU8, {1}));
  }
  const auto problems = problems_of(small_config(), tensors);
  ASSERT_EQ(problems.size(), 1001U);
  EXPECT_EQ(problems.back().found, "500 tensors");
}

TEST(Inventory, TheFirstProblemTellsHowManyThereAre) {
  EXPECT_THAT(refusal([](Tensors& tensors) {
                erase_tensor(tensors, "lm_head.weight");
                erase_tensor(tensors, "backbone.norm_f.weight");
                erase_tensor(tensors, "backbone.layers.0.mixer.D");
              }),
              HasSubstr("2 more problems"));
}

TEST(Mtp, WholeHeadMayBeAbsentPartOfItNot) {
  Tensors tensors = dummy_tensors(small_config());
  std::erase_if(tensors, [](const TestTensor& t) { return t.name.starts_with("mtp."); });
  const auto model = load(small_config(), tensors);
  EXPECT_FALSE(model->mtp.has_value());
  EXPECT_TRUE(model->config.mtp_layers.empty());
}

TEST(Mtp, IsIgnoredWhenNotWanted) {
  Tensors tensors = dummy_tensors(small_config());
  erase_tensor(tensors, "mtp.layers.0.enorm.weight");
  EXPECT_THROW(load(small_config(), tensors), Error);
  EXPECT_FALSE(load(small_config(), tensors, {.mtp = false})->mtp.has_value());
}

TEST(Mtp, TensorsWithoutAHeadInTheConfigurationAreRefused) {
  json config = small_config();
  config["num_nextn_predict_layers"] = 0;
  EXPECT_THAT(refusal(config, dummy_tensors(small_config())),
              HasSubstr("num_nextn_predict_layers"));
}

TEST(Mtp, LatentHead) {
  json config = small_config();
  config["moe_latent_size"] = 32;
  const auto model = load(config, dummy_tensors(config));
  const auto& moe = std::get<MoeBlock>(model->mtp->layers[1].mixer);
  EXPECT_EQ(moe.fc1_latent.out, 32);
  EXPECT_EQ(moe.fc2_latent.out, 64);
  EXPECT_EQ(moe.experts[0].up_proj.in, 32);
  EXPECT_EQ(moe.shared->up_proj.in, 64);
  Tensors tensors = dummy_tensors(config);
  erase_tensor(tensors, "mtp.layers.1.mixer.fc2_latent_proj.weight");
  EXPECT_THAT(refusal(config, tensors), HasSubstr("fc2_latent_proj"));
}

TEST(Biases, AreBoundWhereTheConfigurationHasThem) {
  json config = small_config();
  for (const char* key : {"attention_bias", "mlp_bias", "use_bias"}) config[key] = true;
  const Tensors tensors = dummy_tensors(config);
  const auto model = load(config, tensors);
  EXPECT_EQ(std::get<MambaBlock>(model->layers[0].mixer).in_proj.bias.size(), 132U + 64);
  EXPECT_EQ(std::get<AttentionBlock>(model->layers[2].mixer).k_proj.bias.size(), 32U);
  EXPECT_EQ(std::get<MlpBlock>(model->layers[3].mixer).down_proj.bias.size(), 64U);
  EXPECT_EQ(std::get<MoeBlock>(model->layers[1].mixer).shared->up_proj.bias.size(), 64U);
  // Experts' biases may be there or not.
  EXPECT_TRUE(std::get<MoeBlock>(model->layers[1].mixer).experts[0].up_proj.bias.empty());
  Tensors with_expert_bias = tensors;
  with_expert_bias.push_back(filled_tensor(std::string(kExpertUp) + ".bias", DType::kBF16, {32}));
  EXPECT_EQ(std::get<MoeBlock>(load(config, with_expert_bias)->layers[1].mixer)
                .experts[2]
                .up_proj.bias.size(),
            32U);
  Tensors without = tensors;
  erase_tensor(without, "backbone.layers.2.mixer.q_proj.bias");
  EXPECT_THAT(refusal(config, without), HasSubstr("q_proj.bias"));
}

TEST(Biases, ConvolutionWithoutBias) {
  json config = small_config();
  config["use_conv_bias"] = false;
  const Tensors tensors = dummy_tensors(config);
  for (const TestTensor& tensor : tensors) EXPECT_FALSE(tensor.name.ends_with("conv1d.bias"));
  const auto model = load(config, tensors);
  const auto& mamba = std::get<MambaBlock>(model->layers[0].mixer);
  EXPECT_EQ(mamba.conv_bias, std::vector<float>(128, 0.0F));
}

TEST(Tied, HeadIsTheEmbeddings) {
  json config = small_config();
  config["tie_word_embeddings"] = true;
  Tensors tensors = dummy_tensors(config);
  const auto model = load(config, tensors);
  EXPECT_EQ(model->lm_head.weight.bytes.data(), model->embeddings.weight.bytes.data());
  EXPECT_EQ(model->linears().front(), &model->embeddings);
  for (const Linear* linear : model->linears()) EXPECT_NE(linear, &model->lm_head);
  // A repeated head is accepted when it is the same.
  TestTensor head = tensor_named(tensors, "backbone.embeddings.weight");
  head.name = "lm_head.weight";
  tensors.push_back(head);
  EXPECT_NO_THROW(load(config, tensors));
  tensors.back().bytes[5] ^= 1;
  EXPECT_THAT(refusal(config, tensors), HasSubstr("differs from the embeddings"));
  tensors.back() = filled_tensor("lm_head.weight", DType::kF32, {96, 64});
  EXPECT_THAT(refusal(config, tensors), HasSubstr("wrong type"));
}

TEST(Layouts, MergedExpertsAndNewNames) {
  const Tensors plain = dummy_tensors(small_config());
  // As transformers >= 5 saves: model.*, one 3-D tensor for the experts of a layer.
  Tensors merged;
  std::map<std::string, TestTensor> stacks;
  for (TestTensor tensor : plain) {
    const std::size_t at = tensor.name.find(".experts.");
    if (at != std::string::npos) {
      const bool up = tensor.name.find("up_proj") != std::string::npos;
      const std::string name =
          tensor.name.substr(0, at) + ".experts." + (up ? "up_proj" : "down_proj");
      TestTensor& stack = stacks[name];
      stack.name = name;
      stack.dtype = tensor.dtype;
      stack.shape = {4, tensor.shape[0], tensor.shape[1]};
      stack.bytes += tensor.bytes;
    } else {
      merged.push_back(tensor);
    }
  }
  for (const auto& [name, stack] : stacks) merged.push_back(stack);
  for (TestTensor& tensor : merged) {
    if (tensor.name.starts_with("backbone.")) tensor.name.replace(0, 9, "model.");
  }
  const auto a = load(small_config(), plain);
  const auto b = load(small_config(), merged);
  ASSERT_EQ(a->linears().size(), b->linears().size());
  for (std::size_t i = 0; i < a->linears().size(); ++i) {
    EXPECT_EQ(a->linears()[i]->name, b->linears()[i]->name);
    EXPECT_EQ(dequantize(*a->linears()[i]), dequantize(*b->linears()[i]));
  }
}

TEST(Layouts, MultimodalWrapperLeavesOtherModalitiesAlone) {
  const json config = {{"model_type", "nemotron_omni"}, {"llm_config", small_config()}};
  Tensors tensors = dummy_tensors(small_config());
  for (TestTensor& tensor : tensors) tensor.name = "language_model." + tensor.name;
  tensors.push_back(filled_tensor("vision_model.patch.weight", DType::kBF16, {3}));
  EXPECT_NO_THROW(load(config, tensors));
  tensors.push_back(filled_tensor("language_model.backbone.extra.weight", DType::kBF16, {3}));
  EXPECT_THAT(refusal(config, tensors), HasSubstr("backbone.extra.weight"));
}

// Values
TEST(Values, NanAndInfinityInVectorsAndMatrices) {
  for (const char* name :
       {"backbone.norm_f.weight", "backbone.layers.0.mixer.A_log", "backbone.layers.0.mixer.D",
        "backbone.layers.0.mixer.dt_bias", "backbone.layers.0.mixer.conv1d.weight",
        "backbone.layers.1.mixer.gate.weight", "mtp.layers.0.hnorm.weight", "lm_head.weight",
        "backbone.layers.1.mixer.experts.2.up_proj.weight", "backbone.embeddings.weight"}) {
    for (const uint16_t bits : {uint16_t{0x7f80}, uint16_t{0xff80}, uint16_t{0x7fc0}}) {
      const std::string message = refusal([&](Tensors& tensors) {
        TestTensor& tensor = tensor_named(tensors, name);
        std::memcpy(tensor.bytes.data() + 2, &bits, 2);
      });
      EXPECT_THAT(message, AllOf(HasSubstr("not finite"), HasSubstr(name), HasSubstr("element 1"),
                                 HasSubstr("levin_test_")));  // the folder
    }
  }
}

TEST(Values, MatricesAreNotReadWhenOnlyScalesAreChecked) {
  Tensors tensors = dummy_tensors(small_config());
  TestTensor& head = tensor_named(tensors, "lm_head.weight");
  head.bytes.assign(head.bytes.size(), '\xff');
  EXPECT_NO_THROW(load(small_config(), tensors, {.check = ValueCheck::kScales}));
  EXPECT_THROW(load(small_config(), tensors, {.check = ValueCheck::kWeights}), Error);
}

TEST(Values, ALogThatOverflows) {
  EXPECT_THAT(refusal([](Tensors& tensors) {
                tensor_named(tensors, "backbone.layers.0.mixer.A_log") = make_tensor<float>(
                    "backbone.layers.0.mixer.A_log", DType::kF32, {4}, {0.0F, 0.0F, 1000.0F, 0.0F});
              }),
              AllOf(HasSubstr("A_log is too large"), HasSubstr("element 2")));
}

}  // namespace
}  // namespace levin::model
