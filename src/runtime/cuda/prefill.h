// Prefill: chunks of hundreds of tokens through the model, on tensor-core products.
//
// Each phase is a kernel of its own over all rows of the chunk, launched one after the other: at
// such sizes what a launch costs does not matter. The states that it leaves are those that passes
// (step.h) start from.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "runtime/cuda/device.h"
#include "runtime/cuda/prefill_space.h"

namespace levin::runtime::cuda {

// A chunk whose arrays are in PrefillSpace::chunk.
struct Chunk {
  int rows = 0;
  int segments = 0;
  int longest = 0;  // rows of a segment
  int attention_blocks = 0;
  int wanted = 0;            // rows with logits
  int first_logits_row = 0;  // where theirs begin; they are consecutive
};

class Prefill {
 public:
  Prefill(const model::Model& model, const Options& options, const DeviceModel& weights,
          const State& state, const PrefillSpace& space, int blocks);

  void run(cudaStream_t stream, const Chunk& chunk);
  // Brings the Mamba states of a pass's segments, which have no rows, up to date with their logs.
  void commit_logs(cudaStream_t stream, const Pass* pass, int segments);

  // Phases from now on are timed, by events before each; ends with null.
  struct Mark {
    std::string phase;
    Event event;
    double operations = 0;  // of its products, two for each weight and token
  };
  void set_marks(std::vector<Mark>* marks) { marks_ = marks; }

 private:
  // Rows on their way into operands, each kind once.
  using Inputs = MakeOperands;
  // A linear, the operand it reads and where its result goes.
  struct Product {
    const DeviceLinear* linear = nullptr;
    int operand = 0;
    GemmOutput output = GemmOutput::kStore;
    float* data = nullptr;
    int64_t stride = 0;
  };

  void mark(const char* phase);
  Inputs norm_of(const float* x, const float* weight) const;
  Inputs plain(const float* x, int64_t width) const;
  // Index of the operand among those that `inputs` is made into.
  int need(Inputs& inputs, const Operand& operand) const;
  void multiply(std::initializer_list<Product> products, int rows);
  void launch(const Gemm& gemm, GemmShape shape, double operations);
  void activate(const DeviceLinear& up, int operand, const DeviceLinear& down);
  void add_activated(const DeviceLinear& down);
  void layer(const DeviceLayer& layer, int index);
  void mamba(const DeviceMamba& m, const float* norm, int index);
  void attention(const DeviceAttention& a, const float* norm, int index);
  void moe(const DeviceMoe& m, const float* norm);
  void route(const DeviceMoe& m);
  void experts(const DeviceMoe& m, int operand, float* out, bool add);
  void mlp(const DeviceMlp& m, const float* norm);
  void mtp_keys_and_values();
  void logits();
  ChunkRows rows() const;

  const model::Config& c_;
  const Options& options_;
  const DeviceModel& w_;
  const State& s_;
  const PrefillSpace& p_;
  int blocks_;

  cudaStream_t stream_ = nullptr;
  Chunk chunk_;
  std::vector<Mark>* marks_ = nullptr;
};

}  // namespace levin::runtime::cuda
