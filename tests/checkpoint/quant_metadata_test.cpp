#include "checkpoint/quant_metadata.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/tiny_checkpoint.h"

namespace levin::checkpoint {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::string kInProj = "backbone.layers.0.mixer.in_proj";
const std::string kUp = "backbone.layers.1.mixer.experts.0.up_proj";
const std::string kMtpUp = "mtp.layers.1.mixer.experts.0.up_proj";

// config.json of a mixed ModelOpt checkpoint: FP8 Mamba, NVFP4 experts, weight-only head.
json mixed_config() {
  return json::parse(R"({"quantization_config": {
    "config_groups": {
      "group_0": {"input_activations": {"dynamic": false, "num_bits": 8, "type": "float"},
                  "weights": {"dynamic": false, "num_bits": 8, "type": "float"},
                  "targets": ["backbone.layers.0.mixer.in_proj"]},
      "group_1": {"input_activations": {"dynamic": false, "num_bits": 4, "type": "float",
                                        "group_size": 16},
                  "weights": {"dynamic": false, "num_bits": 4, "type": "float", "group_size": 16},
                  "targets": ["backbone.layers.1.mixer.experts.0.up_proj",
                              "mtp.layers.1.mixer.experts.0.up_proj"]},
      "group_2": {"weights": {"dynamic": false, "num_bits": 4, "type": "float", "group_size": 16},
                  "targets": ["lm_head"]}},
    "quantized_layers": {
      "backbone.layers.0.mixer.in_proj": {"quant_algo": "FP8"},
      "backbone.layers.1.mixer.experts.0.up_proj": {"quant_algo": "NVFP4", "group_size": 16},
      "mtp.layers.1.mixer.experts.0.up_proj": {"quant_algo": "NVFP4", "group_size": 16},
      "lm_head": {"quant_algo": "W4A16_NVFP4", "group_size": 16}},
    "ignore": [], "quant_algo": "MIXED_PRECISION",
    "kv_cache_scheme": {"dynamic": false, "num_bits": 8, "type": "float"},
    "producer": {"name": "modelopt", "version": "0.47.0"}, "quant_method": "modelopt"}})");
}

// hf_quant_config.json of the same checkpoint.
json mixed_hf() {
  json hf;
  const json config = mixed_config()["quantization_config"];
  hf["producer"] = config["producer"];
  hf["quantization"] = {{"quant_algo", "MIXED_PRECISION"},
                        {"kv_cache_quant_algo", "FP8"},
                        {"quantized_layers", config["quantized_layers"]},
                        {"exclude_modules", json::array()}};
  return hf;
}

json& layers_of(json& config) {
  return config["quantization_config"]["quantized_layers"];
}

const ModuleQuant kNvfp4 = {QuantAlgo::kNvfp4, 16};
const ModuleQuant kFp8 = {QuantAlgo::kFp8, 0};

std::string refusal(const json& config, const json& hf = nullptr) {
  return test::error_of([&] { merge_quant_metadata(config, hf); }).what();
}

TEST(QuantMetadata, NoMetadataIsNotQuantized) {
  const auto metadata = merge_quant_metadata(json::object(), nullptr);
  EXPECT_EQ(metadata.method, "");
  EXPECT_EQ(metadata.kv_cache, KvCacheQuant::kNone);
  EXPECT_EQ(metadata.for_module(kUp).algo, QuantAlgo::kNone);
  EXPECT_EQ(merge_quant_metadata({{"quantization_config", nullptr}}, nullptr).method, "");
}

TEST(ModelOpt, ThreePlacesThatAgree) {
  const auto metadata = merge_quant_metadata(mixed_config(), mixed_hf());
  EXPECT_EQ(metadata.method, "modelopt");
  EXPECT_EQ(metadata.producer, "modelopt 0.47.0");
  EXPECT_EQ(metadata.kv_cache, KvCacheQuant::kFp8);
  EXPECT_THAT(metadata.contradictions, IsEmpty());
  EXPECT_THAT(metadata.warnings, IsEmpty());
  EXPECT_EQ(metadata.for_module(kInProj), kFp8);
  EXPECT_EQ(metadata.for_module(kUp), kNvfp4);
  EXPECT_EQ(metadata.for_module(kMtpUp), kNvfp4);
  EXPECT_EQ(metadata.for_module("lm_head"), (ModuleQuant{QuantAlgo::kW4A16Nvfp4, 16}));
  EXPECT_EQ(metadata.for_module("backbone.layers.0.mixer.out_proj"), ModuleQuant{});
}

