// Quantize, open what was written with the reader, dequantize, compare with the original.
#include "quantize/convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/files.h"
#include "core/progress.h"
#include "core/small_floats.h"
#include "quantize/run.h"

namespace levin::quantize {
namespace {

using checkpoint::Checkpoint;
using checkpoint::QuantAlgo;
using test::TempFolder;
using testing::Contains;
using testing::HasSubstr;

const std::string kTiny = LEVIN_SOURCE_DIR "/models/tiny";

// Scales as if calibration had seen magnitudes up to 10 everywhere.
MeasuredScales pretended_scales(const Plan& plan) {
  MeasuredScales scales;
  for (const LinearPlan& linear : plan.linears) {
    if (linear.calibrated()) scales.input_amax[std::string(plan.tensor(linear).module())] = 10.0;
  }
  for (const KvPlan& block : plan.kv) {
    scales.key_amax[block.attention] = 4.48;
    scales.value_amax[block.attention] = 8.96;
  }
  return scales;
}

struct Converted {
  Source source;
  Conversion conversion;
  std::shared_ptr<const Checkpoint> checkpoint;
};

// Converts without calibrating into `folder`.
Converted convert_with_pretended_scales(const std::filesystem::path& model,
                                        const std::string& recipe,
                                        const std::filesystem::path& folder) {
  Progress::set_enabled(false);
  Converted result;
  result.source = open_source(model, recipe, model::LoadFormat::kAuto);
  ProgressFile progress(folder, "identity", false);
  ConvertSettings settings;
  settings.chunk_bytes = 100'000;  // several pieces per matrix
  settings.producer_version = "test";
  convert(*result.source.checkpoint, result.source.plan, pretended_scales(result.source.plan),
          settings, progress);
  result.conversion = conversion_of(*result.source.checkpoint, result.source.plan, progress);
  result.checkpoint = Checkpoint::open(progress.files());
  return result;
}

double relative_rms(const std::vector<float>& exact, const std::vector<float>& stored) {
  double error = 0;
  double power = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const double difference = double{exact[i]} - double{stored[i]};
    error += difference * difference;
    power += double{exact[i]} * double{exact[i]};
  }
  return std::sqrt(error / power);
}

// Expected relative RMS error of trained weights, within 15 %: the codec tests have the exact
// figures for Gaussian ones.
double expected_error(const LinearPlan& linear) {
  switch (linear.quant.algo) {
    case QuantAlgo::kFp8:
    case QuantAlgo::kFp8PerChannelPerToken:
      return 0.026;
    case QuantAlgo::kInt4Packed:
      return 0.103;
    case QuantAlgo::kNvfp4:
    case QuantAlgo::kW4A16Nvfp4:
      return linear.policy == codec::Nvfp4Policy::kFourOverSix ? 0.087
             : linear.policy == codec::Nvfp4Policy::kMse       ? 0.082
                                                               : 0.095;
    case QuantAlgo::kNone:
      return 0;
  }
  return 0;
}

// What each place says, read alone, is the plan.
void expect_every_place_tells_the_plan(const Converted& converted) {
  const auto files = converted.checkpoint->folder();
  const nlohmann::json config = read_json(files / "config.json");
  std::vector<checkpoint::QuantMetadata> places;
  places.push_back(checkpoint::merge_quant_metadata(config, nullptr));
  if (converted.source.plan.dialect == model::Dialect::kModelOpt) {
    nlohmann::json bare = config;
    bare.erase("quantization_config");
    places.push_back(
        checkpoint::merge_quant_metadata(bare, read_json(files / "hf_quant_config.json")));
    nlohmann::json groups = config;
    groups["quantization_config"].erase("quantized_layers");
    places.push_back(checkpoint::merge_quant_metadata(groups, nullptr));
  } else {
    EXPECT_FALSE(std::filesystem::exists(files / "hf_quant_config.json"));
  }
  for (const checkpoint::QuantMetadata& place : places) {
    EXPECT_TRUE(place.contradictions.empty());
    EXPECT_EQ(place.kv_cache, converted.source.plan.kv_cache());
    for (const LinearPlan& linear : converted.source.plan.linears) {
      const std::string module(converted.source.plan.tensor(linear).module());
      EXPECT_EQ(place.for_module(module), linear.quant) << module;
    }
    for (const char* kept : {"backbone.embeddings", "backbone.layers.1.mixer.gate",
                             "backbone.layers.0.mixer.conv1d"}) {
      EXPECT_EQ(place.for_module(kept), checkpoint::ModuleQuant{}) << kept;
    }
  }
}

class EveryRecipe : public testing::TestWithParam<std::string> {};

TEST_P(EveryRecipe, RoundTripsThroughTheReader) {
  const TempFolder folder;
  const Converted converted = convert_with_pretended_scales(kTiny, GetParam(), folder.path());
  const Plan& plan = converted.source.plan;
  const Checkpoint& source = *converted.source.checkpoint;
  EXPECT_TRUE(converted.checkpoint->quantization().contradictions.empty());
  EXPECT_TRUE(converted.checkpoint->quantization().warnings.empty());
  expect_every_place_tells_the_plan(converted);

  // Binding accounts for every tensor, its type and shape, and every scale's range.
  const auto model = model::bind_model(converted.checkpoint);
  std::map<std::string, const model::Linear*> written;
  for (const model::Linear* linear : model->linears()) written[linear->name] = linear;

  std::size_t extra = 0;
  for (const LinearPlan& linear : plan.linears) {
    const model::TensorPlan& tensor = plan.tensor(linear);
    SCOPED_TRACE(tensor.name);
    const model::Linear& stored = *written.at(std::string(tensor.module()));
    EXPECT_EQ(stored.format, model::weight_format(linear.quant));
    EXPECT_EQ(stored.activation, model::activation_format(linear.quant));
    if (linear.quant.algo == QuantAlgo::kNone) {
      const TensorView before = source.view(tensor.name);
      const TensorView after = converted.checkpoint->view(tensor.name);
      EXPECT_EQ(before.dtype, after.dtype);
      EXPECT_TRUE(std::equal(before.bytes.begin(), before.bytes.end(), after.bytes.begin(),
                             after.bytes.end()));
      continue;
    }
    const double expected = expected_error(linear);
    EXPECT_NEAR(
        relative_rms(to_float(source.view(tensor.name), tensor.name), model::dequantize(stored)),
        expected, 0.15 * expected);
    if (linear.calibrated()) {
      const float divisor = linear.quant.algo == QuantAlgo::kFp8 ? 448.0F : 2688.0F;
      EXPECT_FLOAT_EQ(stored.input_scale, 10.0F / divisor);
    }
    extra += linear.quant.algo == QuantAlgo::kNvfp4                   ? 3
             : linear.quant.algo == QuantAlgo::kFp8PerChannelPerToken ? 1
                                                                      : 2;
  }
  for (const KvPlan& block : plan.kv) extra += block.scale == KvScale::kCalibrated ? 2 : 0;
  EXPECT_EQ(converted.checkpoint->tensors().size(), source.tensors().size() + extra);
  EXPECT_EQ(converted.conversion.tensors_written,
            static_cast<int64_t>(converted.checkpoint->tensors().size()));
  EXPECT_EQ(converted.conversion.tensor_bytes_written, converted.checkpoint->total_bytes());
  EXPECT_EQ(output_bytes(source, plan), converted.checkpoint->total_bytes());
  int64_t planned = 0;
  for (const ClassSize& size : class_sizes(plan, &source)) planned += size.bytes_after;
  EXPECT_EQ(planned, static_cast<int64_t>(converted.checkpoint->total_bytes()));
}

INSTANTIATE_TEST_SUITE_P(All, EveryRecipe, testing::ValuesIn(shipped_recipes()),
                         [](const testing::TestParamInfo<std::string>& recipe) {
                           std::string name = recipe.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

constexpr const char* kSmallRecipe = R"(
quantize:
  quant_cfg:
    - {quantizer_name: '*', enable: false}
    - quantizer_name: '*weight_quantizer'
      cfg: {num_bits: e2m1, block_sizes: {-1: 16, type: dynamic, scale_bits: e4m3}}
)";

// A small model with `change` applied to its tensors.
class SmallModel {
 public:
  explicit SmallModel(const std::function<void(std::vector<test::TestTensor>&)>& change,
                      const std::string& recipe = kSmallRecipe) {
    std::vector<test::TestTensor> tensors = test::dummy_tensors(test::small_config());
    change(tensors);
    test::write_checkpoint(folder_.path(), test::small_config(), tensors);
    test::write_file(recipe_folder_ / "r.yaml", recipe);
  }
  Converted converted() const {
    return convert_with_pretended_scales(folder_.path(), recipe_folder_ / "r.yaml", out_.path());
  }

 private:
  TempFolder folder_;
  TempFolder recipe_folder_;
  TempFolder out_;
};

constexpr const char* kQProj = "backbone.layers.2.mixer.q_proj";
constexpr const char* kKProj = "backbone.layers.2.mixer.k_proj";
constexpr const char* kVProj = "backbone.layers.2.mixer.v_proj";

float scalar(const Checkpoint& checkpoint, const std::string& name) {
  const TensorView view = checkpoint.view(name);
  EXPECT_TRUE(view.shape.empty()) << name;
  EXPECT_EQ(view.dtype, DType::kF32) << name;
  return view.as<float>()[0];
}

TEST(Convert, QueriesKeysAndValuesShareOneGlobalScale) {
  const SmallModel model([](auto& tensors) {
    auto& keys = test::tensor_named(tensors, std::string(kKProj) + ".weight");
    const uint16_t big = float_to_bf16(50.0F);
    std::memcpy(keys.bytes.data(), &big, sizeof(big));
  });
  const Converted converted = model.converted();
  const float expected = 50.0F / 2688.0F;
  for (const char* module : {kQProj, kKProj, kVProj}) {
    EXPECT_FLOAT_EQ(scalar(*converted.checkpoint, std::string(module) + ".weight_scale_2"),
                    expected);
  }
  EXPECT_NE(scalar(*converted.checkpoint, "backbone.layers.2.mixer.o_proj.weight_scale_2"),
            expected);
}

TEST(Convert, AllZeroWeightsAreWrittenAndMentioned) {
  const std::string module = "backbone.layers.1.mixer.experts.2.down_proj";
  const SmallModel model([&](auto& tensors) {
    auto& tensor = test::tensor_named(tensors, module + ".weight");
    std::fill(tensor.bytes.begin(), tensor.bytes.end(), '\0');
  });
  const Converted converted = model.converted();
  EXPECT_THAT(converted.conversion.warnings, Contains(HasSubstr(module)));
  EXPECT_EQ(scalar(*converted.checkpoint, module + ".weight_scale_2"), 1.0F);
  for (const uint8_t scale : converted.checkpoint->view(module + ".weight_scale").as<uint8_t>()) {
    EXPECT_EQ(scale, 0x38);
  }
  EXPECT_NO_THROW(model::bind_model(converted.checkpoint));
}

TEST(Convert, WeightsThatAreNotNumbersAreRefused) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 3e38F}) {
    const SmallModel model([&](auto& tensors) {
      auto& tensor = test::tensor_named(tensors, "lm_head.weight");
      const uint16_t bits = float_to_bf16(bad);
      std::memcpy(tensor.bytes.data() + 2 * 65, &bits, sizeof(bits));
    });
    const Error error = test::error_of([&] { model.converted(); });
    EXPECT_THAT(error.what(), HasSubstr("lm_head.weight"));
    EXPECT_EQ(error.exit_code(), ExitCode::kBadInput);
  }
}

