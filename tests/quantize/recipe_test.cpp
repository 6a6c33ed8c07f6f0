// The recipe grammar: what ModelOpt's recipes say must mean the same here, and whatever is not a
// recipe must be refused with file, line and reason.
#include "quantize/recipe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "support/tiny_checkpoint.h"

namespace levin::quantize {
namespace {

using test::TempFolder;
using test::write_file;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsSupersetOf;

std::string error_of_text(const std::string& yaml) {
  return test::error_of([&] { parse_recipe(yaml, "r.yaml"); }).what();
}

// A recipe whose only rule has this cfg.
Recipe with_cfg(const std::string& cfg) {
  return parse_recipe("quantize:\n  quant_cfg:\n  - {quantizer_name: '*', cfg: " + cfg + "}\n",
                      "r.yaml");
}

TEST(Recipe, ReadsModelOptsOwnForm) {
  const Recipe recipe = parse_recipe(R"(
imports:
  nvfp4_static: configs/numerics/nvfp4_static
  base_disable_all: configs/ptq/units/base_disable_all
  kv_fp8: configs/ptq/units/kv_fp8
metadata:
  recipe_type: ptq
  description: two words
quantize:
  algorithm:
    method: mse
    fp8_scale_sweep: true
    layerwise: {enable: false}
  quant_cfg:
    - $import: base_disable_all
    - quantizer_name: '*mixer.experts.*weight_quantizer'
      enable: true
      cfg: {$import: nvfp4_static}
    - quantizer_name: '*mixer.experts.*input_quantizer'
      cfg:
        block_sizes:
          -1: 16
          type: dynamic
          scale_bits: e4m3
        num_bits: e2m1
    - $import: kv_fp8
)",
                                     "seed.yaml");
  EXPECT_EQ(recipe.name, "seed");
  EXPECT_EQ(recipe.description, "two words");
  EXPECT_EQ(recipe.algorithm.weight_scales, Algorithm::WeightScales::kMseSweep);
  ASSERT_EQ(recipe.rules.size(), 4U);
  EXPECT_EQ(recipe.rules[0].quantizer_name, "*");
  EXPECT_FALSE(recipe.rules[0].enable);
  EXPECT_FALSE(recipe.rules[0].attributes);
  EXPECT_TRUE(recipe.rules[1].enable);
  EXPECT_FALSE(recipe.rules[1].attributes->block_sizes->dynamic);
  EXPECT_EQ(recipe.rules[1].where, "seed.yaml:16");
  const QuantizerAttributes& input = *recipe.rules[2].attributes;
  EXPECT_EQ(input.num_bits, kE2M1);
  EXPECT_EQ(input.block_sizes->size, 16);
  EXPECT_TRUE(input.block_sizes->dynamic);
  EXPECT_EQ(input.block_sizes->scale_bits, kE4M3);
  EXPECT_EQ(recipe.rules[3].quantizer_name, "*[kv]_bmm_quantizer");
  EXPECT_EQ(recipe.rules[3].attributes->num_bits, kE4M3);
}

TEST(Recipe, KeysBesideAnImportOverrideIt) {
  const Recipe recipe = parse_recipe(R"(
imports: {fp8: configs/numerics/fp8, nvfp4: configs/numerics/nvfp4}
quantize:
  quant_cfg:
    - {quantizer_name: a, cfg: {$import: fp8, axis: 0}}
    - {quantizer_name: b, cfg: {$import: [fp8, nvfp4], use_constant_amax: true}}
)",
                                     "r.yaml");
  EXPECT_EQ(recipe.rules[0].attributes->axis, 0);
  EXPECT_EQ(recipe.rules[0].attributes->num_bits, kE4M3);
  EXPECT_EQ(recipe.rules[1].attributes->num_bits, kE2M1);
  EXPECT_TRUE(recipe.rules[1].attributes->use_constant_amax);
}

TEST(Recipe, ImportsFilesBesideItself) {
  const TempFolder folder;
  write_file(folder / "mine.yaml", "num_bits: [4, 3]\n");
  write_file(folder / "unit.yaml",
             "imports: {mine: mine}\n---\n- {quantizer_name: x, cfg: {$import: mine}}\n"
             "- {quantizer_name: y, enable: false}\n");
  write_file(folder / "recipe.yaml",
             "imports: {unit: unit.yaml}\nquantize: {quant_cfg: [{$import: unit}]}\n");
  const Recipe recipe = load_recipe(folder / "recipe.yaml");
  ASSERT_EQ(recipe.rules.size(), 2U);
  EXPECT_EQ(recipe.rules[0].attributes->num_bits, kE4M3);
  EXPECT_THAT(recipe.rules[1].where, HasSubstr("unit.yaml:4"));
}