TEST(ModelOpt, AnyOnePlaceIsEnough) {
  for (const json& config : {mixed_config(), json::object()}) {
    const auto metadata = merge_quant_metadata(config, config.empty() ? mixed_hf() : json(nullptr));
    EXPECT_THAT(metadata.contradictions, IsEmpty());
    EXPECT_EQ(metadata.for_module(kUp), kNvfp4);
    EXPECT_EQ(metadata.kv_cache, KvCacheQuant::kFp8);
  }
  json groups_only = mixed_config();
  groups_only["quantization_config"].erase("quantized_layers");
  const auto metadata = merge_quant_metadata(groups_only, nullptr);
  EXPECT_EQ(metadata.for_module(kUp), kNvfp4);
  EXPECT_EQ(metadata.for_module(kInProj), kFp8);
}

TEST(ModelOpt, FlatHfQuantConfig) {
  json flat = mixed_hf()["quantization"];
  flat["producer"] = {{"name", "modelopt"}};
  const auto metadata = merge_quant_metadata(json::object(), flat);
  EXPECT_EQ(metadata.for_module(kUp), kNvfp4);
  EXPECT_EQ(metadata.producer, "modelopt");
}

TEST(ModelOpt, UniformWithExclusions) {
  const json hf = {
      {"quantization",
       {{"quant_algo", "NVFP4"},
        {"group_size", 16},
        {"kv_cache_quant_algo", nullptr},
        {"exclude_modules", {"lm_head", "mtp*", "*.mixer.gate", "backbone.layers.1"}}}}};
  const auto metadata = merge_quant_metadata(json::object(), hf);
  EXPECT_EQ(metadata.for_module(kInProj), kNvfp4);
  EXPECT_EQ(metadata.for_module("lm_head").algo, QuantAlgo::kNone);
  EXPECT_EQ(metadata.for_module(kMtpUp).algo, QuantAlgo::kNone);
  EXPECT_EQ(metadata.for_module("backbone.layers.1.mixer.gate").algo, QuantAlgo::kNone);
  // An exact entry is no prefix and no substring.
  EXPECT_EQ(metadata.for_module("backbone.layers.1.mixer.fc1_latent_proj"), kNvfp4);
  EXPECT_EQ(metadata.for_module("backbone.layers.12.mixer.in_proj"), kNvfp4);
}

TEST(ModelOpt, UniformConfigWithLinearTarget) {
  const json config = json::parse(R"({"quantization_config": {"quant_method": "modelopt",
      "quant_algo": "FP8", "ignore": ["lm_head"],
      "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"},
        "input_activations": {"num_bits": 8, "type": "float"}, "targets": ["Linear"]}}}})");
  const auto metadata = merge_quant_metadata(config, nullptr, {"lm_head", kInProj});
  EXPECT_THAT(metadata.contradictions, IsEmpty());
  EXPECT_EQ(metadata.for_module(kInProj), kFp8);
  EXPECT_EQ(metadata.for_module("lm_head").algo, QuantAlgo::kNone);
  json contradictory = config;
  contradictory["quantization_config"]["quant_algo"] = "NVFP4";
  EXPECT_THAT(merge_quant_metadata(contradictory, nullptr, {kInProj}).contradictions,
              Contains(HasSubstr(kInProj)));
}

