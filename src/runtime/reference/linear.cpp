#include "runtime/reference/linear.h"

#include <algorithm>

#include "codec/fp8.h"
#include "codec/nvfp4.h"
#include "runtime/reference/parallel.h"

namespace levin::runtime::reference {

Linears::Linears(const model::Model& model, ThreadTeam& team, int64_t max_rows, int64_t cache_limit)
    : team_(team) {
  int64_t weights = 0;
  bool any_quantized = false;
  for (const model::Linear* linear : model.linears()) {
    weights += linear->out * linear->in;
    widest_ = std::max(widest_, linear->in);
    any_quantized |= linear->activation != model::ActivationFormat::kNone;
  }
  if (any_quantized) quantized_ = Buffer(max_rows * widest_);
  row_ = Buffer(team.size() * widest_);
  if (weights * static_cast<int64_t>(sizeof(float)) > cache_limit) return;
  for (const model::Linear* linear : model.linears()) {
    cache_.emplace(linear, model::dequantize(*linear));
  }
}

std::span<const float> Linears::quantized(const model::Linear& linear, std::span<const float> input,
                                          int rows) {
  using model::ActivationFormat;
  if (linear.activation == ActivationFormat::kNone) return input;
  const auto width = static_cast<std::size_t>(linear.in);
  parallel_for(team_, rows, linear.in, [&](int64_t row) {
    const auto from = input.subspan(static_cast<std::size_t>(row) * width, width);
    const std::span<float> to = quantized_.row(row, linear.in);
    switch (linear.activation) {
      case ActivationFormat::kNone:
        break;
      case ActivationFormat::kFp8Static:
        codec::quantize_fp8_activation(from, linear.input_scale, to);
        break;
      case ActivationFormat::kFp8PerToken:
        codec::quantize_fp8_activation_per_token(from, to);
        break;
      case ActivationFormat::kNvfp4:
        codec::quantize_nvfp4_activation(from, linear.input_scale, to);
        break;
    }
  });
  return quantized_.rows(rows, linear.in);
}

void Linears::apply(const model::Linear& linear, std::span<const float> input, int rows,
                    std::span<float> output) {
  if (observer_ != nullptr && observer_->linear_input) {
    observer_->linear_input(linear, input.first(static_cast<std::size_t>(rows * linear.in)), rows);
  }
  const std::span<const float> x = quantized(linear, input, rows);
  const auto cached = cache_.find(&linear);
  in_parallel(team_, rows * linear.out * linear.in, [&](int thread, int threads) {
    const Range range = share(linear.out, thread, threads);
    for (int64_t o = range.begin; o < range.end; ++o) {
      const std::span<float> scratch = row_.row(thread, linear.in);
      const float* weight = scratch.data();
      if (cached != cache_.end()) {
        weight = cached->second.data() + o * linear.in;
      } else {
        model::dequantize_row(linear, o, scratch);
      }
      const float bias = linear.bias.empty() ? 0.0F : linear.bias[static_cast<std::size_t>(o)];
      for (int64_t r = 0; r < rows; ++r) {
        output[static_cast<std::size_t>(r * linear.out + o)] =
            dot(x.data() + r * linear.in, weight, linear.in) + bias;
      }
    }
  });
}

int64_t Linears::memory_bytes() const {
  int64_t bytes = quantized_.bytes() + row_.bytes();
  for (const auto& [linear, weights] : cache_) {
    bytes += static_cast<int64_t>(weights.size() * sizeof(float));
  }
  return bytes;
}

}  // namespace levin::runtime::reference
