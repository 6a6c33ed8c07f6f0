// The whole of `levin quantize`: plan, calibrate, convert, publish; resumable at every point.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "model/model.h"
#include "quantize/calibrate.h"
#include "quantize/convert.h"
#include "quantize/plan.h"

namespace levin::quantize {

struct Options {
  std::filesystem::path model;   // unquantized Hugging Face folder
  std::string recipe;            // path, or name of a shipped recipe
  std::filesystem::path output;  // folder to make
  std::optional<CalibrationSettings> calibration;
  // Bound on resident memory of the conversion; at least kMinMemory. Calibration needs the model in
  // memory and is refused when it does not fit.
  int64_t memory_bytes = int64_t{4} << 30;
  int threads = 0;  // 0: available_cores()
  bool overwrite =
      false;            // replace a checkpoint in `output`, forget an unfinished conversion there
  std::string version;  // of levin, written as producer
};

// What the program itself takes, with two pieces of a matrix.
inline constexpr int64_t kMinMemory = int64_t{128} << 20;

// The model's folder opened and checked against its configuration, and what the recipe makes of it.
struct Source {
  std::shared_ptr<const checkpoint::Checkpoint> checkpoint;
  Plan plan;
};

// Throws Error for a checkpoint that is incomplete, contradicts its configuration or is quantized
// already, and for a recipe that does not fit (make_plan). With LoadFormat::kDummy only config.json
// is read.
Source open_source(const std::filesystem::path& model, const std::string& recipe,
                   model::LoadFormat format);

// Throws Error for what quantize() would refuse in `options` before it begins, but for calibration
// text that is not given: for a dry run. Without an `output` no folder is looked at.
void check(const Options& options, const Source& source);

struct Result {
  Plan plan;
  Conversion conversion;
  std::optional<Calibration> calibration;
  bool resumed = false;
  int shards_reused = 0;
  double seconds = 0;
  uint64_t bytes_before = 0;  // of tensors
  uint64_t bytes_after = 0;
};

// Throws Error; whatever was finished stays in `output`/.levin-partial and is used by the next call
// with the same source, recipe and calibration. `output` looks like a checkpoint only at the end.
Result quantize(const Options& options);

}  // namespace levin::quantize
