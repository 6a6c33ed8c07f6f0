// The randomness of sampling: a pure function of what is being decided, so that a request gives the
// same tokens whatever it is batched with, whatever was drafted for it and wherever it is decided
// (runtime/round_rules.h, which devices share).
#pragma once

#include "runtime/round_rules.h"

namespace levin::engine {

using runtime::Purpose;
using runtime::uniform;

}  // namespace levin::engine
