// Feed-forward layers: up projection, relu squared, down projection. There is no gate matrix.
#pragma once

#include <span>

#include "model/model.h"
#include "runtime/reference/context.h"

namespace levin::runtime::reference {

// output [rows, down.out] = down(relu2(up(input))), for a dense layer, an expert or a shared
// expert. `hidden` is work space for [rows, up.out].
void feed_forward(Context& context, const model::Linear& up, const model::Linear& down,
                  std::span<const float> input, int rows, std::span<float> hidden,
                  std::span<float> output);

// Work space of one pass, shared by all dense layers.
struct MlpWork {
  explicit MlpWork(const Context& context);

  Buffer hidden;  // [rows, widest intermediate]
};

// A dense layer: output [rows, hidden] = down(relu2(up(input))).
void mlp(Context& context, const model::MlpBlock& block, MlpWork& work,
         std::span<const float> input, int rows, std::span<float> output);

}  // namespace levin::runtime::reference
