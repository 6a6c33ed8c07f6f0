// The cost model: bytes and floating-point operations of every operation of a decode step, and the
// memory that a deployment needs, from shapes and storage formats alone. A decode step is a memory
// read, so bytes divided by the measured read bandwidth is the floor of its time.
//
// What is counted: every weight byte (scales included) once per step, whatever the number of
// tokens; of the routed experts those that the tokens are expected to reach; recurrent state read
// and written once per sequence; the KV cache read up to the context and written for new tokens.
// Activations are listed but not part of memory_bytes(): at decode they stay in caches.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "model/config.h"
#include "model/inventory.h"

namespace levin::model {

// A tensor with the bytes it takes in some storage, scales and other companions included.
struct SizedTensor {
  TensorPlan plan;
  std::string format;  // "BF16", "NVFP4 W4A4", "NVFP4 W4A16", "FP8", ...
  double bytes = 0;
  int64_t stored_tensors = 1;  // how many tensors of a checkpoint hold it
};

// As this checkpoint stores them. The MTP head is left out when the checkpoint has none of it.
std::vector<SizedTensor> sized_tensors(const Config& config,
                                       const checkpoint::Checkpoint& checkpoint);
// `plan` as `quant` would store it (BF16 where not quantized).
SizedTensor sized_tensor(const TensorPlan& plan, const checkpoint::ModuleQuant& quant,
                         Dialect dialect = Dialect::kModelOpt);

// Element sizes of the state that sequences carry, in bytes.
struct StateTypes {
  int64_t kv = 2;      // BF16; 1 for FP8
  int64_t ssm = 4;     // float32; 2 for float16
  int64_t conv = 2;    // the model's type
  int64_t hidden = 2;  // activations
};

// Types as the configuration and the metadata ask for them.
StateTypes state_types(const Config& config, const checkpoint::QuantMetadata& metadata);

struct StateSize {
  int64_t kv_bytes_per_token = 0;      // all attention layers, K and V
  int64_t mtp_kv_bytes_per_token = 0;  // the draft head's own cache
  int64_t ssm_bytes = 0;               // per sequence, all Mamba layers
  int64_t conv_bytes = 0;              // per sequence: conv_kernel - 1 inputs of conv_dim
  int64_t recurrent_bytes() const { return ssm_bytes + conv_bytes; }
};
StateSize state_size(const Config& config, const StateTypes& types);

// Bytes of `sequences` sequences of `context` tokens with their caches, without weights.
double state_bytes(const StateSize& size, int64_t sequences, int64_t context);

// Expected number of distinct experts that `tokens` tokens reach when each picks `chosen` of
// `experts` independently of the others: experts * (1 - (1 - chosen/experts)^tokens).
double distinct_experts(int64_t experts, int64_t chosen, double tokens);

// One operation of a step, all layers of the model listed one by one.
struct Operation {
  // Canonical module name, or ".ssm", ".attention", ".experts.up_proj" and ".experts.down_proj" of
  // all routed experts below the mixer.
  std::string name;
  Role role = Role::kNorm;
  bool mtp = false;
  int layer = -1;
  double weight_bytes = 0;
  double state_bytes = 0;       // recurrent state, read and written
  double kv_bytes = 0;          // KV cache, read and written
  double activation_bytes = 0;  // inputs read and outputs written
  double flops = 0;             // a multiply-add counts 2

  double memory_bytes() const { return weight_bytes + state_bytes + kv_bytes; }
  Operation& operator+=(const Operation& other);
};

struct StepOptions {
  int64_t sequences = 1;
  int64_t tokens_per_sequence = 1;  // 1 + k when k drafts are verified
  int64_t context = 0;              // tokens already in each sequence
  StateTypes types;
};

// The operations of one forward pass of the trunk over sequences * tokens_per_sequence tokens,
// with logits for each.
std::vector<Operation> step_operations(const Config& config,
                                       const std::vector<SizedTensor>& tensors,
                                       const StepOptions& options);

// The operations of drafting k tokens per sequence with the MTP head: the first pass covers the
// tokens of the verification step (tokens_per_sequence), the others one token per sequence; one
// row of logits per sequence and pass. Empty for k = 0.
std::vector<Operation> draft_operations(const Config& config,
                                        const std::vector<SizedTensor>& tensors,
                                        const StepOptions& options, int k);

// Sums by class as tables show them: by role, the MTP head as one class.
struct ClassCost {
  std::string name;
  Operation sum;
};
std::vector<ClassCost> by_class(const std::vector<Operation>& operations);
Operation total(const std::vector<Operation>& operations);

// Parameters that one decoded token multiplies with: all but the embedding table, the MTP head and
// the experts that are not chosen.
double active_parameters(const Config& config);

}  // namespace levin::model