TEST(Recipe, NumBitsHaveThreeSpellings) {
  EXPECT_EQ(with_cfg("{num_bits: E4M3}").rules[0].attributes->num_bits, kE4M3);
  EXPECT_EQ(with_cfg("{num_bits: [4, 3]}").rules[0].attributes->num_bits, kE4M3);
  EXPECT_EQ(with_cfg("{num_bits: 4}").rules[0].attributes->num_bits, (NumBits{0, 4}));
  // ModelOpt's default.
  EXPECT_EQ(with_cfg("{axis: 0}").rules[0].attributes->num_bits, (NumBits{0, 8}));
}

TEST(Recipe, AlgorithmMayBeAWordAMappingOrAList) {
  const auto algorithm = [](const std::string& text) {
    return parse_recipe("quantize:\n  algorithm: " + text +
                            "\n  quant_cfg: [{quantizer_name: '*', enable: false}]\n",
                        "r.yaml")
        .algorithm;
  };
  EXPECT_EQ(algorithm("max").weight_scales, Algorithm::WeightScales::kMax);
  EXPECT_EQ(algorithm("").weight_scales, Algorithm::WeightScales::kMax);
  const Algorithm list = algorithm("[max, {method: mse, fp8_scale_sweep: true}]");
  EXPECT_EQ(list.weight_scales, Algorithm::WeightScales::kMseSweep);
  const Algorithm headroom = algorithm(
      "{method: nvfp4_act_headroom, rho: 1000, upper_percentile: 100, weight_scale_algorithm: "
      "{method: mse, start_multiplier: 1.0, stop_multiplier: 1.5, step_size: 0.5}}");
  EXPECT_TRUE(headroom.act_headroom);
  EXPECT_EQ(headroom.headroom.rho, 1000);
  EXPECT_EQ(headroom.headroom.upper_percentile, 100);
  EXPECT_EQ(headroom.headroom.anchor_percentile, 1);
  EXPECT_EQ(headroom.weight_scales, Algorithm::WeightScales::kFourOverSix);
}

TEST(Recipe, ShippedOnesAreThere) {
  EXPECT_THAT(shipped_recipes(),
              IsSupersetOf({"fp8", "int4-g64", "nvfp4-aggressive-mse", "nvfp4-conservative",
                            "w4a16", "w4a4", "w4a4-full", "w4a4-lmhead", "w4a4-naive"}));
  for (const std::string& name : shipped_recipes()) {
    SCOPED_TRACE(name);
    EXPECT_FALSE(load_recipe(name).description.empty());
  }
}

TEST(Recipe, CanonicalTextTellsWhatDiffersAndNothingElse) {
  const Recipe a = with_cfg("{num_bits: e4m3}");
  EXPECT_EQ(canonical_text(a), canonical_text(with_cfg("{num_bits: [4, 3], fake_quant: true}")));
  EXPECT_NE(canonical_text(a), canonical_text(with_cfg("{num_bits: e4m3, axis: 0}")));
  EXPECT_NE(canonical_text(load_recipe("w4a4")), canonical_text(load_recipe("w4a4-full")));
}

struct Bad {
  const char* yaml;
  const char* reason;
};

class MalformedRecipe : public testing::TestWithParam<Bad> {};

TEST_P(MalformedRecipe, IsRefusedWithFileAndReason) {
  EXPECT_THAT(error_of_text(GetParam().yaml),
              AllOf(HasSubstr(GetParam().reason), HasSubstr("r.yaml")));
}

