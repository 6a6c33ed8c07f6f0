// A model in the sums that people ask for: what it is made of, and what a step and a deployment
// cost. Everything `levin inspect` shows comes from here.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "core/error.h"
#include "model/audit.h"
#include "model/config.h"
#include "model/cost.h"

namespace levin::model {

// Tensors of one role stored in one format.
struct PartSummary {
  std::string part;  // "routed experts", "mtp routed experts", "KV cache scales"
  std::string format;
  int64_t linears = 0;  // matrices
  int64_t tensors = 0;  // as stored, scales included
  int64_t parameters = 0;
  double bytes = 0;
  double bits_per_weight() const {
    return parameters == 0 ? 0 : 8 * bytes / static_cast<double>(parameters);
  }
};

// One round of speculation with k draft tokens, per sequence.
struct RoundCost {
  int k = 0;
  Operation verify;  // the trunk over 1 + k tokens
  Operation draft;   // k passes of the MTP head
  double bytes() const { return verify.memory_bytes() + draft.memory_bytes(); }
};

struct SummaryOptions {
  int64_t context = 0;  // tokens in each sequence
  int64_t sequences = 1;
  StateTypes types;
  int max_draft = 3;
};

struct Summary {
  std::vector<PartSummary> parts;
  PartSummary total;
  double active_parameters = 0;
  std::vector<ClassCost> step;  // one token for each of the sequences
  Operation step_total;
  std::vector<RoundCost> rounds;  // k = 0 .. max_draft; k = 0 only without an MTP head
  StateSize state;
  double state_total = 0;  // bytes of all sequences at full context
  SummaryOptions options;
};

Summary summarize(const Config& config, const checkpoint::Checkpoint& checkpoint,
                  const SummaryOptions& options);
// Of a checkpoint that need not exist, from the tensors it would hold.
Summary summarize(const Config& config, const std::vector<SizedTensor>& tensors,
                  const SummaryOptions& options);

}  // namespace levin::model
