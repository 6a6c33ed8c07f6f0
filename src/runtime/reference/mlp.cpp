#include "runtime/reference/mlp.h"

#include <algorithm>

namespace levin::runtime::reference {

void feed_forward(Context& context, const model::Linear& up, const model::Linear& down,
                  std::span<const float> input, int rows, std::span<float> hidden,
                  std::span<float> output) {
  context.linears.apply(up, input, rows, hidden);
  for (float& x : hidden.first(static_cast<std::size_t>(rows * up.out))) x = relu_squared(x);
  context.linears.apply(down, hidden, rows, output);
}

MlpWork::MlpWork(const Context& context) {
  int64_t widest = 0;
  for (const int64_t size : context.config.intermediate_size) widest = std::max(widest, size);
  hidden = Buffer(context.max_rows * widest);
}

void mlp(Context& context, const model::MlpBlock& block, MlpWork& work,
         std::span<const float> input, int rows, std::span<float> output) {
  feed_forward(context, block.up_proj, block.down_proj, input, rows,
               work.hidden.rows(rows, block.up_proj.out), output);
}

}  // namespace levin::runtime::reference