INSTANTIATE_TEST_SUITE_P(
    All, MalformedRecipe,
    testing::Values(
        Bad{"", "wrong number of YAML documents"}, Bad{"a: [", "not YAML"},
        Bad{"- 1\n", "a recipe has the wrong form"}, Bad{"? [a]\n: b\n", "not a plain word"},
        Bad{"metadata: {}\n", "no \"quantize\""}, Bad{"quantize: {}\n", "no quant_cfg"},
        Bad{"quantize: {quant_cfg: 3}\n", "wrong form"},
        Bad{"quantize: {quant_cfg: []}\n", "impossible number of rules"},
        Bad{"quantise: {}\n", "unknown key"},
        Bad{"quantize: {quant_cfg: [{quantizer_name: '*', enable: false}], extra: 1}\n",
            "unknown key"},
        Bad{"metadata: {recipe_type: auto_quantize}\nquantize: {quant_cfg: []}\n",
            "recipe type is not supported"},
        Bad{"quantize: {quant_cfg: [{enable: false}]}\n", "no quantizer_name"},
        Bad{"quantize: {quant_cfg: [{quantizer_name: x}]}\n", "says nothing"},
        Bad{"quantize: {quant_cfg: [{quantizer_name: x, enable: maybe}]}\n", "true or false"},
        Bad{"quantize: {quant_cfg: [{quantizer_name: x, cfg: {}}]}\n", "cfg is empty"},
        Bad{"quantize: {quant_cfg: [{quantizer_name: x, cfg: [{num_bits: 4}, {num_bits: 8}]}]}\n",
            "sequential"},
        Bad{"quantize: {quant_cfg: [{quantizer_name: [x], enable: true}]}\n", "text"},
        Bad{"quantize: {quant_cfg: [{quantizer_name: x, quantizer_name: y, enable: true}]}\n",
            "same key twice"},
        Bad{"quantize: {quant_cfg: [{quantizer_name: x, cfg: {num_bits: e9m9}}]}\n", "integer"},
        Bad{"quantize: {quant_cfg: [{quantizer_name: x, cfg: {num_bits: 99}}]}\n", "out of range"},
        Bad{"quantize: {quant_cfg: [{quantizer_name: x, cfg: {num_bits: [1]}}]}\n", "wrong form"},
        Bad{"quantize: {quant_cfg: [{quantizer_name: x, cfg: {axis: 1}}]}\n", "axis"},
        Bad{"quantize: {quant_cfg: [{quantizer_name: x, cfg: {axis: 0, block_sizes: {-1: 16}}}]}\n",
            "both axis and block_sizes"},
        Bad{"quantize: {quant_cfg: [{quantizer_name: x, cfg: {block_sizes: {-1: 0}}}]}\n",
            "out of range"},
        Bad{"quantize: {quant_cfg: [{quantizer_name: x, cfg: {block_sizes: {-2: 128}}}]}\n",
            "levin does not do"},
        Bad{"quantize: {quant_cfg: [{quantizer_name: x, cfg: {block_sizes: {type: static}}}]}\n",
            "names no axis"},
        Bad{"quantize: {quant_cfg: [{quantizer_name: x, cfg: {rotate: true}}]}\n", "rotate"},
        Bad{"quantize: {quant_cfg: [{quantizer_name: x, cfg: {bias: {-1: null}}}]}\n", "bias"},
        Bad{"quantize: {quant_cfg: [{quantizer_name: x, cfg: {calibrator: histogram}}]}\n",
            "calibrator"},
        Bad{"quantize: {quant_cfg: [{quantizer_name: x, cfg: {constant_amax: -1}}]}\n", "above 0"},
        Bad{"quantize: {quant_cfg: [{quantizer_name: x, cfg: {constant_amax: .nan}}]}\n",
            "a number"},
        Bad{"quantize: {quant_cfg: [{quantizer_name: x, cfg: {color: red}}]}\n", "unknown key"},
        Bad{"quantize: {algorithm: awq_lite, quant_cfg: [{quantizer_name: x, enable: true}]}\n",
            "awq_lite"},
        Bad{"quantize: {algorithm: {method: mse}, quant_cfg: [{quantizer_name: x, enable: "
            "true}]}\n",
            "multipliers"},
        Bad{"quantize: {algorithm: {rho: 1}, quant_cfg: [{quantizer_name: x, enable: true}]}\n",
            "no method"},
        Bad{"quantize: {algorithm: {method: max, rho: 1}, quant_cfg: []}\n", "no setting"},
        Bad{"quantize: {algorithm: {method: nvfp4_act_headroom, rho: 30000}, quant_cfg: []}\n",
            "out of range"},
        Bad{"quantize: {algorithm: {method: nvfp4_act_headroom, anchor_percentile: 0}, "
            "quant_cfg: []}\n",
            "out of range"},
        Bad{"quantize: {algorithm: &a {method: nvfp4_act_headroom, weight_scale_algorithm: *a}, "
            "quant_cfg: []}\n",
            "refers to itself"},
        Bad{"quantize: {algorithm: {method: nvfp4_act_headroom, weight_scale_algorithm: "
            "{method: nvfp4_act_headroom}}, quant_cfg: []}\n",
            "twice"},
        Bad{"quantize: {algorithm: [[max]], quant_cfg: []}\n", "list of lists"},
        Bad{"quantize: {quant_cfg: [{$import: x}]}\n", "names nothing"},
        Bad{"imports: {x: nowhere/to/be/found}\nquantize: {quant_cfg: [{$import: x}]}\n",
            "does not exist"},
        Bad{"imports: [x]\nquantize: {quant_cfg: [{$import: x}]}\n", "imports"},
        Bad{"a: 1\n---\nb: 2\n---\nc: 3\n", "wrong number of YAML documents"}));

