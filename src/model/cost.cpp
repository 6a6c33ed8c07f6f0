#include "model/cost.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

namespace levin::model {
namespace {

double real(int64_t value) {
  return static_cast<double>(value);
}

int64_t count_of(const std::vector<BlockKind>& layers, BlockKind kind) {
  return std::count(layers.begin(), layers.end(), kind);
}

// "backbone.layers.3.mixer"
std::string mixer_of(const TensorPlan& plan) {
  constexpr std::string_view kMixer = ".mixer";
  return plan.name.substr(0, plan.name.find(kMixer) + kMixer.size());
}

// Work of one pass, layer by layer. What is common to the trunk and the draft head.
class Pass {
 public:
  // `tokens`: all tokens of the pass; `rows`: those that need logits.
  Pass(const Config& config, const StepOptions& options, double tokens, double rows, bool mtp)
      : config_(config), options_(options), tokens_(tokens), rows_(rows), mtp_(mtp) {}

  std::vector<Operation> run(const std::vector<SizedTensor>& tensors);

 private:
  Operation& operation(const SizedTensor& tensor, std::string name);
  void linear(const SizedTensor& tensor);
  void expert(const SizedTensor& tensor);
  void vector(const SizedTensor& tensor);
  void lookup(const SizedTensor& tensor);
  void ssm(const SizedTensor& tensor);
  void attention(const SizedTensor& tensor);

