// Work space of one pass through the model, shared by all layers.
#pragma once

#include "runtime/reference/attention.h"
#include "runtime/reference/mamba.h"
#include "runtime/reference/mlp.h"
#include "runtime/reference/moe.h"

namespace levin::runtime::reference {

struct Work {
  Work(const Context& context, int64_t max_context)
      : attention(context, max_context), mamba(context), moe(context), mlp(context) {}

  int64_t bytes() const {
    return attention.bytes() + mamba.bytes() + moe.bytes() + mlp.hidden.bytes();
  }

  AttentionWork attention;
  MambaWork mamba;
  MoeWork moe;
  MlpWork mlp;
};

}  // namespace levin::runtime::reference