TEST(ModelOpt, MergedExpertEntryCountsForEachExpert) {
  const json hf = {{"quantization",
                    {{"quant_algo", "MIXED_PRECISION"},
                     {"quantized_layers",
                      {{"model.layers.1.mixer.experts.up_proj", {{"quant_algo", "NVFP4"}}}}}}}};
  const auto metadata = merge_quant_metadata(json::object(), hf);
  EXPECT_EQ(metadata.for_module("backbone.layers.1.mixer.experts.77.up_proj"), kNvfp4);
  EXPECT_EQ(metadata.for_module("backbone.layers.1.mixer.experts.77.down_proj").algo,
            QuantAlgo::kNone);
}

TEST(ModelOpt, NamesAreCanonicalized) {
  json config = mixed_config();
  json layers;
  for (const auto& [name, entry] : layers_of(config).items()) {
    layers["language_model." + name] = entry;
  }
  layers_of(config) = layers;
  const auto metadata = merge_quant_metadata(config, mixed_hf());
  EXPECT_THAT(metadata.contradictions, IsEmpty());
  EXPECT_EQ(metadata.for_module(kUp), kNvfp4);
}

TEST(ModelOpt, MultimodalWrapperMayNestIt) {
  json config;
  config["text_config"] = mixed_config();
  EXPECT_EQ(merge_quant_metadata(config, nullptr).for_module(kUp), kNvfp4);
}

TEST(ModelOpt, TheWrapperMayNotSayOtherwiseThanTheModelInIt) {
  json config = mixed_config();
  config["text_config"] = mixed_config();
  EXPECT_NO_THROW(merge_quant_metadata(config, nullptr));
  layers_of(config["text_config"])["lm_head"] = {{"quant_algo", "FP8"}};
  EXPECT_THAT(refusal(config), AllOf(HasSubstr("two quantization_config disagree"),
                                     HasSubstr("text_config.quantization_config")));
}

TEST(ModelOpt, TwoGroupsMayNotClaimEveryLinear) {
  json config = json::parse(R"({"quantization_config": {
      "quant_method": "modelopt", "quant_algo": "FP8",
      "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "float"},
                                    "targets": ["Linear"]},
                        "group_1": {"weights": {"num_bits": 8, "type": "float"},
                                    "input_activations": {"num_bits": 8, "type": "float"},
                                    "targets": ["Linear"]}}}})");
  EXPECT_THAT(refusal(config),
              AllOf(HasSubstr("two config groups claim the same modules"), HasSubstr("group_1"),
                    HasSubstr("Linear"), HasSubstr("FP8"), HasSubstr("W4A16_NVFP4 (group 16)")));
  json& groups = config["quantization_config"]["config_groups"];
  groups["group_0"] = groups["group_1"];
  EXPECT_NO_THROW(merge_quant_metadata(config, nullptr));
}

TEST(ModelOpt, DisagreementOnAModuleIsAContradiction) {
  json config = mixed_config();
  layers_of(config)["lm_head"]["quant_algo"] = "NVFP4";
  const auto metadata = merge_quant_metadata(config, mixed_hf());
  // Once against config_groups, once against the other file.
  EXPECT_THAT(metadata.contradictions,
              ElementsAre(HasSubstr("lm_head: config.json quantization_config says NVFP4"),
                          HasSubstr("hf_quant_config.json says W4A16_NVFP4")));
}

TEST(ModelOpt, AlgorithmOfAllBesideOthersIsAContradiction) {
  for (const char* algo : {"FP8", "NVFP4", "W4A16_NVFP4"}) {
    json config = mixed_config();
    config["quantization_config"]["quant_algo"] = algo;
    EXPECT_THAT(merge_quant_metadata(config, nullptr).contradictions,
                ::testing::Contains(HasSubstr(std::string("quant_algo ") + algo)));
    EXPECT_THAT(merge_quant_metadata(config, mixed_hf()).contradictions,
                ::testing::Contains(HasSubstr("hf_quant_config.json says MIXED_PRECISION")));
  }
}

TEST(ModelOpt, OneFileAloneIsAWarning) {
  EXPECT_THAT(merge_quant_metadata(json::object(), mixed_hf()).warnings,
              ::testing::Contains(HasSubstr("only hf_quant_config.json")));
}

