// The model's weights on the device, block by block, and how each linear is computed there.
#pragma once

#include <optional>
#include <variant>
#include <vector>

#include "model/model.h"
#include "runtime/cuda/moe.h"
#include "runtime/cuda/repack.h"
#include "runtime/cuda/tokens.h"
#include "runtime/runtime.h"

namespace levin::runtime::cuda {

struct DeviceLinear {
  PackedMatrix matrix;
  Operand operand;      // of its input
  float factor = 1.0F;  // of weight format and operand
  const model::Linear* source = nullptr;

  bool exists() const { return source != nullptr; }
};

struct DeviceMamba {
  DeviceLinear in_proj, out_proj;
  const float* conv_weight = nullptr;  // [conv_dim, kMaxTaps]
  const float* conv_bias = nullptr;
  const float* a = nullptr;
  const float* d = nullptr;
  const float* dt_bias = nullptr;
  const float* norm = nullptr;
};

struct DeviceAttention {
  DeviceLinear q, k, v, o;
  float k_scale = 1.0F;
  float v_scale = 1.0F;
};

// Up or down projections of all experts of a layer.
struct DeviceExperts {
  ExpertMatrices matrices;
  Operand operand;          // of an up projection's input
  Activations activations;  // of a down projection's input; without memory
  std::vector<const model::Linear*> sources;
};

struct DeviceMoe {
  const void* gate = nullptr;
  bool gate_bf16 = false;
  const float* bias = nullptr;
  DeviceExperts up, down;
  DeviceLinear shared_up, shared_down;
  Activations shared_activations;  // of shared_down's input; without memory
  DeviceLinear fc1, fc2;
  // Of passes of one token. With latent experts the shared one's down projection is a phase of its
  // own.
  ItemLists up_items, down_items, shared_down_items;
  const model::MoeBlock* source = nullptr;
};

struct DeviceMlp {
  DeviceLinear up, down;
};

struct DeviceLayer {
  const float* norm = nullptr;
  std::variant<DeviceMamba, DeviceMoe, DeviceAttention, DeviceMlp> mixer;
};

struct DeviceMtp {
  const float* enorm = nullptr;
  const float* hnorm = nullptr;
  DeviceLinear eh_proj;
  std::vector<DeviceLayer> layers;
  const float* final_layernorm = nullptr;
};

struct DeviceModel {
  const void* embeddings = nullptr;
  TableType embeddings_type = TableType::kBf16;
  std::vector<DeviceLayer> layers;
  const float* norm_f = nullptr;
  DeviceLinear lm_head;
  std::optional<DeviceMtp> mtp;
  std::vector<PlanEntry> plan;
};

// Places the model's weights in `arena` and uploads them. With a counting arena `uploader` is null
// and nothing is uploaded: only Arena::used() and the plan mean anything. `blocks`: how many blocks
// run at a time, the number of multiprocessors. Throws Error for what has no kernel.
DeviceModel place_weights(const model::Model& model, bool mtp, int blocks, Arena& arena,
                          Uploader* uploader);

}  // namespace levin::runtime::cuda
