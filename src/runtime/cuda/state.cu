#include <algorithm>
#include <string>

#include "core/error.h"
#include "runtime/cuda/state.h"

namespace levin::runtime::cuda {
namespace {

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

void require(bool ok, const char* what, const std::string& expected, int64_t found) {
  if (ok) return;
  throw Error({.what = "the CUDA runtime has no kernel for this configuration",
               .where = what,
               .expected = expected,
               .found = std::to_string(found),
               .hint = "use --device cpu"});
}

void check_configuration(const model::Config& c, const Options& options) {
  require(c.hidden_size <= 4 * kThreads * kMaxVectors && c.hidden_size % 4 == 0, "hidden_size",
          "at most 4096, a multiple of 4", c.hidden_size);
  require(c.head_dim <= 128 && c.head_dim % 4 == 0, "head_dim", "at most 128, a multiple of 4",
          c.head_dim);
  require(c.ssm_state_size <= 32 * kLanesPerRow, "ssm_state_size", "at most 256", c.ssm_state_size);
  require(c.conv_kernel <= kMaxTaps, "conv_kernel", "at most 4", c.conv_kernel);
  require(c.n_routed_experts <= kMaxExperts, "n_routed_experts", "at most 512", c.n_routed_experts);
  require(c.num_experts_per_tok <= 32, "num_experts_per_tok", "at most 32", c.num_experts_per_tok);
  require(options.max_rewind <= kMaxRows, "max_rewind", "at most 8 tokens", options.max_rewind);
  require(options.kv_cache_dtype != KvCacheDType::kF32, "kv_cache_dtype", "bfloat16 or fp8", 32);
}

class Placer {
 public:
  Placer(const model::Model& model, const Options& options, int blocks,
         const LoadedKernels& kernels, Arena& arena)
      : model_(model),
        c_(model.config),
        options_(options),
        blocks_(blocks),
        kernels_(kernels),
        arena_(arena) {}

  State place();

 private:
  std::size_t slots() const { return static_cast<std::size_t>(options_.max_num_seqs); }
  template <typename T>
  T* rows(int64_t width) {
    return arena_.take<T>(static_cast<std::size_t>(kMaxRows * width));
  }
  KvCaches kv(const model::AttentionBlock& block, int64_t positions);
  MambaCache mamba();
  void work(State& state);