TEST(ModelOpt, OptionsThatChangeTheWeightsAreRefused) {
  for (const char* key : {"sparsity_config", "transform_config"}) {
    json config = mixed_config();
    config["quantization_config"][key] = json::object();
    EXPECT_NO_THROW(merge_quant_metadata(config, nullptr));
    config["quantization_config"][key] = {{"format", "2:4"}};
    EXPECT_THAT(refusal(config), HasSubstr(key));
  }
}

TEST(ModelOpt, AModuleOnlyOnePlaceListsIsAContradiction) {
  json hf = mixed_hf();
  hf["quantization"]["quantized_layers"].erase(kInProj);
  EXPECT_THAT(merge_quant_metadata(mixed_config(), hf).contradictions,
              ElementsAre(HasSubstr("hf_quant_config.json says not quantized")));
}

TEST(ModelOpt, AStaleIgnoreEntryThatCoversQuantizedModulesIsAContradiction) {
  json config = mixed_config();
  config["quantization_config"]["ignore"] = {"mtp*"};
  EXPECT_THAT(merge_quant_metadata(config, mixed_hf()).contradictions,
              ElementsAre(HasSubstr("ignores \"mtp*\" and quantizes 1")));
}

TEST(ModelOpt, DifferentIgnoreListsMatterWhereTheyMeetAModule) {
  json config = {
      {"quantization_config",
       {{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}, {"ignore", {"lm_head"}}}}};
  const json hf = {{"quantization", {{"quant_algo", "NVFP4"}, {"exclude_modules", {"lm_*"}}}}};
  EXPECT_THAT(merge_quant_metadata(config, hf, {"lm_head", kInProj}).contradictions, IsEmpty());
  config["quantization_config"]["ignore"] = json::array();
  EXPECT_THAT(merge_quant_metadata(config, hf, {"lm_head", kInProj}).contradictions,
              ElementsAre(HasSubstr("lm_head")));
}

TEST(ModelOpt, ThousandsOfContradictionsAreSummedUp) {
  json config = mixed_config();
  json hf = mixed_hf();
  for (int i = 0; i < 5000; ++i) {
    hf["quantization"]["quantized_layers"]["backbone.layers.9.x" + std::to_string(i)] = {
        {"quant_algo", "FP8"}};
  }
  const auto metadata = merge_quant_metadata(config, hf);
  ASSERT_EQ(metadata.contradictions.size(), 21U);
  EXPECT_THAT(metadata.contradictions.back(), HasSubstr("4980 more"));
}

TEST(ModelOpt, KvCacheInOnePlaceIsAWarningAndCounts) {
  json config = mixed_config();
  config["quantization_config"].erase("kv_cache_scheme");
  const auto metadata = merge_quant_metadata(config, mixed_hf());
  EXPECT_EQ(metadata.kv_cache, KvCacheQuant::kFp8);
  EXPECT_THAT(metadata.contradictions, IsEmpty());
  EXPECT_THAT(metadata.warnings, ElementsAre(HasSubstr("hf_quant_config.json only")));
}

TEST(ModelOpt, KvCacheToldDifferentlyIsAContradiction) {
  json hf = mixed_hf();
  hf["quantization"]["kv_cache_quant_algo"] = nullptr;
  EXPECT_THAT(merge_quant_metadata(mixed_config(), hf).contradictions,
              ElementsAre(HasSubstr("KV cache")));
}

TEST(ModelOpt, EntriesThatMatchNothingAreWarnings) {
  json config = mixed_config();
  config["quantization_config"]["ignore"] = {"vision_model*", "backbone.layers.0.mixer.conv1d"};
  const auto metadata = merge_quant_metadata(
      config, nullptr, {kInProj, kUp, "lm_head", "backbone.layers.0.mixer.conv1d"});
  EXPECT_THAT(metadata.contradictions, IsEmpty());
  EXPECT_THAT(metadata.warnings,
              Contains(HasSubstr("quantizes " + kMtpUp + ", which is not in the checkpoint")));
  EXPECT_THAT(metadata.warnings, Contains(HasSubstr("ignores \"vision_model*\"")));
  EXPECT_THAT(metadata.warnings, Not(Contains(HasSubstr("conv1d"))));
}