TEST(Convert, ConstantAmaxNeedsNoCalibration) {
  const SmallModel model([](auto&) {}, R"(
quantize:
  quant_cfg:
    - {quantizer_name: '*', enable: false}
    - quantizer_name: 'lm_head.*weight_quantizer'
      cfg: {num_bits: e2m1, block_sizes: {-1: 16, type: dynamic, scale_bits: e4m3}}
    - quantizer_name: 'lm_head.*input_quantizer'
      cfg: {num_bits: e2m1, block_sizes: {-1: 16, type: dynamic, scale_bits: e4m3}, constant_amax: 2688.0}
)");
  const Converted converted = model.converted();
  EXPECT_FALSE(converted.source.plan.needs_calibration());
  EXPECT_EQ(scalar(*converted.checkpoint, "lm_head.input_scale"), 1.0F);
}

TEST(Convert, Fp8PerChannelAndInt4OfOtherGroupsRoundTrip) {
  const std::string per_channel = R"(
quantize:
  quant_cfg:
    - {quantizer_name: '*', enable: false}
    - {quantizer_name: '*weight_quantizer', cfg: {num_bits: e4m3, axis: 0}}
    - {quantizer_name: '*input_quantizer', cfg: {num_bits: e4m3, type: dynamic, block_sizes: {-1: null}}}
)";
  const std::string int4 = R"(
