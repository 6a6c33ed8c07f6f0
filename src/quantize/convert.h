// Streamed conversion: one source shard becomes one output shard, matrices pass through in pieces
// of bounded size, encoded on all threads. Everything lands in the staging folder of a
// ProgressFile.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "quantize/errors.h"
#include "quantize/plan.h"
#include "quantize/progress_file.h"

namespace levin::quantize {

// What calibration measured, as amax (the largest magnitude to represent).
struct MeasuredScales {
  std::map<std::string, double> input_amax;  // by module, for every calibrated linear of the plan
  std::map<std::string, double> key_amax;    // by attention block, for a calibrated KV cache
  std::map<std::string, double> value_amax;
};

struct ConvertSettings {
  int threads = 1;
  // Largest piece of a matrix in memory at a time; its codes come on top.
  int64_t chunk_bytes = int64_t{32} << 20;
  std::string producer_name = "levin";
  std::string producer_version;
};

struct Conversion {
  ErrorSums errors;
  int64_t tensors_read = 0;
  int64_t tensors_written = 0;
  uint64_t tensor_bytes_read = 0;
  uint64_t tensor_bytes_written = 0;
  std::vector<std::string> warnings;  // all-zero weights and the like
};

// Bytes of all files that convert() will make, for a look at the free space beforehand.
uint64_t output_bytes(const checkpoint::Checkpoint& source, const Plan& plan);

// Writes every shard that `progress` does not have yet, then the index, the other files of the
// source folder (tokenizer, template, generation settings), the quantization metadata and
// config.json. Throws Error for weights that are not finite, and when the disk does not cooperate;
// finished shards stay recorded.
void convert(const checkpoint::Checkpoint& source, const Plan& plan, const MeasuredScales& scales,
             const ConvertSettings& settings, ProgressFile& progress);

// What the finished shards of `progress` amount to.
Conversion conversion_of(const checkpoint::Checkpoint& source, const Plan& plan,
                         const ProgressFile& progress);

}  // namespace levin::quantize