TEST(ModelOpt, AnEntryMayNameAWholeBlock) {
  json config = mixed_config();
  config["quantization_config"]["ignore"] = {"backbone.layers.5.mixer"};
  const auto metadata =
      merge_quant_metadata(config, nullptr, {"backbone.layers.5.mixer.q_proj", kInProj});
  EXPECT_THAT(metadata.warnings, Not(Contains(HasSubstr("layers.5"))));
}

TEST(ModelOpt, UnknownThingsAreRefusedByName) {
  json config = mixed_config();
  layers_of(config)["lm_head"]["quant_algo"] = "W4A8_AWQ";
  EXPECT_THAT(refusal(config), HasSubstr("W4A8_AWQ"));
  config = mixed_config();
  config["quantization_config"]["quant_method"] = "gptq";
  EXPECT_THAT(refusal(config), HasSubstr("\"gptq\""));
  config["quantization_config"].erase("quant_method");
  EXPECT_THAT(refusal(config), HasSubstr("unsupported quant_method"));
  config = mixed_config();
  layers_of(config)["lm_head"]["group_size"] = 32;
  EXPECT_THAT(refusal(config), HasSubstr("NVFP4 group size"));
  config = mixed_config();
  config["quantization_config"]["kv_cache_scheme"] = "NVFP4";
  EXPECT_THAT(refusal(config), HasSubstr("KV cache"));
  config = mixed_config();
  config["quantization_config"]["pre_quant_scale"] = true;
  EXPECT_THAT(refusal(config), HasSubstr("pre_quant_scale"));
}

TEST(ModelOpt, MixedWithoutLayersIsRefused) {
  EXPECT_THAT(refusal(json::object(), {{"quantization", {{"quant_algo", "MIXED_PRECISION"}}}}),
              HasSubstr("without a list of layers"));
  EXPECT_THAT(refusal({{"quantization_config",
                        {{"quant_method", "modelopt"}, {"quant_algo", "MIXED_PRECISION"}}}}),
              HasSubstr("without a list of layers"));
}

TEST(ModelOpt, WrongTypesAreErrors) {
  for (const char* text :
       {R"({"quantization_config": 7})", R"({"quantization_config": {"quant_method": 7}})",
        R"({"quantization_config": {"quant_method": "modelopt", "quantized_layers": []}})",
        R"({"quantization_config": {"quant_method": "modelopt", "quantized_layers": {"a": 1}}})",
        R"({"quantization_config": {"quant_method": "modelopt", "ignore": "lm_head"}})",
        R"({"quantization_config": {"quant_method": "modelopt", "ignore": [1]}})",
        R"({"quantization_config": {"quant_method": "modelopt", "quant_algo": ["FP8"]}})",
        R"({"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4",
            "group_size": -16}})",
        R"({"quantization_config": {"quant_method": "modelopt", "config_groups": {"g": 1}}})"}) {
    EXPECT_THROW(merge_quant_metadata(json::parse(text), nullptr), Error) << text;
  }
  EXPECT_THROW(merge_quant_metadata(json::object(), json::array()), Error);
}

TEST(ModelOpt, TwoSpellingsOfOneModuleMustAgree) {
  json config = mixed_config();
  layers_of(config)["model.layers.0.mixer.in_proj"] = {{"quant_algo", "NVFP4"}};
  EXPECT_THAT(refusal(config), HasSubstr("names a module twice"));
}

json int4_config() {
  return json::parse(R"({"quantization_config": {
    "quant_method": "compressed-tensors", "version": "0.18.1", "format": "pack-quantized",
    "quantization_status": "compressed", "global_compression_ratio": null,
    "kv_cache_scheme": null, "transform_config": {},
    "config_groups": {"config_group_0": {
      "format": "pack-quantized", "targets": ["Linear"], "input_activations": null,
      "output_activations": null,
      "weights": {"num_bits": 4, "type": "int", "symmetric": true, "strategy": "group",
                  "group_size": 64, "block_structure": null, "dynamic": false, "actorder": null,
                  "observer": "memoryless_minmax", "observer_kwargs": {}, "scale_dtype": null,
                  "zp_dtype": null}}},
    "ignore": ["re:.*\\.gate$", "re:.*\\.conv1d$", "re:.*mtp.*", "lm_head",
               "re:.*\\.embeddings$", "re:.*\\.norm_f$"]}})");
}

