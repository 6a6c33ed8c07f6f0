// What a recipe means for a model: one decision per linear, sizes before and after. Needs only the
// configuration, so it is made, checked and printed before any weight is read.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "codec/nvfp4.h"
#include "model/config.h"
#include "model/cost.h"
#include "model/inventory.h"
#include "quantize/recipe.h"

namespace levin::quantize {

// Where the static scale of a linear's input comes from.
enum class InputScale : uint8_t {
  kNone,         // the input is not quantized, or its scale is computed at run time
  kMax,          // largest magnitude seen in calibration
  kActHeadroom,  // codec/calibration.h
  kConstant      // given by the recipe
};

struct LinearPlan {
  std::size_t tensor = 0;  // index into Plan::tensors: name, role, shape
  checkpoint::ModuleQuant quant;
  codec::Nvfp4Policy policy = codec::Nvfp4Policy::kMaxDynamic;  // of NVFP4 weights
  InputScale input_scale = InputScale::kNone;
  double constant_amax = 0;  // of kConstant
  int weight_rule = -1;      // indices into Recipe::rules
  int input_rule = -1;

  bool calibrated() const {
    return input_scale == InputScale::kMax || input_scale == InputScale::kActHeadroom;
  }
};

enum class KvScale : uint8_t {
  kNone,        // BF16 cache
  kCalibrated,  // FP8; k_scale and v_scale from calibration
  kUnit         // FP8; no scales stored, which means 1
};

struct KvPlan {
  std::string attention;  // "backbone.layers.5.mixer"
  bool mtp = false;
  KvScale scale = KvScale::kNone;
};

struct Plan {
  model::Config config;
  Recipe recipe;
  std::vector<model::TensorPlan> tensors;  // of the unquantized model
  std::vector<LinearPlan> linears;         // in the order of `tensors`
  model::Dialect dialect = model::Dialect::kModelOpt;
  std::vector<KvPlan> kv;          // one per attention block
  std::vector<std::string> notes;  // what is legal but worth knowing, one sentence each

  const model::TensorPlan& tensor(const LinearPlan& linear) const { return tensors[linear.tensor]; }
  // Of the backbone, whose attention blocks all agree.
  checkpoint::KvCacheQuant kv_cache() const;
  // Some input scale or KV scale has to be measured.
  bool needs_calibration() const;
};

// Throws Error when the recipe and the model do not fit: rules that match nothing, linears that no
// rule decides, formats that levin does not write, group sizes that do not divide, combinations
// that no checkpoint layout can hold.
Plan make_plan(const model::Config& config, const Recipe& recipe);

// Tensors of one role and one format.
struct ClassSize {
  std::string name;      // "routed experts", "mtp routed experts"
  std::string format;    // of the linears; "BF16" and the like for what stays
  int64_t matrices = 0;  // linears, routers and embeddings
  int64_t elements = 0;  // of all tensors
  int64_t bytes_before = 0;
  int64_t bytes_after = 0;  // scales included
};

// Sizes by role and format, in the order of the model. With `checkpoint` the types of its tensors
// count, otherwise those that the public checkpoints have.
std::vector<ClassSize> class_sizes(const Plan& plan, const checkpoint::Checkpoint* checkpoint);

// Every tensor of the model as the converted checkpoint stores it, for the cost model; `checkpoint`
// as in class_sizes.
std::vector<model::SizedTensor> planned_tensors(const Plan& plan,
                                                const checkpoint::Checkpoint* checkpoint);

// Linears with the same class, format and deciding rules.
struct LinearGroup {
  std::string class_name;
  std::string
      names;  // with '*' for numbers: "backbone.layers.*.mixer.experts.*.{down_proj,up_proj}"
  std::string format;
  int64_t matrices = 0;
  int64_t bytes_before = 0;
  int64_t bytes_after = 0;
  std::string weight_rule;  // "w4a4.yaml:27 '*mixer.experts.*weight_quantizer'"
  std::string input_rule;
};

// In the order of the model; `checkpoint` as in class_sizes.
std::vector<LinearGroup> linear_groups(const Plan& plan, const checkpoint::Checkpoint* checkpoint);

// The groups, the total and the notes as text.
std::string plan_table(const Plan& plan, const checkpoint::Checkpoint* checkpoint);

// "routed experts", "mtp routed experts"
std::string class_name(const model::TensorPlan& tensor);

}  // namespace levin::quantize
