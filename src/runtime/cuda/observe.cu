#include <algorithm>

#include "runtime/cuda/observe.h"

namespace levin::runtime::cuda {

PassObserver::PassObserver(const model::Model& model, const Observer& observer, const Pass& pass,
                           bool drafting, std::vector<std::vector<float>>& hidden,
                           cudaStream_t stream)
    : model_(model),
      observer_(observer),
      pass_(pass),
      drafting_(drafting),
      hidden_(hidden),
      stream_(stream) {}

std::vector<float> PassObserver::download(const float* device, std::size_t count) const {
  std::vector<float> values(count);
  check(cudaMemcpyAsync(values.data(), device, count * sizeof(float), cudaMemcpyDeviceToHost,
                        stream_));
  check(cudaStreamSynchronize(stream_));
  return values;
}

void PassObserver::hidden(int layer, const float* device) {
  if (hidden_.empty()) return;
  const auto count = static_cast<std::size_t>(pass_.rows * model_.config.hidden_size);
  const std::vector<float> values = download(device, count);
  std::vector<float>& all = hidden_[static_cast<std::size_t>(layer)];
  all.insert(all.end(), values.begin(), values.end());
}

void PassObserver::input(const model::Linear& linear, const float* device) {
  if (!observer_.linear_input) return;
  const auto width = static_cast<std::size_t>(linear.in);
  std::vector<float> values = download(device, static_cast<std::size_t>(pass_.rows) * width);
  int rows = pass_.rows;
  if (!drafting_ && linear.name.starts_with("mtp.")) {
    // Before a sequence's first token there is nothing the draft head could work on.
    rows = 0;
    for (int row = 0; row < pass_.rows; ++row) {
      if (pass_.position[row] == 0) continue;
      const auto from =
          values.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(row) * width);
      std::copy_n(
          from, width,
          values.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(rows++) * width));
    }
    if (rows == 0) return;
  }
  observer_.linear_input(linear, std::span(values).first(static_cast<std::size_t>(rows) * width),
                         rows);
}

void PassObserver::expert_inputs(const std::vector<const model::Linear*>& linears,
                                 const int* experts, const float* device, bool per_choice) {
  if (!observer_.linear_input) return;
  const auto chosen = static_cast<std::size_t>(model_.config.num_experts_per_tok);
  const auto pairs = static_cast<std::size_t>(pass_.rows) * chosen;
  const auto width = static_cast<std::size_t>(linears.front()->in);
  std::vector<int> choice(pairs);
  check(cudaMemcpyAsync(choice.data(), experts, pairs * sizeof(int), cudaMemcpyDeviceToHost,
                        stream_));
  const std::vector<float> values =
      download(device, (per_choice ? pairs : static_cast<std::size_t>(pass_.rows)) * width);
  std::vector<float> gathered;
  for (std::size_t expert = 0; expert < linears.size(); ++expert) {
    gathered.clear();
    for (std::size_t pair = 0; pair < pairs; ++pair) {
      if (choice[pair] != static_cast<int>(expert)) continue;
      const std::size_t row = per_choice ? pair : pair / chosen;
      const auto from = values.begin() + static_cast<std::ptrdiff_t>(row * width);
      gathered.insert(gathered.end(), from, from + static_cast<std::ptrdiff_t>(width));
    }
    if (gathered.empty()) continue;
    observer_.linear_input(*linears[expert], gathered, static_cast<int>(gathered.size() / width));
  }
}

ObservedBuffers place_observed(const model::Config& c, Arena& arena) {
  const auto rows = [&](int64_t width) {
    return arena.take<float>(static_cast<std::size_t>(kMaxRows * width));
  };
  int64_t widest = std::max({c.d_inner(), c.q_rows(), c.moe_latent_size});
  for (const int64_t width : c.intermediate_size) widest = std::max(widest, width);
  ObservedBuffers buffers;
  buffers.normed = rows(2 * c.hidden_size);
  buffers.acts = rows(widest);
  buffers.shared = rows(c.shared_intermediate());
  buffers.routed = rows(c.num_experts_per_tok * c.moe_intermediate_size);
  buffers.experts = arena.take<int>(static_cast<std::size_t>(kMaxRows * c.num_experts_per_tok));
  return buffers;
}

}  // namespace levin::runtime::cuda
