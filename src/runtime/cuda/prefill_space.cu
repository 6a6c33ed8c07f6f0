#include <algorithm>

#include "runtime/cuda/prefill_space.h"

namespace levin::runtime::cuda {
namespace {

// Weights are read once for each chunk; with so many tokens the products take far longer than that.
constexpr int kMostRows = 8192;

int units_of(int64_t columns) {
  return static_cast<int>((columns + kUnitColumns - 1) / kUnitColumns);
}

}  // namespace

ChunkArrays::ChunkArrays(std::byte* at, int capacity, int slots) {
  segments = reinterpret_cast<Segment*>(at);
  auto* next = reinterpret_cast<int32_t*>(segments + slots);
  for (int32_t** array : {&token, &slot, &position, &previous, &kept, &wanted}) {
    *array = next;
    next += capacity;
  }
}

std::size_t ChunkArrays::bytes(int capacity, int slots) {
  return static_cast<std::size_t>(slots) * sizeof(Segment) +
         static_cast<std::size_t>(6 * capacity) * sizeof(int32_t);
}

int prefill_capacity(const Options& options) {
  return std::min((options.max_extend_tokens + kScanPiece - 1) / kScanPiece * kScanPiece,
                  kMostRows);
}

std::string no_prefill_because(const model::Config& config, const Options& options,
                               int capability) {
  if (capability != 90) return "its products are made for compute capability 9.0";
  if (!LEVIN_CUDA_WGMMA) return "90a is not among the architectures that this program is built for";
  if (config.mamba_num_heads > 0 && config.ssm_state_size > kMostScanStates) {
    return "ssm_state_size is above " + std::to_string(kMostScanStates);
  }
  if (options.max_extend_tokens <= kPassRows) return "no extend is longer than a pass";
  return {};
}

PrefillSpace place_prefill(const model::Model& model, const Options& options, Arena& arena) {
  const model::Config& c = model.config;
  PrefillSpace space;
  space.capacity = prefill_capacity(options);
  const int slots = options.max_num_seqs;
  const auto rows = static_cast<std::size_t>(space.capacity);
  space.chunk = arena.take<std::byte>(ChunkArrays::bytes(space.capacity, slots));
  if (!arena.counting()) space.arrays = ChunkArrays(space.chunk, space.capacity, slots);
  const auto floats = [&](int64_t width) {
    return arena.take<float>(rows * static_cast<std::size_t>(width));
  };
  const auto panels = [&](int64_t columns, int64_t of_rows) {
    Panels p;
    p.stride = (of_rows + kPanelSlack) * Panels::kRowBytes;
    p.data = arena.take<uint8_t>(static_cast<std::size_t>(p.stride * units_of(columns)));
    return p;
  };
  int64_t dense = 0;
  for (const int64_t width : c.intermediate_size) dense = std::max(dense, width);
  const bool moe = c.n_routed_experts > 0;
  const int64_t mamba_rows = c.mamba_num_heads > 0 ? c.in_proj_rows() : 0;
  const int64_t mamba_inner = c.mamba_num_heads > 0 ? c.d_inner() : 0;
  const int64_t latent = moe ? c.moe_latent_size : 0;

  space.h = floats(c.hidden_size);
  space.normed = floats(c.hidden_size);
  space.wide = floats(std::max({mamba_rows, c.q_rows(), latent, c.hidden_size}));
  space.keys = floats(c.kv_rows());
  space.values = floats(c.kv_rows());
  space.mixed = floats(std::max({mamba_inner, c.q_rows(), latent}));
  if (c.mamba_num_heads > 0) {
    space.convolved = arena.take<__half>(rows * static_cast<std::size_t>(c.conv_dim()));
  }
  for (int i = 0; i < kMaxOperands; ++i) {
    space.operands[i] =
        panels(std::max({2 * c.hidden_size, mamba_inner, c.q_rows(), latent}), space.capacity);
    space.row_scales[i] = floats(1);
  }
  space.activations = panels(std::max(dense, moe ? c.shared_intermediate() : 0), space.capacity);
  if (!moe) return space;
  const int64_t pairs = space.capacity * c.num_experts_per_tok;
  const int64_t sorted = sorted_rows(pairs, c.n_routed_experts);
  const int64_t width = latent > 0 ? latent : c.hidden_size;
  space.sorted_inputs = panels(width, sorted);
  space.sorted_scales = arena.take<float>(static_cast<std::size_t>(sorted));
  space.sorted_activations = panels(c.moe_intermediate_size, sorted);
  space.expert_outputs = arena.take<float>(static_cast<std::size_t>(sorted * width));
  space.router_words = arena.take<uint64_t>(rows * static_cast<std::size_t>(c.n_routed_experts));
  const auto ints = [&](int64_t count) { return arena.take<int>(static_cast<std::size_t>(count)); };
  space.pairs.expert = ints(pairs);
  space.pairs.rank = ints(pairs);
  space.pairs.weight = arena.take<float>(static_cast<std::size_t>(pairs));
  space.pairs.row = ints(pairs);
  space.pairs.first = ints(c.n_routed_experts);
  space.pairs.count = ints(c.n_routed_experts);
  space.pairs.tiles_before = ints(c.n_routed_experts + 1);
  return space;
}

}  // namespace levin::runtime::cuda