  const Config& config_;
  const StepOptions& options_;
  double tokens_;
  double rows_;
  bool mtp_;
  std::vector<Operation> operations_;
};

// The operation `name`, which is one of the last two when a layer goes on with the same: experts
// alternate between up and down.
Operation& Pass::operation(const SizedTensor& tensor, std::string name) {
  const std::size_t last = std::min<std::size_t>(operations_.size(), 2);
  const auto found = std::find_if(operations_.rbegin(), operations_.rbegin() + std::ptrdiff_t(last),
                                  [&](const Operation& op) { return op.name == name; });
  if (found == operations_.rbegin() + std::ptrdiff_t(last)) {
    Operation next;
    next.name = std::move(name);
    next.role = tensor.plan.role;
    next.mtp = mtp_;
    next.layer = tensor.plan.layer;
    operations_.push_back(std::move(next));
    return operations_.back();
  }
  return *found;
}

void Pass::linear(const SizedTensor& tensor) {
  const double tokens = tensor.plan.role == Role::kLmHead ? rows_ : tokens_;
  const double out = real(tensor.plan.shape[0]);
  const double in = real(tensor.plan.shape[1]);
  Operation& op = operation(tensor, std::string(tensor.plan.module()));
  op.weight_bytes += tensor.bytes;
  op.activation_bytes += tokens * (in + out) * real(options_.types.hidden);
  op.flops += 2 * tokens * in * out;
}

// Up of all routed experts of a layer is one operation, down another. Each expert is read with the
// probability that some token reaches it, and every token computes num_experts_per_tok of them.
void Pass::expert(const SizedTensor& tensor) {
  const double experts = real(config_.n_routed_experts);
  const double reached =
      distinct_experts(config_.n_routed_experts, config_.num_experts_per_tok, tokens_) / experts;
  const double used = tokens_ * real(config_.num_experts_per_tok) / experts;
  const std::string_view module = tensor.plan.module();
  Operation& op = operation(
      tensor, mixer_of(tensor.plan) + ".experts" + std::string(module.substr(module.rfind('.'))));
  op.weight_bytes += reached * tensor.bytes;
  if (tensor.plan.kind != TensorKind::kLinear) return;
  const double out = real(tensor.plan.shape[0]);
  const double in = real(tensor.plan.shape[1]);
  op.activation_bytes += used * (in + out) * real(options_.types.hidden);
  op.flops += 2 * used * in * out;
}

// Norms, convolution, biases: a few operations per element and token.
void Pass::vector(const SizedTensor& tensor) {
  const double elements = real(tensor.plan.elements());
  Operation& op = operation(tensor, std::string(tensor.plan.module()));
  op.weight_bytes += tensor.bytes;
  op.activation_bytes += 2 * tokens_ * real(tensor.plan.shape[0]) * real(options_.types.hidden);
  op.flops += (tensor.plan.role == Role::kNorm ? 4 : 2) * tokens_ * elements;
}

// Embeddings: one row per token.
void Pass::lookup(const SizedTensor& tensor) {
  Operation& op = operation(tensor, std::string(tensor.plan.module()));
  op.weight_bytes += tokens_ * tensor.bytes / real(config_.vocab_size);
}

// Mamba's recurrence, which begins with its per-head parameters in the list of tensors.
void Pass::ssm(const SizedTensor& tensor) {
  const Config& c = config_;
  const double state = real(c.d_inner()) * real(c.ssm_state_size);
  const double conv = real(c.conv_kernel - 1) * real(c.conv_dim());
  Operation& op = operation(tensor, mixer_of(tensor.plan) + ".ssm");
  op.state_bytes = 2 * real(options_.sequences) *
                   (state * real(options_.types.ssm) + conv * real(options_.types.conv));
  // S = dA * S + dB * x: 3 per element; y += S * C: 2 (arXiv 2405.21060).
  op.flops = 5 * tokens_ * state;
  op.weight_bytes += tensor.bytes;
}

// softmax(q k^T) v over the cache.
void Pass::attention(const SizedTensor& tensor) {
  const Config& c = config_;
  const double sequences = real(options_.sequences);
  const double new_tokens = tokens_ / sequences;
  // Token i of the step sees the context, the i tokens before it, and itself.
  const double seen = real(options_.context) + (new_tokens + 1) / 2;
  Operation& op = operation(tensor, mixer_of(tensor.plan) + ".attention");
  op.kv_bytes = sequences * (real(options_.context) + new_tokens) * 2 * real(c.kv_rows()) *
                real(options_.types.kv);
  op.flops = 4 * tokens_ * seen * real(c.q_rows());
}

std::vector<Operation> Pass::run(const std::vector<SizedTensor>& tensors) {
  for (const SizedTensor& tensor : tensors) {
    const TensorPlan& plan = tensor.plan;
    if (plan.role == Role::kEmbeddings) {
      lookup(tensor);
      // A tied head reads the whole table for its logits.
      if (config_.tie_word_embeddings) {
        Operation& head = operation(tensor, "lm_head");
        head.role = Role::kLmHead;
        head.weight_bytes += tensor.bytes;
        head.flops += 2 * rows_ * real(plan.elements());
      }
      continue;
    }
    // The draft head shares embeddings and lm_head with the trunk, nothing else.
    if (plan.mtp != mtp_ && plan.role != Role::kLmHead) continue;
    const bool per_head = plan.name.ends_with(".A_log") || plan.name.ends_with(".D") ||
                          plan.name.ends_with(".dt_bias");
    if (plan.expert >= 0) {
      expert(tensor);
    } else if (per_head) {
      ssm(tensor);
    } else if (plan.kind == TensorKind::kVector) {
      vector(tensor);
    } else {
      if (plan.name.ends_with(".o_proj.weight")) attention(tensor);
      linear(tensor);
    }
  }
  return std::move(operations_);
}

}  // namespace

StateTypes state_types(const Config& config, const checkpoint::QuantMetadata& metadata) {
  StateTypes types;
  types.kv = metadata.kv_cache == checkpoint::KvCacheQuant::kFp8 ? 1 : 2;
  types.ssm = config.mamba_ssm_cache_dtype == "float32" ? 4 : 2;
  return types;
}

StateSize state_size(const Config& config, const StateTypes& types) {
  const int64_t mamba = count_of(config.layers, BlockKind::kMamba);
  StateSize size;
  size.kv_bytes_per_token =
      count_of(config.layers, BlockKind::kAttention) * 2 * config.kv_rows() * types.kv;
  size.mtp_kv_bytes_per_token =
      count_of(config.mtp_layers, BlockKind::kAttention) * 2 * config.kv_rows() * types.kv;
  size.ssm_bytes = mamba * config.d_inner() * config.ssm_state_size * types.ssm;
  size.conv_bytes =
      mamba == 0 ? 0 : mamba * (config.conv_kernel - 1) * config.conv_dim() * types.conv;
  return size;
}

double state_bytes(const StateSize& size, int64_t sequences, int64_t context) {
  const double per_token = real(size.kv_bytes_per_token + size.mtp_kv_bytes_per_token);
  return real(sequences) * (real(size.recurrent_bytes()) + real(context) * per_token);
}

double distinct_experts(int64_t experts, int64_t chosen, double tokens) {
  if (experts == 0) return 0;
  return real(experts) * (1 - std::pow(1 - real(chosen) / real(experts), tokens));
}

Operation& Operation::operator+=(const Operation& other) {
  weight_bytes += other.weight_bytes;
  state_bytes += other.state_bytes;
  kv_bytes += other.kv_bytes;
  activation_bytes += other.activation_bytes;
  flops += other.flops;
  return *this;
}

std::vector<Operation> step_operations(const Config& config,
                                       const std::vector<SizedTensor>& tensors,
                                       const StepOptions& options) {
  const double tokens = real(options.sequences) * real(options.tokens_per_sequence);
  return Pass(config, options, tokens, tokens, false).run(tensors);
}

std::vector<Operation> draft_operations(const Config& config,
                                        const std::vector<SizedTensor>& tensors,
                                        const StepOptions& options, int k) {
  std::vector<Operation> operations;
  const double sequences = real(options.sequences);
  for (int pass = 0; pass < k; ++pass) {
    const double tokens = pass == 0 ? sequences * real(options.tokens_per_sequence) : sequences;
    for (Operation& op : Pass(config, options, tokens, sequences, true).run(tensors)) {
      op.name = fmt::format("draft {}: {}", pass + 1, op.name);
      operations.push_back(std::move(op));
    }
  }
  return operations;
}

std::vector<ClassCost> by_class(const std::vector<Operation>& operations) {
  std::vector<ClassCost> classes;
  std::map<std::string, std::size_t, std::less<>> places;
  for (const Operation& op : operations) {
    const std::string name(op.mtp ? "mtp" : name_of(op.role));
    const auto [place, inserted] = places.emplace(name, classes.size());
    if (inserted) classes.push_back({name, {}});
    classes[place->second].sum += op;
  }
  return classes;
}

Operation total(const std::vector<Operation>& operations) {
  Operation sum;
  sum.name = "total";
  for (const Operation& op : operations) sum += op;
  return sum;
}

double active_parameters(const Config& config) {
  double active = 0;
  for (const TensorPlan& tensor : plan_tensors(config)) {
    if (tensor.mtp || !tensor.required) continue;
    const bool table = tensor.role == Role::kEmbeddings;
    if (table && !config.tie_word_embeddings) continue;
    const double share =
        tensor.expert < 0 ? 1.0 : real(config.num_experts_per_tok) / real(config.n_routed_experts);
    active += share * real(tensor.elements());
  }
  return active;
}

}  // namespace levin::model