TEST(Recipe, ImportCyclesAreErrors) {
  const TempFolder folder;
  write_file(folder / "a.yaml", "imports: {b: b.yaml}\n---\n- {$import: b}\n");
  write_file(folder / "b.yaml", "imports: {a: a.yaml}\n---\n- {$import: a}\n");
  const Error error = test::error_of([&] { load_recipe(folder / "a.yaml"); });
  EXPECT_THAT(error.what(), HasSubstr("cycle"));
}

TEST(Recipe, UnknownNameListsTheShippedOnes) {
  const Error error = test::error_of([] { load_recipe("w4a5"); });
  EXPECT_THAT(error.what(), AllOf(HasSubstr("w4a5"), HasSubstr("w4a4-full")));
  // Building blocks are not recipes.
  EXPECT_THROW(load_recipe("configs/numerics/fp8"), Error);
}

TEST(Recipe, HugeOrDeepYamlIsRefusedQuickly) {
  EXPECT_THAT(error_of_text(std::string(2 << 20, ' ')), HasSubstr("too large"));
  EXPECT_THAT(error_of_text(std::string(100000, '[')),
              AllOf(HasSubstr("nested too deeply"), HasSubstr("r.yaml:1")));
  std::string mappings = "a:\n";
  for (int depth = 1; depth < 80; ++depth) mappings += std::string(depth, ' ') + "a:\n";
  EXPECT_THAT(error_of_text(mappings),
              AllOf(HasSubstr("nested too deeply"), HasSubstr("r.yaml:65")));
}

TEST(Recipe, OtherBytesThanUtf8AreRefused) {
  EXPECT_THAT(error_of_text("quantize:\n  a: \xc3\x28\n"),
              AllOf(HasSubstr("not UTF-8"), HasSubstr("r.yaml:2"), HasSubstr("0xc3")));
  EXPECT_THAT(error_of_text("\xff\xfeq"), HasSubstr("not UTF-8"));
}

TEST(Recipe, ImportsThatNothingUsesAreErrors) {
  const std::string rules = "quantize: {quant_cfg: [{quantizer_name: '*', enable: false}]}\n";
  EXPECT_THAT(error_of_text("imports:\n  fp8: configs/numerics/fp8\n" + rules),
              AllOf(HasSubstr("used by nothing"), HasSubstr("r.yaml:2"), HasSubstr("fp8")));
  // Those of what is imported, too.
  const TempFolder folder;
  write_file(folder / "a.yaml", "imports: {b: b.yaml}\nquantize: {quant_cfg: [{$import: b}]}\n");
  write_file(folder / "b.yaml",
             "imports: {c: c.yaml}\n---\n- {quantizer_name: '*', enable: false}\n");
  write_file(folder / "c.yaml", "colour: red\n");
  const Error error = test::error_of([&] { load_recipe(folder / "a.yaml"); });
  EXPECT_THAT(error.what(), AllOf(HasSubstr("used by nothing"), HasSubstr("b.yaml:1")));
}

TEST(Recipe, ShippedOnesUseAllTheyImport) {
  for (const std::string& name : shipped_recipes()) EXPECT_NO_THROW(load_recipe(name)) << name;
}

}  // namespace
}  // namespace levin::quantize