json& group_of(json& config) {
  return config["quantization_config"]["config_groups"]["config_group_0"];
}

TEST(CompressedTensors, ProducerIsWhoSaysSo) {
  json config = int4_config();
  config["quantization_config"]["producer"] = {{"name", "levin"}, {"version", "1.2"}};
  EXPECT_EQ(merge_quant_metadata(config, nullptr).producer, "levin 1.2");
}

TEST(CompressedTensors, PackQuantizedInt4) {
  const auto metadata = merge_quant_metadata(int4_config(), nullptr);
  EXPECT_EQ(metadata.method, "compressed-tensors");
  EXPECT_EQ(metadata.format_version, "0.18.1");
  EXPECT_EQ(metadata.producer, "");  // the format says nothing of who wrote it
  EXPECT_EQ(metadata.for_module(kInProj), (ModuleQuant{QuantAlgo::kInt4Packed, 64}));
  for (const char* ignored : {"lm_head", "backbone.layers.1.mixer.gate", "mtp.layers.0.eh_proj"}) {
    EXPECT_EQ(metadata.for_module(ignored).algo, QuantAlgo::kNone) << ignored;
  }
}

TEST(CompressedTensors, TargetsByNameAndPatternFirstMatchWins) {
  json config = int4_config();
  json& groups = config["quantization_config"]["config_groups"];
  groups["config_group_0"]["targets"] = {kInProj, "re:.*experts.*"};
  groups["config_group_1"] = groups["config_group_0"];
  groups["config_group_1"]["weights"]["group_size"] = 32;
  groups["config_group_1"]["targets"] = {"re:.*up_proj$"};
  const auto metadata = merge_quant_metadata(config, nullptr);
  EXPECT_EQ(metadata.for_module(kInProj).group_size, 64);
  EXPECT_EQ(metadata.for_module(kUp).group_size, 64);
  EXPECT_EQ(metadata.for_module("backbone.layers.3.mixer.up_proj").group_size, 32);
  EXPECT_EQ(metadata.for_module("backbone.layers.5.mixer.q_proj").algo, QuantAlgo::kNone);
  // Ignoring comes first.
  EXPECT_EQ(metadata.for_module(kMtpUp).algo, QuantAlgo::kNone);
}

TEST(CompressedTensors, AGroupMayNotHaveAnotherFormatThanAllHave) {
  json config = int4_config();
  json& format = config["quantization_config"]["format"];
  for (const char* fine : {"pack-quantized", "mixed-precision", ""}) {
    format = fine;
    EXPECT_NO_THROW(merge_quant_metadata(config, nullptr)) << fine;
  }
  format = "nvfp4-pack-quantized";
  EXPECT_THAT(refusal(config),
              AllOf(HasSubstr("two formats disagree"), HasSubstr("config_group_0"),
                    HasSubstr("\"pack-quantized\""), HasSubstr("\"nvfp4-pack-quantized\"")));
}

TEST(CompressedTensors, TwoGroupsMayNotClaimTheSameTarget) {
  for (const char* target : {"Linear", "re:.*experts.*", "lm_head"}) {
    json config = int4_config();
    json& groups = config["quantization_config"]["config_groups"];
    groups["config_group_0"]["targets"] = {target, target};
    groups["config_group_1"] = groups["config_group_0"];
    EXPECT_NO_THROW(merge_quant_metadata(config, nullptr)) << target;
    groups["config_group_1"]["weights"]["group_size"] = 32;
    EXPECT_THAT(refusal(config), AllOf(HasSubstr("two config groups claim the same modules"),
                                       HasSubstr("config_group_1"), HasSubstr(target),
                                       HasSubstr("(group 64) and"), HasSubstr("(group 32)")));
  }
}