  const model::Model& model_;
  const model::Config& c_;
  const Options& options_;
  int blocks_;
  const LoadedKernels& kernels_;
  Arena& arena_;
};

KvCaches Placer::kv(const model::AttentionBlock& block, int64_t positions) {
  KvView view;
  view.fp8 = options_.kv_cache_dtype == KvCacheDType::kFp8;
  view.heads = static_cast<int>(c_.num_key_value_heads);
  view.head_dim = static_cast<int>(c_.head_dim);
  view.padded_dim = c_.head_dim <= 64 ? 64 : 128;
  view.capacity = static_cast<int>(round_up(positions, kBlockPositions));
  view.slot_stride = static_cast<int64_t>(view.heads) * view.capacity * view.padded_dim;
  const std::size_t bytes =
      slots() * static_cast<std::size_t>(view.slot_stride) * (view.fp8 ? 1 : 2);
  KvCaches caches = {view, view};
  caches.keys.scale = block.k_scale;
  caches.values.scale = block.v_scale;
  caches.keys.data = arena_.take<std::byte>(bytes);
  caches.values.data = arena_.take<std::byte>(bytes);
  return caches;
}

int padded_states(const model::Config& c) {
  int per_thread = 4;
  while (per_thread * kLanesPerRow < c.ssm_state_size) per_thread *= 2;
  return per_thread * kLanesPerRow;
}

MambaCache Placer::mamba() {
  MambaCache cache;
  cache.state =
      arena_.take<std::byte>(slots() * static_cast<std::size_t>(mamba_state_bytes(c_, options_)));
  cache.window = arena_.take<float>(slots() * 2 *
                                    static_cast<std::size_t>((c_.conv_kernel - 1) * c_.conv_dim()));
  cache.log = arena_.take<float>(slots() * 2 * kMaxRows *
                                 static_cast<std::size_t>(c_.conv_dim() + c_.mamba_num_heads));
  return cache;
}

void Placer::work(State& state) {
  const int64_t hidden = c_.hidden_size;
  state.pass = arena_.take<Pass>(1);
  state.draft_pass = arena_.take<Pass>(1);
  state.h = rows<float>(hidden);
  state.mtp_h = rows<float>(hidden);
  state.embedding = rows<float>(hidden);
  state.hidden_rows = options_.max_num_seqs * kHiddenRing;
  state.hidden =
      arena_.take<float>(static_cast<std::size_t>((state.hidden_rows + kMaxRows) * hidden));
  if (c_.mamba_num_heads > 0) {
    const int64_t pieces = (c_.mamba_head_dim + kStateRows - 1) / kStateRows;
    state.projected = rows<float>(c_.in_proj_rows());
    state.y = rows<float>(c_.d_inner());
    state.squares = rows<float>(c_.mamba_num_heads * pieces);
  }
  if (c_.num_attention_heads > 0) {
    const int64_t padded = c_.head_dim <= 64 ? 64 : 128;
    const int64_t longest = options_.max_model_len + options_.max_rewind;
    state.chunks = Chunks::up_to(longest);
    state.max_chunks = state.chunks.of(static_cast<int>(longest - 1)) + 1;
    state.queries = rows<float>(c_.q_rows());
    state.attended = rows<float>(c_.q_rows());
    state.sums = rows<float>(c_.num_attention_heads * state.max_chunks * padded);
    state.weights = rows<float>(c_.num_attention_heads * state.max_chunks * 2);
  }
  if (c_.n_routed_experts > 0) {
    state.latent = rows<float>(c_.moe_latent_size);
    state.latent_sum = rows<float>(c_.moe_latent_size);
  }
  int64_t widest = 0;
  for (const int64_t width : c_.intermediate_size) widest = std::max(widest, width);
  state.mlp = rows<float>(widest);
  state.candidates = arena_.take<Candidate>(static_cast<std::size_t>(blocks_ * kMaxRows));
  const auto vocab = static_cast<std::size_t>(c_.vocab_size);
  const auto drafts = slots() * static_cast<std::size_t>(options_.max_rewind);
  state.logits = arena_.take<float>(static_cast<std::size_t>(options_.max_logits_rows) * vocab);
  state.draft_logits = arena_.take<float>(options_.mtp ? drafts * vocab : 0);
  state.drafts = arena_.take<int32_t>(drafts);
  if (!kernels_.clusters) {
    const int share = choose_share(static_cast<int>(c_.vocab_size));
    state.choose_stride = round_up(choose_memory_bytes(share), 256);
    state.choose_memory = rows<uint8_t>(kChooseBlocks * state.choose_stride);
  }
}

State Placer::place() {
  check_configuration(c_, options_);
  State state;
  work(state);
  state.zeroed_begin = arena_.take<std::byte>(0);
  for (const model::Layer& layer : model_.layers) {
    const auto* attention = std::get_if<model::AttentionBlock>(&layer.mixer);
    state.kv.push_back(attention != nullptr ? kv(*attention, options_.max_model_len) : KvCaches{});
  }
  if (options_.mtp) {
    for (const model::Layer& layer : model_.mtp->layers) {
      if (const auto* attention = std::get_if<model::AttentionBlock>(&layer.mixer)) {
        state.mtp_kv = kv(*attention, options_.max_model_len + options_.max_rewind);
      }
    }
  }
  state.epoch = arena_.take<uint32_t>(1);
  state.round_work = arena_.take<RoundWork>(1);
  state.round_sequences = arena_.take<RoundSequence>(slots());
  state.experts_touched = arena_.take<int32_t>(1);
  state.choose_arrivals = rows<uint32_t>(kernels_.clusters ? 0 : 1);
  const auto add_words = [&](const model::Layer& layer) {
    const bool moe = layer.kind == model::BlockKind::kMoe;
    // Logits, then the choice (routing.cuh).
    const int64_t words = kMaxRows * c_.n_routed_experts +
                          Routing::words(static_cast<int>(kMaxRows * c_.num_experts_per_tok));
    state.router_words.push_back(moe ? arena_.take<uint64_t>(static_cast<std::size_t>(words))
                                     : nullptr);
  };
  for (const model::Layer& layer : model_.layers) add_words(layer);
  if (options_.mtp) {
    for (const model::Layer& layer : model_.mtp->layers) add_words(layer);
  }
  if (c_.n_routed_experts > 0) {
    // Padding behind the real columns stays zero.
    const int64_t routed = round_up(c_.moe_intermediate_size, kUnitColumns) * 2;
    const int64_t shared = round_up(c_.shared_intermediate(), kUnitColumns) * 2;
    state.routed_stride = static_cast<int>(routed);
    state.shared_stride = static_cast<int>(shared);
    state.routed_acts = rows<uint8_t>(c_.num_experts_per_tok * routed);
    state.shared_acts = rows<uint8_t>(shared);
  }
  state.zeroed_end = arena_.take<std::byte>(0);
  for (const model::Layer& layer : model_.layers) {
    state.mamba.push_back(layer.kind == model::BlockKind::kMamba ? mamba() : MambaCache{});
  }
  return state;
}

}  // namespace

State place_state(const model::Model& model, const Options& options, int blocks,
                  const LoadedKernels& kernels, Arena& arena) {
  return Placer(model, options, blocks, kernels, arena).place();
}

int64_t mamba_state_bytes(const model::Config& config, const Options& options) {
  const int64_t element = options.ssm_cache_dtype == SsmCacheDType::kF16 ? 2 : 4;
  return config.d_inner() * padded_states(config) * element;
}

MambaScan mamba_scan_of(const model::Config& config, const Options& options,
                        const DeviceMamba& mixer, const MambaCache& cache, int layer) {
  MambaScan scan;
  scan.width = static_cast<int>(config.in_proj_rows());
  scan.cache = cache;
  scan.half_state = options.ssm_cache_dtype == SsmCacheDType::kF16;
  scan.stochastic = options.stochastic_rounding;
  scan.philox_rounds = options.philox_rounds;
  scan.seed = options.seed;
  scan.layer = layer;
  scan.conv_weight = mixer.conv_weight;
  scan.conv_bias = mixer.conv_bias;
  scan.a = mixer.a;
  scan.d = mixer.d;
  scan.dt_bias = mixer.dt_bias;
  scan.dt_min = static_cast<float>(config.time_step_limit_min);
  scan.dt_max = static_cast<float>(config.time_step_limit_max);
  scan.heads = static_cast<int>(config.mamba_num_heads);
  scan.head_dim = static_cast<int>(config.mamba_head_dim);
  scan.groups = static_cast<int>(config.n_groups);
  scan.states = static_cast<int>(config.ssm_state_size);
  scan.taps = static_cast<int>(config.conv_kernel);
  return scan;
}

}  // namespace levin::runtime::cuda
