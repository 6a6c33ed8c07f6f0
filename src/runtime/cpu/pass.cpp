#include "runtime/cpu/pass.h"

#include <algorithm>
#include <utility>

namespace levin::runtime::cpu {

std::span<const float> Watcher::compact(const Rows& rows, const int32_t* index, int64_t count,
                                        int64_t width) {
  compact_.resize(static_cast<std::size_t>(count * width));
  for (int64_t i = 0; i < count; ++i) {
    std::copy_n(rows[index == nullptr ? i : index[i]], width, compact_.data() + i * width);
  }
  return compact_;
}

void Watcher::hidden(int layer, const Rows& rows, int64_t count, int64_t width) {
  if (!observer_.hidden || exception_) return;
  try {
    observer_.hidden(layer, compact(rows, nullptr, count, width), static_cast<int>(count));
  } catch (...) {
    exception_ = std::current_exception();
  }
}

void Watcher::linear_input(const Matrix& matrix, const Rows& rows, const int32_t* index,
                           int64_t count) {
  if (!observer_.linear_input || exception_) return;
  try {
    observer_.linear_input(*matrix.source, compact(rows, index, count, matrix.in),
                           static_cast<int>(count));
  } catch (...) {
    exception_ = std::current_exception();
  }
}

void Watcher::rethrow() {
  if (exception_) std::rethrow_exception(std::exchange(exception_, nullptr));
}

void Pass::recorded_barrier() {
  record_.begin = shared_.recorder->mark(thread_);
  record_.arrived = ticks();
  shared_.team.barrier();
  record_.end = ticks();
  shared_.recorder->add(thread_, record_);
  record_.bytes = 0;
  record_.experts = 0;
}

void Pass::normalize(const Rows& x, int64_t count, const float* weight, const Rows& out) {
  const Range rows = rows_to_stage(count);
  const auto eps = static_cast<float>(config().norm_eps);
  for (int64_t i = rows.begin; i < rows.end; ++i) {
    kernels().rms_norm(x[i], weight, config().hidden_size, eps, out[i]);
  }
}

void Pass::pack(const Matrix& matrix, const Rows& rows, const int32_t* index, int64_t begin,
                int64_t end, const StageBuffer& buffer) {
  for (int64_t tile = begin; tile < end; tile += kTile) {
    const int64_t tokens = std::min(kTile, end - tile);
    const float* pointers[kTile];
    for (int64_t t = 0; t < tokens; ++t) {
      pointers[t] = rows[index == nullptr ? tile + t : index[tile + t]];
    }
    kernels().pack(pointers, tokens, matrix.in, matrix.input, matrix.panels.digits,
                   matrix.input_scale, buffer.tiles + matrix.input_bytes(tile),
                   buffer.scales + tile);
  }
}

PackedInput Pass::stage(int stage, const Matrix& matrix, const Rows& rows, int64_t count) {
  const StageBuffer& buffer = stage_buffer(stage);
  const Range range = rows_to_stage(count);
  pack(matrix, rows, nullptr, range.begin, range.end, buffer);
  return {buffer.tiles, buffer.scales, count};
}

PackedInput Pass::stage_also(int stage, const Matrix& matrix, const Rows& rows, int64_t count,
                             const Matrix& packed_for, const PackedInput& packed) {
  if (matrix.input == packed_for.input && matrix.input_scale == packed_for.input_scale &&
      matrix.panels.digits == packed_for.panels.digits) {
    return packed;
  }
  return this->stage(stage, matrix, rows, count);
}

void Pass::multiply(const Matrix& matrix, const PackedInput& input, const LinearOutput& output) {
  const Range range = panels_of(matrix);
  if (range.begin == range.end) return;
  count_bytes((range.end - range.begin) * matrix.panels.panel_bytes);
  kernels().linear(matrix.panels, input, output, range.begin, range.end, own().linear_scratch);
}

}  // namespace levin::runtime::cpu
