// The phases of a pass through the model, in order, as kernel launches on a stream.
#pragma once

#include <string>
#include <vector>

#include "core/error.h"
#include "runtime/cuda/device.h"
#include "runtime/cuda/make_cuda_runtime.h"
#include "runtime/cuda/state.h"

namespace levin::runtime::cuda {

// Sees what phases compute, on the device, right after their launch. Only without graphs.
class StepObserver {
 public:
  virtual ~StepObserver() = default;
  // Residual stream before layer `layer`, or after norm_f; [rows, hidden].
  virtual void hidden(int layer, const float* device) = 0;
  // Input of a linear, [rows, linear.in].
  virtual void input(const model::Linear& linear, const float* device) = 0;
  // Inputs of the experts' linears: the choice of experts [rows * chosen], and either one input row
  // for each choice or one for each token.
  virtual void expert_inputs(const std::vector<const model::Linear*>& linears, const int* experts,
                             const float* device, bool per_choice) = 0;
};

// Buffers of an observed pass.
struct ObservedBuffers {
  float* normed = nullptr;  // [kMaxRows, 2 * hidden]
  float* acts = nullptr;    // [kMaxRows, widest input of act_linear]
  float* shared = nullptr;  // [kMaxRows, shared width]
  float* routed = nullptr;  // [kMaxRows * chosen, width]
  int* experts = nullptr;   // [kMaxRows * chosen]
};

// Time stamps of one launch: [grid][Trace::kCount].
struct TracedPhase {
  std::string name;
  int blocks = 0;
  uint64_t* stamps = nullptr;
  double bytes = 0;  // of weights that the phase reads for one token
};

class Step {
 public:
  Step(const model::Model& model, const Options& options, const DeviceModel& weights,
       const State& state, int blocks, const LoadedKernels& kernels, const CudaLimits& limits);

  // One pass over State::pass with at most `rows` tokens (1, 2, 4 or 8): the model, with logits
  // when `head`, and the draft head's cache entries of the tokens before.
  void extend(cudaStream_t stream, int rows, bool head);
  // One step of drafting over State::draft_pass.
  void draft(cudaStream_t stream, int rows);
  // A whole round of at most `sequences` sequences: `drafts` drafts each, then at most `rows` rows
  // to verify, all of them powers of two up to 8 but `drafts`. Of `buffers` those of the host.
  void round(cudaStream_t stream, int sequences, int rows, int drafts, const RoundStep& buffers);
  // The most tokens of a pass (1, 2, 4 or 8) whose inputs fit the device's shared memory. Throws
  // Error when that of one does not.
  int most_rows();
  // Whether a row of logits fits what chooses from it.
  bool can_sample(int vocab) const;

  // Both null outside of observed passes.
  void observe(StepObserver* observer, const ObservedBuffers& buffers);
  // Phases launched from now on leave time stamps in `stamps` (room for `capacity` numbers) and are
  // appended to `phases`; null ends it.
  void trace(uint64_t* stamps, std::size_t capacity, std::vector<TracedPhase>* phases);

 private:
  // A layer's inputs and rings do not fit the shared memory.
  struct TooWide : Error {
    using Error::Error;
  };

  // What a block needs room for.
  struct Shape {
    int operand_units = 0;
    int operands = 1;
    int unit_bytes = 0;  // of the largest unit that a warp reads
    int ring_bytes = 0;  // what the kernel puts in the rings' place at its end
    int items = 0;
    int partials = 0;    // items whose sums the block adds up
    int busy_warps = 0;  // that read items
    int groups = 0;      // of a gated norm
    int ahead = 1;       // SharedLayout::ahead
    int extra = 0;       // bytes that the kernel wants besides, behind the scratch
    bool exclusive = false;
    bool among_exclusive = false;  // so are the phases before and after
  };

  template <typename Params>
  void launch(const char* name, Kernel<Params> kernel, dim3 grid, int threads, int shared,
              Params& params, double bytes = 0);
  SharedLayout layout(const Shape& shape, int rows) const;
  int share_out(Part* parts, int count, Shape& shape) const;
  static int chunk_units(const SharedLayout& l, const PackedMatrix& m);
  void add_part(NormLinear& p, const DeviceLinear& linear, const Output& output);
  int operand_index(Operand* operands, int& count, const Operand& operand) const;
  void norm_phase(const char* name, NormLinear& p);
  void act_phase(const char* name, ActLinear& p, const DeviceLinear& linear, const Output& output);
  NormLinear norm_input(const Pass* pass, const float* x, const float* norm) const;
  Output residual(float* h) const;
  bool observing() const { return observer_ != nullptr; }

  void layer(const DeviceLayer& layer, int index, const Pass* pass, float* h, const KvCaches& kv,
             int position_offset, uint64_t* router_words);
  void mamba(const DeviceMamba& m, const float* norm, int index);
  void attention(const DeviceAttention& a, const float* norm, const Pass* pass, float* h,
                 const KvCaches& kv, int position_offset);
  void moe(const DeviceMoe& m, const float* norm, const Pass* pass, float* h, uint64_t* words);
  void moe_up_phase(const DeviceMoe& m, const float* norm, const Pass* pass, float* h,
                    const Router& router);
  void moe_down_phase(const DeviceMoe& m, const Pass* pass, const Router& router, float* out,
                      int stride, bool add, bool routed, bool shared);
  void mlp(const DeviceMlp& m, const float* norm, const Pass* pass, float* h);
  void head(const Pass* pass, const float* h, const float* norm, bool logits, float* logits_to,
            float* normed, bool by_hidden_row);
  void embed_tokens(const Pass* pass, float* out);
  void mtp_input(const Pass* pass);
  void mtp_keys_and_values();
  Router make_router(const DeviceMoe& m, uint64_t* words) const;

  const model::Config& c_;
  const Options& options_;
  const DeviceModel& w_;
  const State& s_;
  int blocks_;
  LoadedKernels kernels_;
  int shared_per_block_;
  int shared_per_multiprocessor_;

  cudaStream_t stream_ = nullptr;  // of the pass being launched
  int rows_ = 1;
  bool first_ = true;
  bool dry_ = false;       // nothing is launched
  int before_shared_ = 0;  // shared memory of a block of the phase launched last
  StepObserver* observer_ = nullptr;
  ObservedBuffers buffers_;
  uint64_t* stamps_ = nullptr;
  std::size_t stamps_left_ = 0;
  std::vector<TracedPhase>* phases_ = nullptr;
};

}  // namespace levin::runtime::cuda
