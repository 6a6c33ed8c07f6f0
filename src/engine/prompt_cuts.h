// Where a sequence is cut into extends while its tokens are read, so that on a device whose bits
// depend on the cuts (runtime::ExtendCuts) an answer depends on nothing but its own tokens: not on
// who runs beside it, on what a step has room for, on the prefix cache, or on lost slots.
//
// A prompt is read in chunks that begin at multiples of the alignment; what is left of it behind
// the last multiple is a short extend of its own if it is short enough. An output that is read
// again, after its sequence lost its slot, is read in short extends, as it came into being.
#pragma once

#include <cstdint>

#include "runtime/runtime.h"

namespace levin::engine {

// The runtime's cuts; those of a runtime that does not mind, and a warning in the log, when an
// extend has no room for an aligned chunk.
runtime::ExtendCuts usable_cuts(const runtime::Runtime& runtime);

struct ReadPlace {
  int64_t consumed = 0;  // tokens that have been read
  int64_t prompt = 0;    // tokens of the prompt
  int64_t end = 0;       // reading stops here
};

// How many tokens to read next, at most `most`; 0 when that is too few to get to a place where a
// cut is allowed.
int64_t next_extend(const runtime::ExtendCuts& cuts, const ReadPlace& place, int64_t most);

// Whether every prompt that begins with the first `length` tokens of a sequence comes to the same
// bits, so that a snapshot of them may serve it. `prompt`: tokens of the sequence's own prompt.
bool shareable(const runtime::ExtendCuts& cuts, int64_t length, int64_t prompt);

}  // namespace levin::engine
