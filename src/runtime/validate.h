// What every runtime checks before it touches anything: options at construction, arguments at each
// call. Violations are levin::Errors that name the argument.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/runtime.h"

namespace levin::runtime {

// `options` with the defaults filled in: max_model_len from the model, threads from the machine,
// mtp only when the model has a draft head. Throws Error for values out of range.
Options resolve_options(const model::Model& model, const Options& options);
// What all runtimes can draft with: an attention layer, then MoE or dense layers.
void check_mtp_schedule(const model::Mtp& mtp);

void check_slot(const Options& options, int slot);
// Slots exist and differ, tokens are in the vocabulary, everything fits.
void check_extend(const Runtime& runtime, std::span<const Extend> batch);
void check_rewind(int slot, int64_t length, int64_t rewindable_to, int64_t current);
// There is a draft head; slots exist, differ and hold at least one token; 1 <= k <= max_rewind.
void check_draft(const Runtime& runtime, std::span<const Draft> batch);
// The slot exists and holds more than `parent` tokens.
void check_save(const Runtime& runtime, int slot, int64_t parent);
// The slot exists; the snapshots form a chain that fits into it and have what they need.
void check_restore(const Runtime& runtime, int slot, std::span<const Snapshot> chain);

}  // namespace levin::runtime
