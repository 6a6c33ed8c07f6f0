// A quantization recipe: which quantizers of the model are on and what they do. The grammar is that
// of NVIDIA ModelOpt's PTQ recipes (modelopt/recipe, modelopt/torch/quantization/config.py): an
// ordered list of rules over quantizer names, the last match wins. docs/recipes.md has the details.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "codec/calibration.h"

namespace levin::quantize {

// ModelOpt's num_bits and scale_bits: an integer width, or ExMy.
struct NumBits {
  int exponent = 0;  // 0: integer
  int mantissa = 8;  // integer width, or mantissa bits
  bool operator==(const NumBits&) const = default;
};
inline constexpr NumBits kE4M3{4, 3};
inline constexpr NumBits kE2M1{2, 1};
std::string to_string(NumBits bits);

// ModelOpt's block_sizes along the last axis.
struct BlockSizes {
  int64_t size = 0;  // 0: the whole row (YAML null)
  bool dynamic = false;
  std::optional<NumBits> scale_bits;
  bool four_over_six = false;
};

// ModelOpt's QuantizerAttributeConfig, as far as it has a meaning here.
struct QuantizerAttributes {
  NumBits num_bits;
  std::optional<int> axis;  // 0: one scale per output row; absent: per tensor
  std::optional<BlockSizes> block_sizes;
  bool dynamic = false;            // `type: dynamic`: scales are computed at run time
  bool use_constant_amax = false;  // amax 448, nothing to calibrate
  std::optional<double> constant_amax;
};

// One entry of quant_cfg.
struct Rule {
  std::string quantizer_name;  // Python fnmatch pattern over full quantizer names
  std::string parent_class;    // "nn.Linear"; empty: any
  std::optional<QuantizerAttributes> attributes;  // replaces all; absent: `enable` only toggles
  bool enable = true;
  std::string where;  // "w4a4.yaml:12", for messages
};

// ModelOpt's calibration algorithm, split into its two independent questions.
struct Algorithm {
  enum class WeightScales : uint8_t {
    kMax,
    kMseSweep,     // method mse with fp8_scale_sweep
    kFourOverSix,  // method mse over the multipliers 1.0 and 1.5
  };
  WeightScales weight_scales = WeightScales::kMax;
  bool act_headroom = false;  // method nvfp4_act_headroom for NVFP4 inputs; otherwise max
  codec::HeadroomOptions headroom;
};

struct Recipe {
  std::string name;  // file name without .yaml
  std::string description;
  Algorithm algorithm;
  std::vector<Rule> rules;
};

// `recipe` is the path of a YAML file or the bare name of a shipped recipe. Throws Error (file,
// line, what was expected) for anything that is not a recipe or asks for what levin cannot do.
Recipe load_recipe(const std::string& recipe);

// Parses YAML text. Imports are looked up relative to `folder` (unless it is empty), then among the
// shipped configs. `where` names the text in errors.
Recipe parse_recipe(std::string_view yaml, const std::string& where,
                    const std::filesystem::path& folder = {});

// Names of the recipes in this binary, sorted.
std::vector<std::string> shipped_recipes();

// Everything in `recipe` that influences the result, imports resolved, as text: equal recipes give
// equal text.
std::string canonical_text(const Recipe& recipe);

}  // namespace levin::quantize