quantize:
  quant_cfg:
    - {quantizer_name: '*', enable: false}
    - {quantizer_name: '*weight_quantizer', cfg: {num_bits: 4, block_sizes: {-1: 32, type: static}}}
)";
  for (const std::string& recipe : {per_channel, int4}) {
    const SmallModel small([](auto&) {}, recipe);
    const Converted converted = small.converted();
    const auto model = model::bind_model(converted.checkpoint);
    const std::vector<float> original =
        to_float(converted.source.checkpoint->view("lm_head.weight"), "lm_head");
    const double error = relative_rms(original, model::dequantize(model->lm_head));
    EXPECT_LT(error, recipe == int4 ? 0.11 : 0.03);
    EXPECT_GT(error, recipe == int4 ? 0.08 : 0.015);
  }
}

TEST(Convert, WrapperPrefixAndOtherModalitiesSurvive) {
  TempFolder folder;
  nlohmann::json config = {{"model_type", "nemotron_h_vl"}, {"llm_config", test::small_config()}};
  std::vector<test::TestTensor> tensors = test::dummy_tensors(test::small_config());
  for (test::TestTensor& tensor : tensors) tensor.name = "language_model." + tensor.name;
  tensors.push_back(test::filled_tensor("vision_model.patch.weight", DType::kBF16, {8, 8}));
  test::write_checkpoint(folder.path(), config, tensors);
  TempFolder recipes;
  test::write_file(recipes / "r.yaml", kSmallRecipe);
  TempFolder out;
  const Converted converted =
      convert_with_pretended_scales(folder.path(), recipes / "r.yaml", out.path());
  const auto* head = converted.checkpoint->find("lm_head.weight_scale_2");
  ASSERT_NE(head, nullptr);
  EXPECT_EQ(head->stored_name, "language_model.lm_head.weight_scale_2");
  EXPECT_NE(converted.checkpoint->find("vision_model.patch.weight"), nullptr);
  EXPECT_TRUE(converted.checkpoint->quantization().contradictions.empty());
  EXPECT_NO_THROW(model::bind_model(converted.checkpoint));
}

