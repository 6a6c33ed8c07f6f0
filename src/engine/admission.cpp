#include "engine/admission.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>

#include "core/error.h"
#include "core/memory.h"
#include "core/plural.h"

namespace levin::engine {
namespace {

constexpr int64_t kFloat = 4;

int64_t kv_element_bytes(runtime::KvCacheDType dtype) {
  switch (dtype) {
    case runtime::KvCacheDType::kFp8:
      return 1;
    case runtime::KvCacheDType::kBf16:
      return 2;
    case runtime::KvCacheDType::kF32:
      break;
  }
  return kFloat;
}

std::string mebibytes(int64_t bytes) {
  return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20));
}

}  // namespace

std::string SlotBytes::message() const {
  return fmt::format("{} a sequence: KV {}, Mamba {}, draft head {}, rewind logs {}",
                     mebibytes(total()), mebibytes(kv), mebibytes(mamba), mebibytes(mtp),
                     mebibytes(rewind));
}

SlotBytes slot_bytes(const model::Config& config, const runtime::Options& options) {
  const auto count = [&](model::BlockKind kind) {
    return static_cast<int64_t>(std::count(config.layers.begin(), config.layers.end(), kind));
  };
  const int64_t kv_layer =
      2 * options.max_model_len * config.kv_rows() * kv_element_bytes(options.kv_cache_dtype);
  const int64_t mamba_layers = count(model::BlockKind::kMamba);
  const int64_t ssm_bytes = options.ssm_cache_dtype == runtime::SsmCacheDType::kF16 ? 2 : kFloat;
  const int64_t log_rows = config.conv_kernel - 1 + options.max_rewind;
  SlotBytes bytes;
  bytes.kv = count(model::BlockKind::kAttention) * kv_layer;
  bytes.mamba = mamba_layers * config.d_inner() * config.ssm_state_size * ssm_bytes;
  bytes.rewind =
      mamba_layers * 2 * log_rows * (config.conv_dim() + config.mamba_num_heads) * kFloat;
  if (options.mtp && !config.mtp_layers.empty()) {
    bytes.mtp = kv_layer + (64 + options.max_rewind) * config.hidden_size * kFloat;
  }
  return bytes;
}

int64_t memory_for_slots(int64_t weights_bytes, int64_t available_bytes) {
  if (weights_bytes >= available_bytes) {
    throw Error({.what = "not enough memory for the weights",
                 .where = "CPU",
                 .expected = gigabytes(weights_bytes),
                 .found = gigabytes(available_bytes) + " available",
                 .hint = "quantize the model, or free memory",
                 .exit_code = ExitCode::kMachine});
  }
  return std::max<int64_t>((available_bytes - weights_bytes) / 2, 1);
}

int fit_slots(const model::Config& config, const runtime::Options& options, int64_t memory_bytes) {
  const SlotBytes bytes = slot_bytes(config, options);
  const int64_t fitting = memory_bytes / std::max<int64_t>(1, bytes.total());
  if (fitting < 1) {
    throw Error({.what = "no sequence fits into the memory for sequences",
                 .where = fmt::format("max_model_len {}", options.max_model_len),
                 .expected = "at least " + bytes.message(),
                 .found = mebibytes(memory_bytes),
                 .hint = "lower --max-model-len",
                 .exit_code = ExitCode::kMachine});
  }
  const auto slots = static_cast<int>(std::min<int64_t>(fitting, options.max_num_seqs));
  if (slots < options.max_num_seqs) {
    spdlog::warn("max_num_seqs {} is clamped to the {} that fit into {} ({})", options.max_num_seqs,
                 slots, mebibytes(memory_bytes), bytes.message());
  } else {
    spdlog::info("{}: {}", counted(int64_t{slots}, "sequence"), bytes.message());
  }
  return slots;
}

}  // namespace levin::engine
