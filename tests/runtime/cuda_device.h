// Tests that need a GPU say so when there is none.
#pragma once

#include <gtest/gtest.h>

#include "runtime/cuda/make_cuda_runtime.h"

#define LEVIN_NEEDS_CUDA()                                                 \
  if (::levin::runtime::cuda_devices().empty()) {                          \
    GTEST_SKIP() << "NOT TESTED: there is no CUDA device on this machine"; \
  }