TEST(Convert, MergedExpertsAreWrittenOneByOne) {
  TempFolder folder;
  std::vector<test::TestTensor> merged;
  for (const test::TestTensor& tensor : test::dummy_tensors(test::small_config())) {
    std::string name = tensor.name;
    const std::size_t at = name.find(".experts.");
    if (at == std::string::npos) {
      merged.push_back(tensor);
      continue;
    }
    const std::size_t end = name.find('.', at + 9);
    name = name.substr(0, at + 9) + name.substr(end + 1, name.rfind('.') - end - 1);
    auto place = std::find_if(merged.begin(), merged.end(),
                              [&](const test::TestTensor& other) { return other.name == name; });
    if (place == merged.end()) {
      merged.push_back({name, tensor.dtype, {0, tensor.shape[0], tensor.shape[1]}, {}});
      place = merged.end() - 1;
    }
    ++place->shape[0];
    place->bytes += tensor.bytes;
  }
  test::write_checkpoint(folder.path(), test::small_config(), merged);
  TempFolder recipes;
  test::write_file(recipes / "r.yaml", kSmallRecipe);
  TempFolder out;
  const Converted converted =
      convert_with_pretended_scales(folder.path(), recipes / "r.yaml", out.path());
  EXPECT_NE(converted.checkpoint->find("backbone.layers.1.mixer.experts.3.up_proj.weight_scale_2"),
            nullptr);
  EXPECT_NO_THROW(model::bind_model(converted.checkpoint));
}

}  // namespace
}  // namespace levin::quantize
