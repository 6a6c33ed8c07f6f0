// Matrix times rows, in float32, whatever the matrix is stored as.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/thread_team.h"
#include "model/model.h"
#include "runtime/reference/math.h"
#include "runtime/runtime.h"

namespace levin::runtime::reference {

// Weights up to this size are kept as float32 copies (4 bytes a weight); those of larger models are
// dequantized row by row each time they are used, which gives the same bits, needs no memory and is
// slow.
inline constexpr int64_t kFloatCacheLimit = int64_t{1} << 31;

class Linears {
 public:
  // `max_rows`: most rows of one apply(); `cache_limit`: bytes of float32 copies.
  Linears(const model::Model& model, ThreadTeam& team, int64_t max_rows,
          int64_t cache_limit = kFloatCacheLimit);

  void set_observer(const Observer* observer) { observer_ = observer; }

  // output[r][o] = sum_i quantized(input[r][i]) * weight[o][i] + bias[o]
  // for input [rows, in], output [rows, out]. Inputs of FP8 and NVFP4 W4A4 linears are quantized as
  // the deployment will quantize them and used as the values the codes stand for.
  void apply(const model::Linear& linear, std::span<const float> input, int rows,
             std::span<float> output);

  int64_t memory_bytes() const;

 private:
  std::span<const float> quantized(const model::Linear& linear, std::span<const float> input,
                                   int rows);

  ThreadTeam& team_;
  const Observer* observer_ = nullptr;
  std::unordered_map<const model::Linear*, std::vector<float>> cache_;  // [out, in] each
  Buffer quantized_;                                                    // [max_rows, widest in]
  Buffer row_;  // [threads, widest in]: a row being dequantized
  int64_t widest_ = 0;
};

}  // namespace levin::runtime::reference
