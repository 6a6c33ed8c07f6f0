// A start-up check of the draft head: on a short text it must agree with the model now and then. A
// draft head that is wired or quantized wrongly proposes noise, and speculation silently costs time
// instead of saving it.
#pragma once

#include <string>

#include "engine/engine.h"
#include "engine/generate.h"

namespace levin::engine {

// Fewer accepted tokens than this per round (the token that comes for free included) is what noise
// gives.
inline constexpr double kAcceptanceFloor = 1.2;

struct DrafterReport {
  bool quantized = false;  // drafter_quantized()
  double mean_acceptance_length = 1;
  SpeculationStats speculation;
  bool near_floor = false;  // below kAcceptanceFloor

  // One line for the log.
  std::string message() const;
};

// Whether any matrix of the draft head is stored in a quantized format.
bool drafter_quantized(const model::Model& model);

// Generates a few dozen greedy tokens after a fixed prompt with 3 drafts a round. Throws Error when
// the engine has no draft head, and when what it computes are not numbers. The runtime's slots must
// be free.
DrafterReport drafter_self_test(Engine& engine);

// The self-test with its message in the log, as a warning when the drafter is no good.
void check_drafter(Engine& engine);

}  // namespace levin::engine