TEST(CompressedTensors, Nvfp4) {
  json config = int4_config();
  json& group = group_of(config);
  group["format"] = "nvfp4-pack-quantized";
  config["quantization_config"]["format"] = "nvfp4-pack-quantized";
  group["weights"] = {{"num_bits", 4},
                      {"type", "float"},
                      {"strategy", "tensor_group"},
                      {"group_size", 16},
                      {"symmetric", true}};
  EXPECT_EQ(merge_quant_metadata(config, nullptr).for_module(kUp).algo, QuantAlgo::kW4A16Nvfp4);
  group["input_activations"] = {{"num_bits", 4},
                                {"type", "float"},
                                {"strategy", "tensor_group"},
                                {"group_size", 16},
                                {"dynamic", "local"}};
  EXPECT_EQ(merge_quant_metadata(config, nullptr).for_module(kUp), kNvfp4);
  group["weights"]["group_size"] = 32;
  EXPECT_THAT(refusal(config), HasSubstr("group_size"));
}

TEST(CompressedTensors, OtherFormatsAndSettingsAreRefusedByName) {
  const auto refused = [](const std::function<void(json&)>& change) {
    json config = int4_config();
    change(group_of(config));
    return refusal(config);
  };
  EXPECT_THAT(refused([](json& g) { g["format"] = "float-quantized"; }),
              HasSubstr("\"float-quantized\""));
  EXPECT_THAT(refused([](json& g) { g["weights"]["symmetric"] = false; }), HasSubstr("symmetric"));
  EXPECT_THAT(refused([](json& g) { g["weights"]["strategy"] = "channel"; }),
              HasSubstr("strategy"));
  EXPECT_THAT(refused([](json& g) { g["weights"]["num_bits"] = 8; }), HasSubstr("num_bits"));
  EXPECT_THAT(refused([](json& g) { g["weights"]["type"] = "float"; }), HasSubstr("type"));
  EXPECT_THAT(refused([](json& g) { g["weights"]["actorder"] = "weight"; }), HasSubstr("actorder"));
  EXPECT_THAT(refused([](json& g) { g["weights"]["group_size"] = nullptr; }),
              HasSubstr("group_size"));
  EXPECT_THAT(refused([](json& g) {
                g["input_activations"] = {{"num_bits", 8}};
              }),
              HasSubstr("input_activations"));
  EXPECT_THAT(refused([](json& g) {
                g["output_activations"] = {{"num_bits", 8}};
              }),
              HasSubstr("output_activations"));
  EXPECT_THAT(refused([](json& g) { g.erase("targets"); }), HasSubstr("targets"));
  json config = int4_config();
  config["quantization_config"]["quantization_status"] = "frozen";
  EXPECT_THAT(refusal(config), HasSubstr("quantization_status"));
  config = int4_config();
  config["quantization_config"]["transform_config"] = {{"hadamard", 1}};
  EXPECT_THAT(refusal(config), HasSubstr("transform_config"));
  config = int4_config();
  config["quantization_config"]["config_groups"] = json::object();
  EXPECT_THAT(refusal(config), HasSubstr("config_groups"));
}

TEST(CompressedTensors, BesideHfQuantConfigIsAContradiction) {
  EXPECT_THAT(merge_quant_metadata(int4_config(), mixed_hf()).contradictions,
              ElementsAre(HasSubstr("compressed-tensors")));
}

TEST(QuantMetadata, ReadsTheFilesOfAFolder) {
  const test::TempFolder folder;
  test::write_file(folder / "hf_quant_config.json", mixed_hf().dump());
  EXPECT_EQ(read_quant_metadata(folder.path(), json::object()).for_module(kUp), kNvfp4);
  test::write_file(folder / "hf_quant_config.json", "{");
  EXPECT_THROW(read_quant_metadata(folder.path(), json::object()), Error);
}

}  // namespace
}  // namespace levin::checkpoint
