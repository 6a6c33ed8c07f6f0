// Activation scales from text: the unquantized model reads it, every calibrated input is watched.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "codec/calibration.h"
#include "quantize/convert.h"
#include "quantize/plan.h"
#include "runtime/runtime.h"

namespace levin::quantize {

struct CalibrationSettings {
  std::filesystem::path text;    // plain text, or JSONL with "text"
  int64_t max_tokens = 1 << 15;  // of the text; all of it when it is shorter
  int window = 512;              // tokens per sequence; state starts empty in each
};

// What was seen at the inputs of the plan's calibrated linears, and of keys and values.
struct Observations {
  std::map<std::string, codec::ActivationStats> inputs;  // by module
  std::map<std::string, codec::ActivationStats> keys;    // by attention block
  std::map<std::string, codec::ActivationStats> values;
  int64_t tokens = 0;
};

struct Calibration {
  MeasuredScales scales;
  int64_t tokens = 0;
  int64_t experts = 0;              // calibrated expert matrices
  std::vector<std::string> unseen;  // of these, the ones that no token reached
  int64_t fewest_tokens = 0;        // of the seen ones, the least used
  std::vector<std::string> warnings;
};

// Runs the tokens of a text (calibration_text.h) through `runtime`, whose model is the unquantized
// one. When MTP linears are to be calibrated it drafts behind every few tokens, so that the head
// sees its own recursive inputs. `window`: tokens per sequence.
Observations observe(runtime::Runtime& runtime, const Plan& plan, std::span<const int32_t> tokens,
                     int window);

// Scales from observations, a scale for every calibrated linear whatever was seen:
//  - The routed experts of a layer share the largest amax of their projection, as ModelOpt does
//    (engines do the same when they load), so an expert that no token reached gets its peers'.
//  - q, k and v of a block share the largest amax.
//  - What saw nothing but zeros gets ModelOpt's neutral amax of 0.5, with a warning.
Calibration derive_scales(const Plan& plan, const Observations& observations);

nlohmann::json to_json(const Calibration& calibration);
// Throws Error when `json` does not come from to_json.
Calibration calibration_from_json(const nlohmann::json& json, const std::string& where);

}  // namespace levin::quantize
